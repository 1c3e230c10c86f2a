// SPDX-License-Identifier: Apache-2.0
// Matcher: which ranks have submitted which key, and who waits for whom.
#ifndef HVD_CORE_CONTROL_MATCHER_H_
#define HVD_CORE_CONTROL_MATCHER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/control/message.h"
#include "core/control/recycling_map.h"
#include "core/request.h"
#include "core/status.h"

namespace hvd {

// Keeps submissions until all ranks have one of the same key, but for those
// that have joined. It decides nothing else, and never fails.
//
// Owner: the leader of a set. Background thread only. Ranks are ranks of the
// set. A Pending stays where it is until EraseIfEmpty takes it.
class Matcher {
 public:
  using Clock = std::chrono::steady_clock;

  // The part of a submission that few submissions have.
  struct Extra {
    std::shared_ptr<const Signature> signature;  // null: Pending's is the same
    Shape first_dims;  // dimension 0 of each shape, where the log has it
    Status error;
  };

  // One rank's submission of a key. It is small, because each pending key has
  // one for each rank.
  struct Waiting {
    // Null: the rank has not submitted the key. Else it points to the extra's
    // or to Pending's. Pending's may have the first dimensions of another rank.
    const Signature* signature = nullptr;
    int64_t step = 0;
    std::unique_ptr<Extra> extra;  // null: it has none of that
  };

  // A key that some ranks have submitted and others have not. An erased one
  // leaves the memory of its vectors to the next. Only a Matcher changes it.
  //
  // A rank's submissions of a key have places: 0 is its front, 1 the first of
  // its later ones.
  struct Pending {
    Key key;
    // As the first rank asked for it. Ranks that ask for the same share it.
    std::shared_ptr<const Signature> signature;
    SignatureNumber number = 0;   // the number that finds it; 0: none
    std::vector<Waiting> fronts;  // by rank: the oldest submission
    // Further submissions of ranks whose front still waits, in order. A vector,
    // because it is hardly ever used, and an empty deque allocates twice.
    std::vector<std::pair<int, Waiting>> later;
    int ready = 0;  // how many fronts there are
    Clock::time_point since;

    // Whether the rank has submitted it, and waits for others.
    bool has(int rank) const { return fronts[rank].signature != nullptr; }
    // The number of the rank's submissions.
    int PlacesOf(int rank) const;
    // Null: the rank has no submission at that place.
    const Waiting* At(int rank, int place) const;
    // The place of the last submission of that step. -1: there is none.
    int PlaceOf(int rank, int64_t step) const;
  };

  explicit Matcher(int size)
      : size_(size), has_joined_(static_cast<size_t>(size), false) {}

  // The rank has no more submissions. What only waits for it is complete.
  void Join(int rank);
  // The rank has submissions again. Also: all have joined, and begin anew.
  void Unjoin(int rank);
  bool has_joined(int rank) const { return has_joined_[rank]; }
  int joined_count() const { return joined_count_; }

  // Null: no rank waits for the key.
  Pending* Find(const Key& key);
  // The same, for the many submissions that come as a number. It is called for
  // each of them, like Add, so both are inline.
  Pending* FindByNumber(SignatureNumber number) {
    const auto found = pending_by_number_.find(number);
    return found == pending_by_number_.end() ? nullptr : found->second;
  }
  Pending* FindOrAdd(const Key& key, Clock::time_point now);
  // From now on FindByNumber finds it, unless another number does already.
  void SetNumber(Pending* pending, SignatureNumber number);

  // Gives a new submission its signature. `kept`: where the same signature is
  // kept already, or null.
  void SetSignature(Waiting* waiting, Pending* pending,
                    const Signature& signature,
                    const std::shared_ptr<const Signature>& kept);
  // Adds a submission, which has its signature. True: it is complete now.
  bool Add(int rank, Pending* pending, Waiting&& waiting) {
    Waiting& front = pending->fronts[rank];
    if (front.signature != nullptr) {
      pending->later.emplace_back(rank, std::move(waiting));
      return false;
    }
    front = std::move(waiting);
    ++pending->ready;
    return IsComplete(*pending);
  }
  // Whether all ranks have submitted it, but for some that have joined.
  bool IsComplete(const Pending& pending) const {
    return pending.ready == size_ ||
           (joined_count_ > 0 && IsCompleteWithJoined(pending));
  }

  // Removes the fronts. Later submissions take their place.
  void ClearFronts(Pending* pending);
  // Removes a submission. Those behind it move up.
  void TakeOut(Pending* pending, int rank, int place);
  void EraseIfEmpty(const Key& key);

  // A rank has submitted something at `now`, whatever becomes of it.
  void Heard(Clock::time_point now) { last_submission_ = now; }
  Clock::time_point last_submission() const { return last_submission_; }

  // All that some rank waits for: pairs of a key and its Pending.
  auto begin() { return pending_.begin(); }
  auto end() { return pending_.end(); }
  auto begin() const { return pending_.begin(); }
  auto end() const { return pending_.end(); }

 private:
  bool IsCompleteWithJoined(const Pending& pending) const;

  const int size_;
  std::vector<bool> has_joined_;  // by rank
  int joined_count_ = 0;
  RecyclingMap<Key, Pending, KeyHash> pending_;
  // Some of the same elements.
  RecyclingMap<SignatureNumber, Pending*> pending_by_number_;
  Clock::time_point last_submission_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_MATCHER_H_
