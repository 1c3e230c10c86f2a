// SPDX-License-Identifier: Apache-2.0
// Entries and batches for tests of traces.
#ifndef HVD_TESTS_CORE_TRACE_CALLS_H_
#define HVD_TESTS_CORE_TRACE_CALLS_H_

#include <memory>
#include <string>
#include <vector>

#include "core/ready_batch.h"
#include "core/request.h"

namespace hvd {

inline Entry Tensor(const std::string& name, uint64_t ticket) {
  Entry entry;
  entry.request.key = {name, 3};
  entry.request.step = 7;
  entry.request.signature.shapes = {{10, 2}, {5}};
  entry.ticket = ticket;
  entry.enqueued_ns = SteadyNow_ns();
  return entry;
}

inline ReadyBatch BatchOf(const std::vector<Entry>& entries, uint64_t number) {
  ReadyBatch ready;
  ready.log_number = number;
  ready.first_dims.resize(entries.size());
  for (const Entry& entry : entries) {
    ready.tensors.push_back({std::make_shared<Entry>(entry), false});
  }
  return ready;
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_TRACE_CALLS_H_
