// SPDX-License-Identifier: Apache-2.0
// The contract of transports, with ranks that are threads and share memory.
#ifndef HVD_TESTS_CORE_SHARED_CONTRACT_H_
#define HVD_TESTS_CORE_SHARED_CONTRACT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hvd {

// Every case of the contract. hosts[r] is the host of rank r; empty: all on
// one. A rank has shm_bytes of staging memory, and copy_threads. `autotune`:
// pieces may become as long as with it.
void RunSharedContract(int size, int64_t piece_bytes, int64_t shm_bytes,
                       const std::vector<std::string>& hosts = {},
                       int64_t copy_threads = 1, bool autotune = false);

}  // namespace hvd

#endif  // HVD_TESTS_CORE_SHARED_CONTRACT_H_
