// SPDX-License-Identifier: Apache-2.0
// Ranks and process sets in one thread, whose messages and batches take random
// times. A seed decides everything.
#ifndef HVD_TESTS_CORE_FUZZ_WORLD_H_
#define HVD_TESTS_CORE_FUZZ_WORLD_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/control/message.h"
#include "core/control/negotiator.h"
#include "core/options.h"
#include "core/request.h"

namespace hvd {

// Carries messages in order between any two ranks, and calls the negotiators as
// BackgroundLoop does. A batch completes on a rank some time after all members
// have it. The ranks are on one host or on several.
//
// Checks that no negotiator reports a bug, that all members of a set execute
// the same tensors under a log number, also when the set ends, and without the
// same ranks. That a step of one rank only ever meets one step of another rank
// within a set, unless a join was taken back. That nothing is agreed on long
// after a rank has cancelled it, nor without a rank that has long come back.
// That all ranks hear of the same last ranks of their joins.
class FuzzWorld {
 public:
  struct Random {
    explicit Random(uint64_t seed) : engine(seed) {}
    int Below(int end) { return static_cast<int>(engine() % end); }
    bool OneIn(int n) { return Below(n) == 0; }
    std::mt19937_64 engine;
  };
  // Called with an entry's status: not Ok for a failure.
  using Answered = std::function<void(const Status&)>;

  // `sets`: the ranks of each, ascending. Set 0 has all.
  FuzzWorld(uint64_t seed, std::vector<std::vector<int>> sets,
            const Options& options);

  // One rank's pass: messages that have arrived, the leader's decisions, and
  // batches that are done.
  void Pass(int rank);
  void Tick() { ++now_; }

  // Returns the ticket. Answered is called once, perhaps at once.
  uint64_t Submit(int rank, int set, Request request, Answered answered);
  void Cancel(int rank, int set, uint64_t ticket, const Status& why);
  void AbortStep(int rank, int set, const Key& key, int64_t step,
                 const Status& why);

  // Returns the ticket. Answered is called once, perhaps at once.
  uint64_t Join(int rank, int set, Answered answered);
  void TakeBackJoin(int rank, int set, uint64_t ticket);
  // Ranks that have joined, and have not been answered.
  int CountJoined(int set) const;

  // The set is removed: its leader ends its log.
  void Close(int set);
  // Every member has heard of it, and nothing of the set is on the wire.
  bool HasDrained(int set) const;

  int size() const { return static_cast<int>(sets_[0].ranks.size()); }
  bool IsMember(int rank, int set) const;
  int set_count() const { return static_cast<int>(sets_.size()); }
  Random& random() { return random_; }
  // The first thing that went wrong. Empty: nothing.
  const std::string& error() const { return error_; }

 private:
  struct Running {
    ReadyBatch batch;
    int64_t done_at = -1;  // -1: not all members have it
  };
  // One log number of a set.
  struct Execution {
    std::vector<Key> keys;
    std::vector<int> absent;
    int64_t free_at = 0;  // the set's, before the leader had it
    std::map<int, std::vector<int64_t>> steps;  // by rank, then tensor
  };
  // A rank's joins.
  struct Joins {
    bool is_joined = false;
    int64_t ended_at = 0;  // the last one was answered or taken back
    size_t answered = 0;   // by the log
  };
  struct Set {
    std::vector<int> ranks;
    // The last time at which the leader had nothing agreed on that was not in
    // the log. It holds back what the wire has no room for, for any time.
    int64_t free_at = 0;
    std::map<int, Joins> joins;   // by rank
    std::vector<int> last_ranks;  // that joins were answered with
    bool is_skewed = false;       // a join was taken back
    std::map<int, std::unique_ptr<Negotiator>> negotiators;  // by rank
    std::map<int, std::map<uint64_t, Running>> running;      // by log number
    std::map<uint64_t, Execution> executions;                // unfinished
    std::map<std::pair<int, int>, std::map<int64_t, int64_t>> met;
  };
  struct Letter {
    int64_t due;
    SharedBytes bytes;
  };

  void DrawHosts(int size);
  void AddSet(int id, std::vector<int> ranks, const Options& options);
  void Receive(int rank);
  Status Handle(int from, int rank, Envelope envelope);
  void ExecuteReady(int rank, Set* set);
  void Execute(int id, int rank, ReadyBatch ready);
  void Begin(int id, const ReadyBatch& ready);
  void CheckCancelled(int id, int rank, const ReadyBatch& ready);
  void CheckAbsent(int id, int rank, const ReadyBatch& ready);
  void CheckSteps(int id, const Execution& execution);
  void CheckLastRank(int rank, Set* set, int last_rank);
  void FinishBatches(int rank);
  static void FinishBatch(const ReadyBatch& batch);
  void Fail(const std::string& text);

  Random random_;
  const size_t most_in_flight_;
  int64_t now_ = 0;
  uint64_t tickets_ = 0;
  // By set, rank and name.
  std::map<std::tuple<int, int, std::string>, EntryPtr> last_entries_;
  std::map<uint64_t, int64_t> cancelled_at_;  // by ticket
  std::vector<int> host_of_;                  // by rank
  std::vector<Set> sets_;
  std::map<std::pair<int, int>, std::deque<Letter>> links_;  // from, to
  std::string error_;
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_FUZZ_WORLD_H_
