// SPDX-License-Identifier: Apache-2.0
// Sparse allreduce: rows with ids are added up, for each id of any rank.
//
// First the ranks tell each other their ids. Then all know which rows the
// result has, and how many values every rank will send for each of them. So the
// outputs are allocated once, as large as they have to be, and values are added
// up in rank order where they arrive. The phases are these:
//
// 1. How many rows each rank has, where the log does not say it.
// 2. The ids, as few bytes as they need (id_code.h).
// 3. The values of tensors that every rank sends to all.
// 4. The values of tensors whose rows have owners.
//
// 3 or 4 is left out if it has no tensor. All tensors of a batch share the
// phases. A rank that has joined has no rows.
#include <memory>
#include <utility>
#include <vector>

#include "core/rows.h"
#include "cpu/row_groups.h"
#include "transport/collectives/batch_check.h"
#include "transport/collectives/id_lists.h"
#include "transport/collectives/sizes_exchange.h"
#include "transport/collectives/sparse_phase.h"

namespace hvd {
namespace {

// The ids of all ranks, in the transport's own memory. So a detached batch
// still learns what its peers expect of it. Owner: the phase's Next.
class IdExchange {
 public:
  // `rows` of [segment][rank].
  IdExchange(const BatchWork& work, const RankCounts& rows);
  IdExchange(const IdExchange&) = delete;
  IdExchange& operator=(const IdExchange&) = delete;

  // How many bytes all ranks' ids have.
  int64_t bytes() const { return static_cast<int64_t>(received_.size()); }
  std::unique_ptr<Phase> NewPhase(BatchWork* work, Phase::Next next);
  // All ranks get the same.
  Result<std::shared_ptr<const SparsePlan>> Plan() const {
    return lists_.Plan(received_.data());
  }

 private:
  const IdLists lists_;
  std::vector<std::byte> sent_, received_;
};

IdExchange::IdExchange(const BatchWork& work, const RankCounts& rows)
    : lists_(work.batch(), rows),
      sent_(static_cast<size_t>(lists_.BytesOf(work.rank()))),
      received_(static_cast<size_t>(lists_.bytes())) {
  if (!work.is_detached()) {
    lists_.Encode(work.batch(), work.rank(), sent_.data());
  }
}

std::unique_ptr<Phase> IdExchange::NewPhase(BatchWork* work, Phase::Next next) {
  Operands operands;
  Segment& ids = operands.segments.emplace_back();
  ids.in = sent_.data();
  ids.out = received_.data();
  ids.count = static_cast<int64_t>(sent_.size());
  operands.is_callers = false;
  std::vector<SegmentMap> outs;
  int64_t first = 0;
  for (int rank = 0; rank < work->size(); ++rank) {
    outs.push_back(SegmentMap({lists_.BytesOf(rank)}, {first}));
    first += lists_.BytesOf(rank);
  }
  SegmentMap in({ids.count});
  return NewAllgatherPhase(work, std::move(operands), std::move(in),
                           std::move(outs), std::move(next));
}

void WriteIds(const Batch& batch, const SparsePlan& plan) {
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    void* const out = batch.segments[i].out_ids;
    if (out != nullptr) WriteIds(batch.id_dtype, plan.united(i), out);
  }
}

// The first phase of the values. The outputs are asked for.
std::unique_ptr<Phase> NewValuesPhase(
    BatchWork* work, const std::shared_ptr<const SparsePlan>& plan) {
  RankCounts rows;
  std::vector<size_t> gathered, owned;
  for (size_t i = 0; i < plan->segment_count(); ++i) {
    rows.push_back({plan->united(i).size()});
    const SparseAlgo algo = work->batch().sparse_algo;
    const bool has_owners =
        algo == SparseAlgo::kReduceScatter ||
        (algo != SparseAlgo::kAllgather && plan->PrefersOwners(i));
    (has_owners ? owned : gathered).push_back(i);
  }
  work->Allocate(rows);
  if (!work->is_detached()) WriteIds(work->batch(), *plan);
  if (owned.empty()) {
    return NewSparseGatherPhase(work, plan, gathered, {});
  }
  const auto with_owners = [work, plan, owned](const Phase&) {
    return NewSparseOwnersPhase(work, plan, owned, {});
  };
  if (gathered.empty()) {
    return NewSparseOwnersPhase(work, plan, owned, {});
  }
  return NewSparseGatherPhase(work, plan, gathered, with_owners);
}

std::unique_ptr<Phase> NewIdsPhase(BatchWork* work, const RankCounts& rows) {
  const auto ids = std::make_shared<IdExchange>(*work, rows);
  const auto then = [work, ids]() -> std::unique_ptr<Phase> {
    const Result<std::shared_ptr<const SparsePlan>> plan = ids->Plan();
    if (plan.ok()) return NewValuesPhase(work, plan.value());
    work->FailHere(plan.status());
    return nullptr;
  };
  // Where every rank has all rows, there is nothing to tell.
  if (ids->bytes() == 0) return then();
  return ids->NewPhase(work, [then](const Phase& finished) {
    return finished.is_poisoned() ? nullptr : then();
  });
}

}  // namespace

std::unique_ptr<Phase> NewSparseAllreduceFirstPhase(BatchWork* work) {
  const Batch& batch = work->batch();
  if (!batch.rows.empty()) return NewIdsPhase(work, batch.rows);
  return NewRowCountsPhase(
      work, [work](const RankCounts& rows) -> std::unique_ptr<Phase> {
        const Status can_unite = CheckUnions(work->batch(), rows);
        if (can_unite.ok()) return NewIdsPhase(work, rows);
        work->FailHere(can_unite);
        return nullptr;
      });
}

}  // namespace hvd
