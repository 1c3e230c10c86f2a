// SPDX-License-Identifier: Apache-2.0
// LaneExchange: allgathers of the host transport.
#include "transport/device/lane_exchange.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "transport/device/small_batch.h"

namespace hvd {
namespace {

// That of a communicator, with room for a library that needs more.
constexpr size_t kIdBytes = 128;

// `bytes` of each rank.
Batch Gather(const void* mine, void* all, size_t bytes, size_t ranks) {
  Batch batch =
      SmallBatch(Verb::kAllgather, DataType::kUint8, mine, all, bytes);
  batch.rows = {std::vector<int64_t>(ranks, static_cast<int64_t>(bytes))};
  return batch;
}

}  // namespace

BatchId LaneExchange::TellOffers(const Pointer& exchange, const LaneOffer& mine,
                                 Transport* host, const LaneOwner& owner) {
  const auto ranks = static_cast<size_t>(host->size());
  exchange->mine_ = mine;
  exchange->offers_.resize(ranks);
  Batch offers = Gather(&exchange->mine_, exchange->offers_.data(),
                        sizeof(LaneOffer), ranks);
  return host->Start(
      std::move(offers), [exchange, hosts = owner.hosts,
                          ranks = owner.job_ranks](const Status& why) {
        exchange->verdict_ =
            why.ok() ? Decide(exchange->offers_, hosts, ranks) : why;
        exchange->has_offers_ = true;
      });
}

BatchId LaneExchange::TellIds(const Pointer& exchange, Transport* host) {
  const auto ranks = static_cast<size_t>(host->size());
  exchange->id_.resize(kIdBytes);
  exchange->ids_.resize(kIdBytes * ranks);
  // The batch has its place in the order, and waits for the decision.
  Batch ids =
      Gather(exchange->id_.data(), exchange->ids_.data(), kIdBytes, ranks);
  ids.inputs_are_ready = [exchange] { return exchange->has_own_id_; };
  return host->Start(std::move(ids), [exchange](const Status& why) {
    if (exchange->verdict_.ok()) exchange->verdict_ = why;
    exchange->has_ids_ = true;
  });
}

void LaneExchange::SetOwnId(const Result<std::string>& made) {
  if (made.ok() && made.value().size() <= kIdBytes) {
    std::copy(made.value().begin(), made.value().end(), id_.begin());
  }
  has_own_id_ = true;
}

std::string LaneExchange::IdOf(int rank) const {
  return ids_.substr(static_cast<size_t>(rank) * kIdBytes, kIdBytes);
}

}  // namespace hvd
