// SPDX-License-Identifier: Apache-2.0
// HostMatcher: which hosts have submitted which number with all their ranks.
#ifndef HVD_CORE_CONTROL_HOST_MATCHER_H_
#define HVD_CORE_CONTROL_HOST_MATCHER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/control/recycling_map.h"
#include "core/control/response_cache.h"
#include "core/control/words.h"

namespace hvd {

// Stands in front of a Matcher, and counts hosts where that counts ranks. It
// knows the usual course alone: whole hosts submit a number, until all have.
// What is of any other kind the Leader moves into the Matcher first, which then
// has it as if each rank had submitted it there. So a key is in one of the two
// at a time.
//
// Owner: the leader of a set. Background thread only.
class HostMatcher {
 public:
  using Clock = std::chrono::steady_clock;
  // The steps of a host's ranks. What they submit together shares them.
  using Steps = std::shared_ptr<const std::vector<int64_t>>;

  // A number that some hosts have submitted, and others not yet.
  struct Partial {
    ResponseCache::Remembered remembered;
    std::vector<Steps> steps;  // by host; null: it has not submitted it
    int count = 0;             // of hosts that have
    Clock::time_point since;
  };

  explicit HostMatcher(int host_count) : host_count_(host_count) {}

  // Null: no host has submitted it.
  Partial* Find(SignatureNumber number);
  // The number that hosts have submitted for the name. 0: none.
  SignatureNumber NumberOf(const std::string& name) const;
  // No host has submitted the number, nor another one for its name.
  Partial* Begin(SignatureNumber number,
                 const ResponseCache::Remembered& remembered,
                 Clock::time_point now);
  // The host has not submitted it yet. True: now all hosts have.
  bool Add(Partial* partial, int host, const Steps& steps) {
    partial->steps[host] = steps;
    return ++partial->count == host_count_;
  }
  void Erase(SignatureNumber number);

  bool empty() const { return partials_.empty(); }
  // The numbers that were first submitted by then.
  std::vector<SignatureNumber> Since(Clock::time_point latest) const;

 private:
  const int host_count_;
  RecyclingMap<SignatureNumber, Partial> partials_;
  std::unordered_map<std::string, SignatureNumber> by_name_;  // the same
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_HOST_MATCHER_H_
