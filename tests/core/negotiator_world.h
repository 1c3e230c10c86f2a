// SPDX-License-Identifier: Apache-2.0
// A set of ranks in one thread: a negotiator each, and messages carried by
// hand.
#ifndef HVD_TESTS_CORE_NEGOTIATOR_WORLD_H_
#define HVD_TESTS_CORE_NEGOTIATOR_WORLD_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/control/message.h"
#include "core/control/negotiator.h"
#include "core/host_map.h"
#include "core/options.h"
#include "core/status.h"
#include "harness.h"

namespace hvd {

// Why a step is aborted, where it does not matter.
inline const Status kNan = Cancelled("NaN in 'loss'");

// A set whose wire is always free, unless `busy`.
class World {
 public:
  // `host_of`: by rank. Empty: all on one host.
  explicit World(int size, Options options = Options::Defaults(),
                 const std::vector<int>& host_of = {})
      : batches_(size), results_(size) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    for (int rank = 0; rank < size; ++rank) {
      negotiators_.push_back(std::make_unique<Negotiator>(
          0, rank, ranks, options, kMostChunkBytes, MakeHostMap(host_of)));
    }
  }

  Negotiator& at(int rank) { return *negotiators_[rank]; }
  void set_busy(int batches) { busy_ = batches; }
  void Pass(std::chrono::milliseconds time) { now_ += time; }

  // Returns the ticket.
  uint64_t Submit(int rank, const std::string& name, int64_t step = 0,
                  Signature signature = Plain(), uint64_t instance = 0,
                  Status error = Status::Ok()) {
    auto entry = std::make_shared<Entry>();
    entry->request = {{name, instance}, signature, step, std::move(error)};
    entry->ticket = ++tickets_;
    // Callers may keep the number of an equal request.
    EntryPtr& last = last_entries_[{rank, name}];
    if (last != nullptr && last->request.signature == signature) {
      entry->signature_number = last->signature_number;
    }
    last = entry;
    entry->done = [this, rank, name](const Status& status) {
      results_[rank][name].push_back(status);
    };
    at(rank).Submit(entry);
    return entry->ticket;
  }

  // One rank's news, to the leader and back. Then everything.
  void Deliver() {
    bool moved = true;
    messages_.assign(negotiators_.size(), 0);
    std::set<const std::string*> distinct;
    std::vector<SharedBytes> kept;  // so that no address comes twice
    while (moved) {
      moved = false;
      for (size_t rank = 0; rank < negotiators_.size(); ++rank) {
        Result<bool> advanced = at(static_cast<int>(rank)).Advance(busy_, now_);
        EXPECT_TRUE(advanced.ok());
        ExecuteReady(static_cast<int>(rank));
        moved |= advanced.ok() && advanced.value();
        for (auto& message : at(static_cast<int>(rank)).TakeMessages()) {
          auto envelope = Decode(*message.bytes);
          EXPECT_TRUE(envelope.ok());
          bytes_sent_ += message.bytes->size();
          ++messages_[rank];
          kept.push_back(message.bytes);
          if (distinct.insert(message.bytes.get()).second) {
            distinct_bytes_sent_ += message.bytes->size();
          }
          const Status status = Handle(static_cast<int>(rank), message.rank,
                                       std::move(envelope.value().message));
          EXPECT_EQ(status.message(), "");
          moved = true;
        }
      }
    }
  }

  // Everything a rank was told of a name, and its batches.
  std::vector<Status> Results(int rank, const std::string& name) {
    ExecuteReady(rank);
    return std::exchange(results_[rank][name], {});
  }
  std::vector<std::vector<std::string>>& Batches(int rank) {
    ExecuteReady(rank);
    return batches_[rank];
  }
  // The steps of what a rank has put on the wire under a name.
  std::vector<int64_t> Steps(int rank, const std::string& name) {
    return std::exchange(steps_[{rank, name}], {});
  }
  size_t bytes_sent() const { return bytes_sent_; }
  // Bytes that several ranks are sent together count once.
  size_t distinct_bytes_sent() const { return distinct_bytes_sent_; }
  // How many of its messages the rank sent.
  int messages_in_last_delivery(int rank) const { return messages_[rank]; }
  Negotiator::Clock::time_point now() const { return now_; }

  static Signature Plain() {
    Signature signature;
    signature.shapes = {{4}};
    return signature;
  }

 private:
  static constexpr int64_t kMostChunkBytes = 1 << 30;

  Status Handle(int from, int rank, Message message) {
    if (auto* log = std::get_if<LogMessage>(&message)) {
      EXPECT_EQ(at(rank).upper(), from);
      const Status status = at(rank).HandleLog(*log);
      ExecuteReady(rank);
      return status;
    }
    if (auto* report = std::get_if<HostReport>(&message)) {
      return at(rank).HandleHostReport(from, std::move(*report), now_);
    }
    return at(rank).HandleReport(from, std::get<Report>(message), now_);
  }

  void ExecuteReady(int rank) {
    while (std::optional<ReadyItem> item = at(rank).TakeReady()) {
      if (auto* batch = std::get_if<ReadyBatch>(&*item)) {
        Execute(rank, std::move(*batch));
      } else {
        batches_[rank].push_back(
            {"chunks of " +
             std::to_string(std::get<Tuning>(*item).chunk_bytes)});
      }
    }
  }

  void Execute(int rank, ReadyBatch ready) {
    std::vector<std::string> names;
    for (Outstanding& tensor : ready.tensors) {
      const Request& request = tensor.entry->request;
      names.push_back(request.key.name);
      steps_[{rank, request.key.name}].push_back(request.step);
      if (!tensor.cancelled) tensor.entry->done(Status::Ok());
    }
    batches_[rank].push_back(names);
  }

  std::vector<std::unique_ptr<Negotiator>> negotiators_;
  std::vector<std::vector<std::vector<std::string>>> batches_;
  std::vector<std::map<std::string, std::vector<Status>>> results_;
  std::map<std::pair<int, std::string>, std::vector<int64_t>> steps_;
  std::map<std::pair<int, std::string>, EntryPtr> last_entries_;
  uint64_t tickets_ = 0;
  int busy_ = 0;
  size_t bytes_sent_ = 0, distinct_bytes_sent_ = 0;
  std::vector<int> messages_;
  Negotiator::Clock::time_point now_{};
};

// Told once, and well.
inline void ExpectDone(World* world, int rank, const std::string& name) {
  std::vector<Status> results = world->Results(rank, name);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].message(), "");
}

// Told once, of a failure that holds this text.
inline void ExpectFailed(World* world, int rank, const std::string& name,
                         StatusCode code, const std::string& text) {
  std::vector<Status> results = world->Results(rank, name);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].code(), code);
  EXPECT_NE(results[0].message().find(text), std::string::npos);
  if (results[0].message().find(text) == std::string::npos) {
    EXPECT_EQ(results[0].message(), text);
  }
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_NEGOTIATOR_WORLD_H_
