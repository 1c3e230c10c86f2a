// SPDX-License-Identifier: Apache-2.0
// LaneExchange: what ranks of a lane tell each other, so that all decide alike.
#ifndef HVD_TRANSPORT_DEVICE_LANE_EXCHANGE_H_
#define HVD_TRANSPORT_DEVICE_LANE_EXCHANGE_H_

#include <memory>
#include <string>
#include <vector>

#include "core/lanes.h"
#include "core/status.h"
#include "core/transport.h"
#include "transport/device/lane_offer.h"

namespace hvd {

// Owner: a LaneDecision. The host transport's batches share it, because they
// may end after that. Background thread only.
class LaneExchange {
 public:
  using Pointer = std::shared_ptr<LaneExchange>;

  // Tells all what this rank offers, and hears what the others do. Returns the
  // batch of `host`.
  static BatchId TellOffers(const Pointer& exchange, const LaneOffer& mine,
                            Transport* host, const LaneOwner& owner);
  bool has_offers() const { return has_offers_; }
  const std::vector<LaneOffer>& offers() const { return offers_; }

  // Tells all the identity of a communicator that this rank has made, once
  // SetOwnId was called.
  static BatchId TellIds(const Pointer& exchange, Transport* host);
  // Not Ok: it could not make one. Empty: it does not have to.
  void SetOwnId(const Result<std::string>& made);
  bool has_own_id() const { return has_own_id_; }
  bool has_ids() const { return has_ids_; }
  // That of a rank. Zeros: it has made none.
  std::string IdOf(int rank) const;

  // Not Ok: why GPUs do not reduce, which is the same on all ranks.
  const Status& verdict() const { return verdict_; }

 private:
  LaneOffer mine_;
  std::vector<LaneOffer> offers_;
  bool has_offers_ = false;
  Status verdict_;
  // What this rank made, and what all ranks did.
  std::string id_, ids_;
  bool has_own_id_ = false;  // or will not
  bool has_ids_ = false;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_LANE_EXCHANGE_H_
