// SPDX-License-Identifier: Apache-2.0
// Says what poison means, with the rank that it comes from.
#include "transport/collectives/poison_words.h"

#include <string>
#include <utility>

#include "cpu/finite.h"

namespace hvd {
namespace {

// Segments with the same name are the inputs of one call.
Status ExplainNotFinite(int job_rank, const Batch& batch, int segment) {
  const std::string* const tensor = batch.segments[segment].name;
  int first = segment, end = segment + 1;
  const auto belongs = [&](int s) {
    return tensor != nullptr && batch.segments[s].name == tensor;
  };
  while (first > 0 && belongs(first - 1)) --first;
  while (end < static_cast<int>(batch.segments.size()) && belongs(end)) ++end;
  return NotFinite(job_rank, tensor == nullptr ? "" : *tensor, segment - first,
                   end - first);
}

}  // namespace

Status ExplainPoison(const Poison& poison, const Batch& batch,
                     const std::vector<int>& job_ranks, int rank) {
  const int job_rank = job_ranks[poison.origin];
  const std::string name = "rank " + std::to_string(job_rank);
  const auto failure = [&](StatusCode code, std::string text, CauseKind kind) {
    return Status(code, name + std::move(text), {kind, job_rank, ""});
  };
  if (poison.segment >= 0) {
    return ExplainNotFinite(job_rank, batch, poison.segment);
  }
  switch (poison.code) {
    case StatusCode::kCancelled:
      // Only the rank whose own step was aborted gets kCancelled.
      return failure(StatusCode::kPeerLost,
                     " aborted its step while the data was on the way.",
                     CauseKind::kStepAborted);
    case StatusCode::kPeerLost:
      return failure(StatusCode::kPeerLost,
                     " was shut down or lost a peer while the data was on the "
                     "way.",
                     CauseKind::kRankDroppedOut);
    case StatusCode::kResourceExhausted:
      return failure(poison.code, " had no memory for the result.",
                     CauseKind::kCallFailed);
    case StatusCode::kInvalidArgument:
    case StatusCode::kFailedPrecondition:
      return failure(poison.code, " found its call invalid.",
                     CauseKind::kCallFailed);
    case StatusCode::kOk:
    case StatusCode::kInternal:
      break;
  }
  if (poison.origin == rank) {
    return Internal("bytes from a peer make no sense on " + name + ".");
  }
  return failure(StatusCode::kInternal, " met an internal error; see its log.",
                 CauseKind::kRankFailed);
}

}  // namespace hvd
