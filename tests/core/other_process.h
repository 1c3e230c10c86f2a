// SPDX-License-Identifier: Apache-2.0
// A part of a test in a process of its own.
#ifndef HVD_TESTS_CORE_OTHER_PROCESS_H_
#define HVD_TESTS_CORE_OTHER_PROCESS_H_

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "harness.h"

namespace hvd {

// To be made while this process has no threads but one, as it forks.
class OtherProcess {
 public:
  using Pause = std::function<void()>;

  // Runs body(pause) there. Returns when it has called pause(), which returns
  // at End.
  explicit OtherProcess(const std::function<void(const Pause&)>& body) {
    EXPECT_EQ(pipe(paused_), 0);
    EXPECT_EQ(pipe(ended_), 0);
    id_ = fork();
    char byte = 0;
    if (id_ == 0) {
      close(ended_[1]);  // or the end of the parent would not be seen
      body([&] {
        EXPECT_EQ(write(paused_[1], &byte, 1), 1);
        EXPECT_EQ(read(ended_[0], &byte, 1), 1);
      });
      _exit(test::failures > 0 ? 1 : 0);
    }
    close(paused_[1]);
    EXPECT_EQ(read(paused_[0], &byte, 1), 1);
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  // Waits for the rest. Expects that all has been there as expected.
  void End() {
    const char byte = 0;
    EXPECT_EQ(write(ended_[1], &byte, 1), 1);
    int status = -1;
    EXPECT_EQ(waitpid(id_, &status, 0), id_);
    EXPECT_EQ(status, 0);
    for (const int end : {paused_[0], ended_[0], ended_[1]}) close(end);
  }

 private:
  int paused_[2] = {-1, -1}, ended_[2] = {-1, -1};
  pid_t id_ = -1;
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_OTHER_PROCESS_H_
