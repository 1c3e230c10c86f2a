// SPDX-License-Identifier: Apache-2.0
// LaunchOrder: in which order one GPU is given batches of several sets, so
// that all their ranks have the same.
#ifndef HVD_TRANSPORT_DEVICE_LAUNCH_ORDER_H_
#define HVD_TRANSPORT_DEVICE_LAUNCH_ORDER_H_

#include <cstdint>
#include <map>

namespace hvd {

// A kernel of a communicator waits on its GPU for those of its peers. So two
// batches that share two ranks must come in one order on both, though their
// sets are independent of each other.
//
// A rank that begins a batch proposes a place for it, behind all places that it
// knows of. The largest proposal of the batch's ranks is its place. A batch is
// launched when it has its place, and no other that has begun here can get an
// earlier one. This is D. Skeen's total order, as K. Birman and T. Joseph
// describe it in "Reliable Communication in the Presence of Failures", ACM
// TOCS, 1987.
//
// One for each GPU. One thread uses it.
class LaunchOrder {
 public:
  using Place = int64_t;

  // Begins a batch of a set, and returns what this rank proposes. It names the
  // batch below. `set_id` is equal on all of the set's ranks, below kSets, and
  // of no other set that exists.
  Place Begin(int set_id);

  // The same for a batch that goes on: for its second launch. It goes before
  // all that is not launched yet, so far as this rank is asked. A set's batches
  // go on in one order on all its ranks.
  Place BeginAgain(int set_id);

  // All ranks have come. Their largest proposal is `place`.
  void Settle(Place proposed, Place place);

  // Whether the batch can be launched now.
  bool IsNext(Place proposed) const;

  // The batch is launched from now on. Others wait until End.
  void Launch(Place proposed);

  // The batch has been launched, or will never be. More often than once is no
  // harm.
  void End(Place proposed) { pending_.erase(proposed); }

  // No set has a batch that is begun and not launched.
  bool empty() const { return pending_.empty(); }

  static constexpr Place kSets = Place{1} << 20;

 private:
  struct Pending {
    Place earliest;  // the place, once it is settled
    bool is_settled = false;
  };

  // Places are (2 * clock + 1) * kSets + id, of second launches without the 1.
  // So no two batches have the same.
  static constexpr Place kTick = 2 * kSets;
  Place clock_ = 0;                    // of the latest place that is known of
  Place launched_clock_ = 0;           // of the latest that was launched
  std::map<int, Place> again_clocks_;  // of each set's latest BeginAgain
  std::map<Place, Pending> pending_;   // by what was proposed
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_LAUNCH_ORDER_H_
