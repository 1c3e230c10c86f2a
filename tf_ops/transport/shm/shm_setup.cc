// SPDX-License-Identifier: Apache-2.0
// Has the ranks of each host share a segment, or none on any.
#include "transport/shm/shm_setup.h"

#include <string>
#include <utility>
#include <vector>

#include "core/log.h"
#include "transport/shm/shm_host.h"
#include "transport/shm/shm_segment.h"

namespace hvd {
namespace {

using Strings = std::vector<std::string>;

// The first rank's error, or the one that all ranks have; "" means well.
std::string FirstError(const Strings& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) {
      return "rank " + std::to_string(rank) + ": " + errors[rank];
    }
  }
  return "";
}

// The ranks of each host attach to what the first of them makes with `create`.
// Ok with null everywhere, and the reason in `refusal`, when one of the job's
// cannot.
Result<std::shared_ptr<ShmSegment>> Share(
    Backend* base, size_t bytes,
    Result<std::shared_ptr<ShmSegment>> (*create)(size_t bytes),
    std::string* refusal) {
  const bool creates = base->topology().local_rank == 0;
  std::shared_ptr<ShmSegment> segment;
  std::string error;
  const auto take = [&](Result<std::shared_ptr<ShmSegment>> result) {
    if (result.ok()) segment = result.value();
    error = result.status().message();
  };
  if (creates) take(create(bytes));
  Result<Strings> names = base->Exchange(segment ? segment->name() : "");
  if (!names.ok()) return names.status();
  const std::string& name = names.value()[base->topology().local_ranks[0]];
  if (!creates && !name.empty()) take(ShmSegment::Attach(name, bytes));
  Result<Strings> errors = base->Exchange(error);
  if (!errors.ok()) return errors.status();
  if (segment) segment->Unlink();
  *refusal = FirstError(errors.value());
  if (!refusal->empty()) segment = nullptr;
  return segment;
}

Status CheckAlike(const Strings& values) {
  for (size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] == values[0]) continue;
    return InvalidArgument("HVD_SHM, HVD_SHM_BYTES, HVD_SHM_CHUNK_BYTES are " +
                           values[0] + " on rank 0 and " + values[rank] +
                           " on rank " + std::to_string(rank) +
                           "; give every rank the same.");
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Backend>> AddSharedMemory(
    std::unique_ptr<WireBackend> base, const Options& options,
    const ProcessSets& process_sets) {
  Result<Strings> knobs = base->Exchange(
      std::to_string(options.shm) + ", " + std::to_string(options.shm_bytes) +
      ", " + std::to_string(options.shm_chunk_bytes));
  if (!knobs.ok()) return knobs.status();
  HVD_RETURN_IF_ERROR(CheckAlike(knobs.value()));
  if (!options.shm) return std::unique_ptr<Backend>(std::move(base));
  const int ranks = base->topology().local_size;
  const size_t arena_bytes =
      ShmArenaBytes(options, base->topology(), process_sets);
  std::string refusal;
  const size_t bytes = ShmHost::BytesFor(ranks, arena_bytes);
  auto segment = Share(base.get(), bytes, ShmSegment::Create, &refusal);
  if (segment.ok() && segment.value() == nullptr) {
    // Ranks in containers of their own do not see each other in /proc. All of
    // them have let go of the first segment before there is another one: the
    // host may have memory for one alone.
    const Result<Strings> gone = base->Exchange("");
    if (!gone.ok()) return gone.status();
    segment = Share(base.get(), bytes, ShmSegment::CreateNamed, &refusal);
  }
  if (!segment.ok()) return segment.status();
  if (segment.value() == nullptr) {
    if (base->topology().rank == 0) {
      Log(LogLevel::kWarning,
          "No shared memory (" + refusal +
              "): data goes over MPI, which is slower. Where that is to be so, "
              "set HVD_SHM=0.");
    }
    return std::unique_ptr<Backend>(std::move(base));
  }
  return NewShmBackend(
      std::move(base),
      std::make_shared<ShmHost>(segment.value(), ranks, arena_bytes), options);
}

}  // namespace hvd
