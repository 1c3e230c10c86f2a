// SPDX-License-Identifier: Apache-2.0
// The contract of transports, with ranks that are threads and share memory.
#ifndef HVD_TESTS_CORE_SHARED_CONTRACT_H_
#define HVD_TESTS_CORE_SHARED_CONTRACT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/options.h"
#include "transport_contract.h"

namespace hvd {

// The options of a job of the contract, unless a test changes them: the size of
// chunks, a rank's staging memory, and one thread to copy.
Options ContractOptions(int64_t chunk_bytes, int64_t shm_bytes);

// hosts[r] is the host of rank r. Empty: all on one.
void RunShared(const std::vector<ContractCase>& cases, int size,
               const Options& options,
               const std::vector<std::string>& hosts = {});

// Every case of the contract.
void RunSharedContract(int size, const Options& options,
                       const std::vector<std::string>& hosts = {});
void RunSharedContract(int size, int64_t chunk_bytes, int64_t shm_bytes,
                       const std::vector<std::string>& hosts = {});

}  // namespace hvd

#endif  // HVD_TESTS_CORE_SHARED_CONTRACT_H_
