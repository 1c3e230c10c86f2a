// SPDX-License-Identifier: Apache-2.0
// Joins that tests can wait for and take back, in whole jobs.
#ifndef HVD_TESTS_CORE_RUNTIME_JOIN_H_
#define HVD_TESTS_CORE_RUNTIME_JOIN_H_

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/options.h"
#include "core/runtime.h"
#include "harness.h"
#include "run_ranks.h"
#include "thread_world.h"

namespace hvd {

// One rank's join under way.
struct JoinResult {
  Status status;
  int last_rank = -1;
};

class JoinUnderWay {
 public:
  explicit JoinUnderWay(Runtime* runtime, int set = 0)
      : runtime_(runtime), set_(set), call_(std::make_shared<JoinCall>()) {
    call_->ticket = runtime->NewTicket();
    call_->done = [told = told_](const Status& status, int last_rank) {
      told->set_value({status, last_rank});
    };
    runtime->Join(*runtime->process_set(set), call_);
  }

  void Cancel() { runtime_->Cancel(set_, call_->ticket, Cancelled("enough")); }
  JoinResult Wait() {
    if (result_.wait_for(std::chrono::seconds(20)) !=
        std::future_status::ready) {
      return {Internal("still waiting"), -1};
    }
    return result_.get();
  }
  bool told() {
    return result_.wait_for(std::chrono::seconds(0)) ==
           std::future_status::ready;
  }

 private:
  Runtime* const runtime_;
  const int set_;
  std::shared_ptr<std::promise<JoinResult>> told_ =
      std::make_shared<std::promise<JoinResult>>();
  std::future<JoinResult> result_ = told_->get_future();
  JoinCallPtr call_;
};

// The leader may or may not have heard of the join before it is taken back.
inline void JoinAndTakeBack(Runtime* runtime, int turn) {
  JoinUnderWay join(runtime);
  if (turn % 2 == 0) std::this_thread::yield();
  join.Cancel();
  EXPECT_EQ(join.Wait().status.code(), StatusCode::kCancelled);
}

inline int Join(Runtime* runtime) {
  const JoinResult result = JoinUnderWay(runtime).Wait();
  EXPECT_EQ(result.status.message(), "");
  return result.last_rank;
}

// A job by mailboxes, and through memory that the ranks of a host share.
inline void RunJoins(
    int size,
    const std::function<void(Runtime* runtime, int rank, int size)>& body,
    Options options = Options::Defaults(),
    const std::vector<std::vector<int>>& sets = {}) {
  options.shm_bytes = 65536;
  options.shm_chunk_bytes = options.chunk_bytes = 4096;
  for (const bool shares : {false, true}) {
    std::vector<std::string> hosts;
    if (shares && size > 3) {
      hosts.assign(static_cast<size_t>(size), "a");
      std::fill(hosts.begin() + size / 2, hosts.end(), "b");
    }
    ThreadWorld world(size, hosts, 4096);
    RunRanks(size, [&](int rank) {
      Runtime runtime(
          shares ? world.OpenShared(rank, options, 0) : world.Open(rank),
          options);
      EXPECT_EQ(runtime.Start(sets).message(), "");
      body(&runtime, rank, size);
      runtime.Stop();
    });
  }
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_RUNTIME_JOIN_H_
