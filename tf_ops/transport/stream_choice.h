// SPDX-License-Identifier: Apache-2.0
// StreamChoice: whether blocks that peers read are written past the cache.
#ifndef HVD_TRANSPORT_STREAM_CHOICE_H_
#define HVD_TRANSPORT_STREAM_CHOICE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace hvd {

// Cores that share a cache hand a block over in it. Where they do not, a store
// to a line that a peer has read takes the line away from the peer's core
// first: a Zen 4 packs at 2.5 GB/s then and at 18 past the cache, on cores of
// one complex at 15 and 11. No file tells which it is, for ranks move, and so
// do a guest's processors. So blocks are timed, and now and then three of them
// are written in the other way.
//
// No bit of any result depends on it. Of one rank, for the transports of all
// its sets; its background thread.
class StreamChoice {
 public:
  enum Policy : int64_t { kMeasured = -1, kNever = 0, kAlways = 1 };

  // `policy` is HVD_SHM_STREAM.
  explicit StreamChoice(int64_t policy = kMeasured);

  // Whether to stream the block of so many bytes that is packed next. Took is
  // to be called when it has been.
  bool Next(size_t bytes);
  void Took(size_t bytes, bool streamed, double seconds);

  // The same for a block that is written as others are read, whose time says
  // nothing.
  bool Streams(size_t bytes) const;

 private:
  // Seconds a byte of the last few blocks written in one way.
  struct Cost {
    std::array<double, 3> seconds = {kUnknown, kUnknown, kUnknown};
    void Add(double last) { seconds = {seconds[1], seconds[2], last}; }
    // For a thread may lose its core at any moment.
    double least() const {
      return *std::min_element(seconds.begin(), seconds.end());
    }
  };
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  bool IsMeasured(size_t bytes) const;
  void StartTrial();
  void Decide();
  // Whether storing into the cache takes more than so many times as long.
  bool LooksWorth(double times) const;

  const int64_t policy_;
  bool streams_;
  Cost cached_, streamed_;
  size_t bytes_to_trial_;
  int trial_blocks_ = 0;  // still to be written in the other way
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_STREAM_CHOICE_H_
