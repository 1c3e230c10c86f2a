// SPDX-License-Identifier: Apache-2.0
// How MPI is found, joined and left. Runs alone and under mpirun -n N.
//
// MPI starts once in a process, so the first argument says what it starts with:
//   ours       OpenBackend starts it
//   multiple   somebody else has, with all that is needed
//   funneled   somebody else has, with too little
//   finalised  somebody else has, and has ended it
//   outlived   OpenBackend starts it, and it ends before the backend does
#include <mpi.h>

#include <cstdio>
#include <string>

#include "core/options.h"
#include "set_of.h"
#include "transport/backends.h"
#include "transport_contract.h"

namespace hvd {
namespace {

int failures = 0;

void Check(bool holds, const char* what) {
  if (holds) return;
  ++failures;
  std::printf("FAIL %s\n", what);
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Result<std::unique_ptr<Backend>> Open(const JobArgs& args,
                                      const std::string& host_id = "") {
  Options options = Options::Defaults();
  options.host_id = host_id;
  return OpenBackend(args, options);
}

// A collective of the backend's ranks gives the right number.
void CheckWorks(Backend* backend) {
  ContractRank self(backend, 0, Options::Defaults().chunk_bytes);
  auto transport = self.NewTransport();
  CheckSetIsWell(transport.get(), 5000);
}

void CheckTopologies(int rank, int size) {
  auto alone = Open({});
  if (!alone.ok()) return Check(false, alone.status().message().c_str());
  const Topology& here = alone.value()->topology();
  Check(here.rank == rank && here.size == size, "rank and size");
  Check(here.local_size == size && here.cross_size == 1, "one host");
  Check(static_cast<int>(here.hosts.size()) == size && !here.hosts[0].empty(),
        "host names");
  CheckWorks(alone.value().get());

  // The odd ranks on a host with a name, the others on the machine's own.
  auto split = Open({}, rank % 2 ? "odd" : "");
  if (!split.ok()) return Check(false, split.status().message().c_str());
  const Topology& mine = split.value()->topology();
  Check(mine.local_rank == rank / 2, "local rank by host id");
  Check(mine.local_size == (size + (rank % 2 ? 0 : 1)) / 2, "local size");
  Check(mine.cross_rank == rank % 2, "cross rank");
  Check(mine.is_homogeneous == (size % 2 == 0 || size == 1), "homogeneous");
  CheckWorks(split.value().get());
}

// HVD_CHUNK_BYTES of one rank differs from the others'.
void CheckUnequalChunks(int rank, int size) {
  Options options = Options::Defaults();
  options.chunk_bytes = rank == 0 ? 4096 : 65536;
  auto opened = OpenBackend({}, options);
  Check(opened.ok() == (size == 1), "chunks of different sizes");
  Check(opened.ok() || Contains(opened.status().message(),
                                "HVD_CHUNK_BYTES is 4096 on rank 0 and 65536"),
        "a text that names both sizes");
}

void CheckSubsets(int rank, int size) {
  JobArgs ends;
  ends.world_ranks = {size - 1};
  if (size > 1) ends.world_ranks.push_back(0);
  const bool member = rank == 0 || rank == size - 1;
  auto opened = Open(ends);
  Check(opened.ok() == member, "members only");
  if (member && opened.ok()) {
    Check(opened.value()->topology().rank == (rank == size - 1 ? 0 : 1),
          "ranks in the order of the list");
    CheckWorks(opened.value().get());
  } else {
    Check(opened.status().code() == StatusCode::kInvalidArgument &&
              Contains(opened.status().message(),
                       "on rank " + std::to_string(rank) + ","),
          "a caller that is no member");
  }
  JobArgs twice, beyond;
  twice.world_ranks = {0, 0};
  beyond.world_ranks = {0, size};
  Check(Contains(Open(twice).status().message(), "twice: [0, 0]"), "twice");
  Check(Contains(Open(beyond).status().message(),
                 "the ranks 0 to " + std::to_string(size - 1)),
        "beyond the world");
}

void CheckUserCommunicators(int rank, int size) {
  MPI_Comm reversed = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &reversed);
  JobArgs args;
  args.mpi_comm = static_cast<int>(MPI_Comm_c2f(reversed));
  {
    auto opened = Open(args);
    // A duplicate is used: the user may free theirs.
    MPI_Comm_free(&reversed);
    if (!opened.ok()) return Check(false, opened.status().message().c_str());
    Check(opened.value()->topology().rank == size - 1 - rank, "reversed ranks");
    CheckWorks(opened.value().get());
  }
  args.mpi_comm = static_cast<int>(MPI_Comm_c2f(MPI_COMM_NULL));
  Check(Contains(Open(args).status().message(), "MPI_COMM_NULL"), "null");
}

void RunAll() {
  int rank = 0, size = 1;
  Check(Open({}).ok(), "first open");
  Check(MpiThreadsSupported(), "threads");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  CheckTopologies(rank, size);
  CheckUnequalChunks(rank, size);
  CheckSubsets(rank, size);
  CheckUserCommunicators(rank, size);
}

// A backend and what it has on the wire, which MPI's end finds.
struct Survivor {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Transport> transport;
  std::vector<float> data = std::vector<float>(100, 1.0f);
};

void StartWithoutPeers(Survivor* survivor) {
  Options options = Options::Defaults();
  options.shm = false;
  auto opened = OpenBackend({}, options);
  if (!opened.ok()) return Check(false, opened.status().message().c_str());
  survivor->backend = std::move(opened.value());
  const Topology& topology = survivor->backend->topology();
  std::vector<int> ranks;
  for (int rank = 0; rank < topology.size; ++rank) ranks.push_back(rank);
  survivor->transport = std::move(
      survivor->backend->NewTransport(0, SetOf(ranks, topology.rank)).value());
  if (topology.rank != 0) return;
  // The peers never take part: receives stay open.
  Batch batch;
  batch.segments = {{survivor->data.data(), survivor->data.data(),
                     static_cast<int64_t>(survivor->data.size())}};
  survivor->transport->Start(std::move(batch), [](const Status&) {});
  for (int i = 0; i < 10; ++i) survivor->transport->Progress();
  for (int peer = 1; peer < topology.size; ++peer) {
    survivor->backend->channel().Send(peer, Share("nobody reads this"));
  }
}

// OpenBackend refuses, and its text has `part`.
void ExpectRefusal(const std::string& part) {
  auto opened = Open({});
  Check(!opened.ok() && Contains(opened.status().message(), part),
        part.c_str());
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  const std::string start = argc > 1 ? argv[1] : "ours";
  int provided = 0, finalised = 0;
  const bool ours = start == "ours" || start == "outlived";
  if (!ours) {
    MPI_Init_thread(
        &argc, &argv,
        start == "funneled" ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE,
        &provided);
  }
  hvd::Check(!ours || !hvd::MpiThreadsSupported(), "no threads before MPI");
  if (start == "funneled") {
    hvd::ExpectRefusal("MPI_THREAD_FUNNELED");
    hvd::ExpectRefusal("mpi4py.rc.thread_level = \"multiple\"");
  } else if (start == "finalised") {
    MPI_Finalize();
    hvd::ExpectRefusal("MPI was finalised in this process");
    hvd::Check(!hvd::MpiThreadsSupported(), "no threads after MPI");
  } else if (start == "outlived") {
    hvd::Survivor survivor;
    hvd::StartWithoutPeers(&survivor);
    MPI_Finalize();
    // Now what is left goes, and MPI must not be called.
    survivor.transport.reset();
    survivor.backend.reset();
  } else {
    hvd::RunAll();
  }
  hvd::failures += hvd::TakeFailures();
  // Ends what OpenBackend started, and nothing else.
  hvd::FinalizeBackends();
  hvd::FinalizeBackends();
  MPI_Finalized(&finalised);
  hvd::Check(finalised == (ours || start == "finalised"), "who finalises");
  if (!finalised) MPI_Finalize();
  return hvd::failures == 0 ? 0 : 1;
}
