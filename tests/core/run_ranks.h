// SPDX-License-Identifier: Apache-2.0
// RunRanks: a thread for each rank of a test.
#ifndef HVD_TESTS_CORE_RUN_RANKS_H_
#define HVD_TESTS_CORE_RUN_RANKS_H_

#include <functional>
#include <thread>
#include <vector>

namespace hvd {

// Runs body(rank) on one thread per rank and joins them.
inline void RunRanks(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&body, rank] { body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_RUN_RANKS_H_
