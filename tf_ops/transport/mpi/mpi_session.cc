// SPDX-License-Identifier: Apache-2.0
// Initialises MPI, chooses the job's ranks, and finds which of them share a
// host.
#include "transport/mpi/mpi_session.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <numeric>
#include <string>
#include <utility>

#include "core/log.h"
#include "transport/launch_size.h"
#include "transport/mpi/mpi_process.h"
#include "transport/mpi/mpi_status.h"
#include "transport/topology.h"

namespace hvd {
namespace {

// A process has one MPI, so one flag says whether this file has initialised it.
std::atomic<bool> initialised_here{false};

// The tag for MPI_Comm_create_group. Any will do, because it has a tag space of
// its own.
constexpr int kGroupTag = 7;

const char* LevelName(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
  }
  return "MPI_THREAD_MULTIPLE";
}

std::string LibraryName() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  // Later lines and words say how the library was built.
  const std::string line(text, std::find_if(text, text + length, [](char c) {
                           return c == ',' || c == '\n';
                         }));
  std::string name;
  for (char c : line) {
    const bool blank = c == ' ' || c == '\t';
    if (!blank) name += c;
    if (blank && !name.empty() && name.back() != ' ') name += ' ';
  }
  return "the MPI library (" + name + ")";
}

const char* GetEnvironment(const char* name) { return std::getenv(name); }

Status Initialise() {
  int initialised = 0, provided = MPI_THREAD_SINGLE;
  if (MpiIsFinalised()) {
    return FailedPrecondition(
        "MPI was finalised in this process and cannot be started again; call "
        "hvd.init() before whatever calls MPI_Finalize.");
  }
  MPI_Initialized(&initialised);
  if (initialised) {
    HVD_MPI_TRY(MPI_Query_thread, &provided);
    if (provided >= MPI_THREAD_MULTIPLE) return Status::Ok();
    return FailedPrecondition(
        std::string("MPI was initialised with ") + LevelName(provided) +
        " before hvd.init(), which needs MPI_THREAD_MULTIPLE. With mpi4py, set "
        "mpi4py.rc.thread_level = \"multiple\" before importing mpi4py.MPI.");
  }
  HVD_RETURN_IF_ERROR(CheckBeforeStart(GetEnvironment, LibraryName()));
  const std::string warning = LauncherWarning(GetEnvironment, LibraryName());
  if (!warning.empty()) Log(LogLevel::kWarning, warning);
  HVD_MPI_TRY(MPI_Init_thread, nullptr, nullptr, MPI_THREAD_MULTIPLE,
              &provided);
  initialised_here = true;
  if (provided >= MPI_THREAD_MULTIPLE) return Status::Ok();
  return FailedPrecondition(LibraryName() + " provides only " +
                            LevelName(provided) +
                            "; hvd_tf needs one built with support for "
                            "MPI_THREAD_MULTIPLE.");
}

std::string ToText(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks)
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "[" + text + "]";
}

Status CheckRanks(const std::vector<int>& ranks, int rank, int size) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return InvalidArgument("init was given a rank twice: " + ToText(ranks) +
                           ".");
  }
  if (sorted.front() < 0 || sorted.back() >= size) {
    return InvalidArgument("init was given the ranks " + ToText(ranks) +
                           "; MPI_COMM_WORLD has the ranks 0 to " +
                           std::to_string(size - 1) + ".");
  }
  if (!std::binary_search(sorted.begin(), sorted.end(), rank)) {
    return InvalidArgument("init was given the ranks " + ToText(ranks) +
                           " on rank " + std::to_string(rank) +
                           ", which is not among them; only members may call "
                           "it.");
  }
  return Status::Ok();
}

// A new communicator of these ranks of MPI_COMM_WORLD, in this order.
Status CreateSubset(const std::vector<int>& ranks, MPI_Comm* subset) {
  MPI_Group world, group;
  HVD_MPI_TRY(MPI_Comm_group, MPI_COMM_WORLD, &world);
  HVD_MPI_TRY(MPI_Group_incl, world, static_cast<int>(ranks.size()),
              ranks.data(), &group);
  HVD_MPI_TRY(MPI_Comm_create_group, MPI_COMM_WORLD, group, kGroupTag, subset);
  HVD_MPI_TRY(MPI_Group_free, &group);
  HVD_MPI_TRY(MPI_Group_free, &world);
  return Status::Ok();
}

Status TakeUserCommunicator(int handle, MPI_Comm* comm) {
  *comm = MPI_Comm_f2c(static_cast<MPI_Fint>(handle));
  int is_inter = 0;
  if (*comm != MPI_COMM_NULL) {
    HVD_MPI_TRY(MPI_Comm_test_inter, *comm, &is_inter);
  }
  if (*comm == MPI_COMM_NULL || is_inter) {
    return InvalidArgument(
        std::string("init was given a communicator that is ") +
        (is_inter ? "an intercommunicator" : "MPI_COMM_NULL") +
        "; give it an intracommunicator that this rank belongs to.");
  }
  return Status::Ok();
}

}  // namespace

Result<std::shared_ptr<MpiSession>> MpiSession::Open(const JobArgs& args) {
  HVD_RETURN_IF_ERROR(Initialise());
  int rank = 0, size = 1;
  HVD_MPI_TRY(MPI_Comm_rank, MPI_COMM_WORLD, &rank);
  HVD_MPI_TRY(MPI_Comm_size, MPI_COMM_WORLD, &size);
  HVD_RETURN_IF_ERROR(CheckLaunchSize(GetEnvironment, size, LibraryName()));
  const std::string alone = size == 1 ? AloneWarning(GetEnvironment) : "";
  if (!alone.empty()) Log(LogLevel::kWarning, alone);
  MPI_Comm job = MPI_COMM_WORLD;
  const bool subset = !args.mpi_comm.has_value() && !args.world_ranks.empty();
  if (args.mpi_comm.has_value()) {
    HVD_RETURN_IF_ERROR(TakeUserCommunicator(*args.mpi_comm, &job));
  } else if (subset) {
    HVD_RETURN_IF_ERROR(CheckRanks(args.world_ranks, rank, size));
    HVD_RETURN_IF_ERROR(CreateSubset(args.world_ranks, &job));
  }
  std::shared_ptr<MpiSession> session(new MpiSession());
  HVD_RETURN_IF_ERROR(session->Duplicate(job));
  if (subset) HVD_MPI_TRY(MPI_Comm_free, &job);
  return session;
}

Status MpiSession::Duplicate(MPI_Comm of) {
  HVD_MPI_TRY(MPI_Comm_dup, of, &data_);
  HVD_MPI_TRY(MPI_Comm_dup, of, &control_);
  HVD_MPI_TRY(MPI_Comm_set_errhandler, data_, MPI_ERRORS_RETURN);
  HVD_MPI_TRY(MPI_Comm_set_errhandler, control_, MPI_ERRORS_RETURN);
  HVD_MPI_TRY(MPI_Comm_rank, data_, &rank_);
  HVD_MPI_TRY(MPI_Comm_size, data_, &size_);
  int* limit = nullptr;
  int found = 0;
  // No other communicator need have it.
  HVD_MPI_TRY(MPI_Comm_get_attr, MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found);
  // The standard guarantees at least 32767.
  tag_limit_ = found ? *limit : 32767;
  return Status::Ok();
}

MpiSession::~MpiSession() {
  if (!MpiIsFinalised()) Sweep();
  for (MpiOrphans& orphans : orphans_) {
    // MPI may still read or write this memory, when a late or frozen peer goes
    // on. So it must never be used for anything else, and is not freed.
    (void)std::make_unique<std::shared_ptr<const void>>(
        std::move(orphans.memory))
        .release();
  }
}

void MpiSession::Adopt(MpiOrphans orphans) {
  orphans_.push_back(std::move(orphans));
  if (!MpiIsFinalised()) Sweep();
}

void MpiSession::Sweep() {
  orphans_.remove_if([](MpiOrphans& orphans) {
    int done = 0;
    const int code =
        MPI_Testall(static_cast<int>(orphans.requests.size()),
                    orphans.requests.data(), &done, MPI_STATUSES_IGNORE);
    return code == MPI_SUCCESS && done;
  });
}

Status MpiSession::GatherStrings(const std::string& mine,
                                 std::vector<std::string>* all) {
  const int length = static_cast<int>(mine.size());
  std::vector<int> lengths(size_), starts(size_);
  HVD_MPI_TRY(MPI_Allgather, &length, 1, MPI_INT, lengths.data(), 1, MPI_INT,
              control_);
  std::exclusive_scan(lengths.begin(), lengths.end(), starts.begin(), 0);
  std::string text(starts.back() + lengths.back(), '\0');
  HVD_MPI_TRY(MPI_Allgatherv, mine.data(), length, MPI_CHAR, text.data(),
              lengths.data(), starts.data(), MPI_CHAR, control_);
  for (int rank = 0; rank < size_; ++rank) {
    all->push_back(text.substr(starts[rank], lengths[rank]));
  }
  return Status::Ok();
}

Status MpiSession::CheckAlike(const std::string& name,
                              const std::string& value) {
  std::vector<std::string> values;
  HVD_RETURN_IF_ERROR(GatherStrings(value, &values));
  for (int rank = 1; rank < size_; ++rank) {
    if (values[rank] == values[0]) continue;
    return InvalidArgument(name + " is " + values[0] + " on rank 0 and " +
                           values[rank] + " on rank " + std::to_string(rank) +
                           "; give every rank the same.");
  }
  return Status::Ok();
}

Status MpiSession::FindHostLeaders(std::vector<int>* leaders) {
  MPI_Comm host = MPI_COMM_NULL;
  HVD_MPI_TRY(MPI_Comm_split_type, control_, MPI_COMM_TYPE_SHARED, rank_,
              MPI_INFO_NULL, &host);
  int leader = rank_;
  HVD_MPI_TRY(MPI_Bcast, &leader, 1, MPI_INT, 0, host);
  HVD_MPI_TRY(MPI_Comm_free, &host);
  leaders->resize(size_);
  HVD_MPI_TRY(MPI_Allgather, &leader, 1, MPI_INT, leaders->data(), 1, MPI_INT,
              control_);
  return Status::Ok();
}

Result<Topology> MpiSession::MakeTopology(const std::string& host_id) {
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  HVD_MPI_TRY(MPI_Get_processor_name, name, &length);
  std::vector<std::string> hosts, ids;
  HVD_RETURN_IF_ERROR(GatherStrings(std::string(name, length), &hosts));
  HVD_RETURN_IF_ERROR(GatherStrings(host_id, &ids));
  std::vector<std::string> keys;
  const bool named = std::any_of(ids.begin(), ids.end(),
                                 [](const auto& id) { return !id.empty(); });
  if (named) {
    for (int rank = 0; rank < size_; ++rank) {
      keys.push_back(ids[rank].empty() ? "host " + hosts[rank]
                                       : "id " + ids[rank]);
    }
  } else {
    std::vector<int> leaders;
    HVD_RETURN_IF_ERROR(FindHostLeaders(&leaders));
    for (int leader : leaders) keys.push_back(std::to_string(leader));
  }
  Topology topology = hvd::MakeTopology(rank_, keys);
  topology.hosts = std::move(hosts);
  return topology;
}

void FinalizeMpi() {
  if (initialised_here.exchange(false) && !MpiIsFinalised()) MPI_Finalize();
}

}  // namespace hvd
