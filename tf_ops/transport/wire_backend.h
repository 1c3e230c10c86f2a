// SPDX-License-Identifier: Apache-2.0
// WireBackend: a backend that can make a wire without a transport.
#ifndef HVD_TRANSPORT_WIRE_BACKEND_H_
#define HVD_TRANSPORT_WIRE_BACKEND_H_

#include <memory>

#include "core/backend.h"
#include "core/process_set.h"
#include "core/status.h"
#include "cpu/spare_cores.h"
#include "transport/wire.h"

namespace hvd {

// The backend between hosts. Shared memory is put on top of it.
class WireBackend : public Backend {
 public:
  // A wire for a transport of that process set. The arguments are those of
  // NewTransport.
  virtual Result<std::unique_ptr<Wire>> NewWire(
      int slot, const ProcessSet& process_set) = 0;
  // The rank's spare cores, for all transports over its wires.
  virtual const std::shared_ptr<SpareCores>& spare_cores() = 0;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_WIRE_BACKEND_H_
