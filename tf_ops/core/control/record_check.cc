// SPDX-License-Identifier: Apache-2.0
// Looks at each tensor of an agreed batch before memory depends on it.
#include "core/control/record_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/control/fusion.h"
#include "core/quoted.h"
#include "core/types.h"
#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

Status MakesNoSense(const Request& request, const std::string& why) {
  return Internal("the log agrees on " + Quoted(request.key.name) + " with " +
                  why + "; do all ranks run the same build of hvd_tf?");
}

// Far more than any host has. Sums over ranks and tensors stay within an int64.
constexpr int64_t kMostBytes = int64_t{1} << 48;

// The bytes of all ranks' rows. False: more than an int64 can hold.
bool GatheredBytes(const Signature& signature, const Shape& shape,
                   const std::vector<int64_t>& first_dims, int64_t* bytes) {
  int64_t row_bytes = static_cast<int64_t>(SizeOf(signature.dtype));
  for (size_t i = 1; i < shape.size(); ++i) {
    if (__builtin_mul_overflow(row_bytes, shape[i], &row_bytes)) return false;
  }
  int64_t rows = 0;
  for (int64_t dim : first_dims) {
    if (__builtin_add_overflow(rows, dim, &rows)) return false;
  }
  return !__builtin_mul_overflow(rows, row_bytes, bytes);
}

// `first_dims` has dimension 0 of [shape][rank].
Status CheckFirstDims(const Request& request,
                      const std::vector<std::vector<int64_t>>& first_dims,
                      int rank, int size) {
  const std::vector<Shape>& shapes = request.signature.shapes;
  const bool tells_sizes = SizesInLog(request.signature.verb, size);
  if (first_dims.size() != (tells_sizes ? shapes.size() : 0)) {
    return MakesNoSense(request, std::to_string(first_dims.size()) +
                                     " lists of first dimensions");
  }
  for (size_t i = 0; i < first_dims.size(); ++i) {
    const std::vector<int64_t>& dims = first_dims[i];
    if (dims.size() != static_cast<size_t>(size)) {
      return MakesNoSense(request, std::to_string(dims.size()) +
                                       " first dimensions for " +
                                       std::to_string(size) + " ranks");
    }
    for (int64_t dim : dims) {
      if (dim >= 0) continue;
      return MakesNoSense(request,
                          "a first dimension of " + std::to_string(dim));
    }
    if (dims[static_cast<size_t>(rank)] != shapes[i][0]) {
      return MakesNoSense(request, "a first dimension of " +
                                       std::to_string(dims[rank]) +
                                       " for this rank, which has " +
                                       std::to_string(shapes[i][0]));
    }
    int64_t bytes = 0;
    if (!GatheredBytes(request.signature, shapes[i], dims, &bytes)) {
      return MakesNoSense(request, "more rows than memory can have");
    }
  }
  return Status::Ok();
}

// What the leader refuses, whatever the sizes are.
Status CheckCall(const Request& request, const std::vector<int>& absent) {
  if (!request.error.ok()) {
    return MakesNoSense(request, "this rank, which has refused it");
  }
  const Signature& signature = request.signature;
  const VerbRules& rules = RulesOf(signature.verb);
  const bool has_scalar =
      std::any_of(signature.shapes.begin(), signature.shapes.end(),
                  [](const Shape& shape) { return shape.empty(); });
  if (has_scalar && rules.scalar_lacks != nullptr) {
    return MakesNoSense(request, "a scalar");
  }
  for (int rank : absent) {
    if (rules.absent_rank_is_missed == nullptr) break;
    if (!rules.absent_rank_is_missed(signature, rank)) continue;
    return MakesNoSense(request, "no tensor of rank " + std::to_string(rank));
  }
  return Status::Ok();
}

}  // namespace

bool FitsMemory(const Signature& signature, const Shape& first_dims) {
  int64_t total = 0;
  for (size_t i = 0; i < signature.shapes.size(); ++i) {
    const Shape& shape = signature.shapes[i];
    auto bytes = static_cast<int64_t>(SizeOf(signature.dtype));
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const int64_t dim = axis == 0 ? first_dims[i] : shape[axis];
      // What comes of an empty tensor is not empty for each axis.
      const int64_t factor = std::max(dim, int64_t{1});
      if (dim < 0 || __builtin_mul_overflow(bytes, factor, &bytes)) {
        return false;
      }
    }
    if (__builtin_add_overflow(total, bytes, &total)) return false;
  }
  return total <= kMostBytes;
}

bool FitsMemory(const Signature& signature) {
  return FitsMemory(signature, FirstDims(signature));
}

Status CheckBatch(const ReadyBatch& batch, int rank, int size) {
  if (batch.tensors.empty()) {
    return Internal("the log agrees on a batch of nothing.");
  }
  const Request& first = batch.tensors[0].entry->request;
  for (size_t i = 0; i < batch.tensors.size(); ++i) {
    const Request& request = batch.tensors[i].entry->request;
    HVD_RETURN_IF_ERROR(CheckCall(request, batch.absent));
    if (!MoveAlike(first.signature, request.signature)) {
      return MakesNoSense(request,
                          Quoted(first.key.name) + ", which moves differently");
    }
    HVD_RETURN_IF_ERROR(
        CheckFirstDims(request, batch.first_dims[i], rank, size));
  }
  return Status::Ok();
}

Status CheckAbsent(const AgreedBatch& batch, int size) {
  const std::vector<int>& absent = batch.absent;
  const bool is_list =
      std::is_sorted(absent.begin(), absent.end()) &&
      std::adjacent_find(absent.begin(), absent.end()) == absent.end() &&
      (absent.empty() || (absent.front() >= 0 && absent.back() < size)) &&
      absent.size() < static_cast<size_t>(size);
  if (is_list && 0 <= batch.divisor && batch.divisor <= size) {
    return Status::Ok();
  }
  return Internal(
      "the log agrees on a batch without ranks that make no sense.");
}

Status CheckShapes(const std::string& name, const Signature& signature) {
  const bool needs_rows = RulesOf(signature.verb).first_dim_varies;
  const bool has_scalar =
      std::any_of(signature.shapes.begin(), signature.shapes.end(),
                  [](const Shape& shape) { return shape.empty(); });
  if (FitsMemory(signature) && !(has_scalar && needs_rows)) {
    return Status::Ok();
  }
  return Internal("the log agrees on " + Quoted(name) +
                  " of shapes that make no sense.");
}

Status CheckTuning(const Tuning& tuning, int64_t most_chunk_bytes) {
  if (0 <= tuning.chunk_bytes && tuning.chunk_bytes <= most_chunk_bytes) {
    return Status::Ok();
  }
  return Internal("the log asks for chunks of " +
                  std::to_string(tuning.chunk_bytes) +
                  " bytes; this rank has memory for " +
                  std::to_string(most_chunk_bytes) + ".");
}

}  // namespace hvd
