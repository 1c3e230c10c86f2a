// SPDX-License-Identifier: Apache-2.0
// WireBackend: a backend whose wires can be had apart from a transport.
#ifndef HVD_TRANSPORT_WIRE_BACKEND_H_
#define HVD_TRANSPORT_WIRE_BACKEND_H_

#include <memory>
#include <vector>

#include "core/backend.h"
#include "core/status.h"
#include "transport/spare_cores.h"
#include "transport/wire.h"

namespace hvd {

// What shared memory is put on top of: it carries what leaves a host.
class WireBackend : public Backend {
 public:
  // Under a transport of that process set, as NewTransport's arguments say.
  virtual Result<std::unique_ptr<Wire>> NewWire(
      int set_id, const std::vector<int>& ranks) = 0;
  // Of this rank, for all transports on top of its wires.
  virtual const std::shared_ptr<SpareCores>& spare_cores() = 0;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_WIRE_BACKEND_H_
