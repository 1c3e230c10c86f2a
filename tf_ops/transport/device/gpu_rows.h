// SPDX-License-Identifier: Apache-2.0
// GpuRows: a sparse allreduce of GPUs. Ids travel between the hosts, and
// rows from GPU to GPU, where they are added up.
//
// All GPUs get all rows. A GPU adds them up in rank order, as a host does:
// the results have the same bits. Where a rank has many rows of one id, several
// threads of its GPU add them up, so there these bits may differ from those of
// a host.
#ifndef HVD_TRANSPORT_DEVICE_GPU_ROWS_H_
#define HVD_TRANSPORT_DEVICE_GPU_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/rows.h"
#include "core/status.h"
#include "core/transport.h"
#include "transport/collectives/sparse_plan.h"
#include "transport/device/communicator_calls.h"
#include "transport/device/copy_table.h"
#include "transport/device/device.h"
#include "transport/device/row_sums.h"
#include "transport/device/row_terms.h"

namespace hvd {

// Sums that a GPU forms at a time.
struct RowWork {
  RowSumOperation operation;
  std::vector<RowSums> rows;
};

// One batch's. First what this rank tells its peers is sent, then Read, then
// Place, and then the rest.
class GpuRows {
 public:
  // The batch outlives it. `can_take_part`: this rank's ids are there.
  GpuRows(const Batch* batch, int rank, int size, bool can_take_part);

  // --- Ids ---
  // This rank's message: how many rows it has of each table, and their ids.
  const std::vector<std::byte>& sent() const { return sent_; }
  // The bytes of each rank's message. Empty: nobody knows.
  std::vector<int64_t> MessageBytes() const;
  // Where the ranks' messages go, one behind the other. They have so many
  // bytes.
  void* Receive(const std::vector<int64_t>& bytes);
  // All have come. Not Ok: they make no sense. All ranks say the same.
  Status Read();

  // --- Memory ---
  // Rows of the results, as Batch::allocate gets them.
  RankCounts ResultRows() const;
  // Bytes of the GPU's memory that the rest needs, and of pinned memory.
  int64_t gpu_bytes() const { return terms_end_; }
  int64_t pinned_bytes() const { return terms_end_ - rows_end_; }
  // Two outputs for each segment. What goes to null is dropped. Writes the ids
  // of the results, and what the GPU must know. `gpu` is aligned to 64 bytes.
  void Place(void* gpu, void* pinned, const std::vector<void*>& outputs);

  // --- The GPU's work, in this order ---
  // What it must know.
  const std::vector<CopySegment>& terms() const { return terms_; }
  // This rank's rows: those that are as they were given, and sums of those that
  // have one id.
  const std::vector<CopySegment>& copies() const { return copies_; }
  CopyOperation copy_operation() const;
  const std::vector<RowWork>& own_sums() const { return own_sums_; }
  // Rows of all ranks go to all.
  const CommunicatorCalls& calls() const { return calls_; }
  // The results.
  const RowWork& sums() const { return sums_; }

 private:
  // Terms, and where they are in the GPU's memory.
  struct PlacedTerms {
    RowTerms terms;
    int64_t begins_at = 0, sources_at = 0;
  };
  // What belongs to a table, and where it is in the GPU's memory.
  struct Table {
    // The first row of each rank, counted from that of rank 0.
    std::vector<int64_t> first_rows;
    // Each rank has room for so many, so that it is one call of the
    // communicator. 0: each has room for its own, and has a call.
    int64_t even_rows = 0;
    int64_t rows_at = 0;
    PlacedTerms result;
    // If this rank has several rows of an id. If some of these are many, they
    // are added up in parts first.
    PlacedTerms own, parts;
    int64_t parts_at = 0;
  };

  Status FindTables();
  void FindOwnTerms(size_t s);
  void PlaceTerms(PlacedTerms* placed);
  // Work for rows of the table `s`. The terms are written to pinned memory.
  RowSums SumsOf(const PlacedTerms& placed, const void* from, void* to,
                 size_t s, std::byte* gpu, std::byte* pinned) const;
  // Adds the work of a table.
  void AddOwn(size_t s, std::byte* gpu, std::byte* pinned);
  void AddCalls(size_t s, std::byte* gpu);
  int64_t CountOf(size_t s, int rank) const;
  int64_t RowBytes(size_t s) const;

  const Batch* const batch_;
  const int rank_, size_;
  std::vector<std::byte> sent_, received_;
  std::vector<int64_t> received_bytes_;
  std::shared_ptr<const SparsePlan> plan_;
  std::vector<Table> tables_;  // by segment
  int64_t rows_end_ = 0, terms_end_ = 0;
  std::vector<CopySegment> terms_, copies_;
  std::vector<RowWork> own_sums_;
  RowWork sums_;
  CommunicatorCalls calls_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_GPU_ROWS_H_
