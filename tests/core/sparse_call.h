// SPDX-License-Identifier: Apache-2.0
// SparseCall: one rank's sparse allreduce of some tables, and what must come.
//
// What a rank puts in is a function of its number, so any rank knows what comes
// out.
#ifndef HVD_TESTS_CORE_SPARSE_CALL_H_
#define HVD_TESTS_CORE_SPARSE_CALL_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "core/transport.h"

namespace hvd {

struct SparseTable {
  int64_t table_rows = 0;  // -1: not known
  int64_t row_count = 1;   // elements of a row
  // A rank has ids below `below`, and of these one in `one_in` on average. The
  // last rank of several has none where `last_has_none`.
  int64_t below = 0;
  int64_t one_in = 1;
  bool last_has_none = false;
};

class SparseCall {
 public:
  // `batch` says how; its segments and `allocate` are made here. `absent`: the
  // ranks that have joined. `knows_rows`: as where the log has the sizes.
  SparseCall(const Transport& transport, Batch batch,
             std::vector<SparseTable> tables, bool knows_rows = true,
             std::vector<int> absent = {});
  SparseCall(const SparseCall&) = delete;
  SparseCall& operator=(const SparseCall&) = delete;

  void Start(Transport* transport);
  // Expects that all has come, to the bit.
  void ExpectNumbers() const;

  // What the caller may do once it was told: the memory is its own.
  void TakeMemory();
  bool memory_untouched() const;

  Batch& batch() { return batch_; }
  BatchId id() const { return id_; }
  bool done() const { return done_; }
  int allocated() const { return allocated_; }
  const Status& status() const { return status_; }
  void FailToAllocate(Status error) { allocate_error_ = std::move(error); }
  void OnAllocate(std::function<void()> call) {
    on_allocate_ = std::move(call);
  }
  // A value of this rank's input of the first table.
  void* first_value() { return in_[0].data(); }

  // The ids of a rank, ascending.
  const std::vector<int64_t>& IdsOf(size_t table, int rank) const {
    return ids_[table][static_cast<size_t>(rank)];
  }
  // The ids that any rank has.
  std::vector<int64_t> UnitedIds(size_t table) const;

 private:
  bool IsAbsent(int rank) const;
  std::vector<int64_t> DrawIds(size_t table, int rank) const;
  double Expected(size_t table, int64_t id, int64_t column) const;
  Status Allocate(const RankCounts& rows, std::vector<void*>* outputs);

  const int rank_, size_;
  Batch batch_;
  const std::vector<SparseTable> tables_;
  const std::vector<int> absent_;
  std::vector<std::vector<std::vector<int64_t>>> ids_;  // of [table][rank]
  std::vector<std::vector<char>> in_, in_ids_, out_, out_ids_;
  BatchId id_ = 0;
  bool done_ = false;
  int allocated_ = 0;
  Status status_ = Internal("not done");
  Status allocate_error_;
  std::function<void()> on_allocate_;
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_SPARSE_CALL_H_
