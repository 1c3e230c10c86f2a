// SPDX-License-Identifier: Apache-2.0
// Local and cross ranks, and sizes that launchers announce.
#include "transport/topology.h"

#include <map>
#include <string>

#include "core/host_map.h"
#include "harness.h"
#include "transport/launch_size.h"

namespace hvd {
namespace {

TEST(one_host) {
  const Topology mine = MakeTopology(2, {"a", "a", "a"});
  EXPECT_EQ(mine.rank, 2);
  EXPECT_EQ(mine.size, 3);
  EXPECT_EQ(mine.local_rank, 2);
  EXPECT_EQ(mine.local_size, 3);
  EXPECT_EQ(mine.cross_rank, 0);
  EXPECT_EQ(mine.cross_size, 1);
  EXPECT_TRUE(mine.is_homogeneous);
}

TEST(ranks_dealt_out_over_hosts) {
  const std::vector<std::string> hosts = {"b", "a", "b", "a"};
  const int local[] = {0, 0, 1, 1}, cross[] = {0, 1, 0, 1};
  for (int rank = 0; rank < 4; ++rank) {
    const Topology mine = MakeTopology(rank, hosts);
    EXPECT_EQ(mine.local_rank, local[rank]);
    EXPECT_EQ(mine.local_size, 2);
    EXPECT_EQ(mine.cross_rank, cross[rank]);
    EXPECT_EQ(mine.cross_size, 2);
    EXPECT_TRUE(mine.is_homogeneous);
    EXPECT_TRUE(mine.host_of == std::vector<int>({0, 1, 0, 1}));
  }
}

TEST(hosts_of_a_set) {
  const HostMap map = MakeHostMap({7, 3, 7, 9, 3, 7});
  EXPECT_EQ(map.host_count(), 3);
  EXPECT_TRUE(map.ranks[0] == std::vector<int>({0, 2, 5}));
  EXPECT_TRUE(map.ranks[1] == std::vector<int>({1, 4}));
  EXPECT_TRUE(map.ranks[2] == std::vector<int>({3}));
  EXPECT_TRUE(map.host == std::vector<int>({0, 1, 0, 2, 1, 0}));
  EXPECT_TRUE(map.place == std::vector<int>({0, 0, 1, 0, 1, 2}));
  EXPECT_EQ(map.smallest_host(), 1);
  EXPECT_TRUE(map.has_two_levels());
}

TEST(sets_of_one_level) {
  for (int size : {1, 2, 5}) {
    EXPECT_FALSE(OneHost(size).has_two_levels());
    EXPECT_FALSE(EachAlone(size).has_two_levels());
    EXPECT_EQ(OneHost(size).smallest_host(), size);
    EXPECT_EQ(EachAlone(size).smallest_host(), 1);
  }
}

TEST(hosts_of_different_sizes) {
  const std::vector<std::string> hosts = {"a", "a", "b", "a", "b"};
  const int local[] = {0, 1, 0, 2, 1}, cross[] = {0, 0, 1, 0, 1};
  const int cross_size[] = {2, 2, 2, 1, 2};
  for (int rank = 0; rank < 5; ++rank) {
    const Topology mine = MakeTopology(rank, hosts);
    EXPECT_EQ(mine.local_rank, local[rank]);
    EXPECT_EQ(mine.local_size, hosts[rank] == "a" ? 3 : 2);
    EXPECT_EQ(mine.cross_rank, cross[rank]);
    EXPECT_EQ(mine.cross_size, cross_size[rank]);
    EXPECT_FALSE(mine.is_homogeneous);
  }
}

using Variables = std::map<std::string, std::string>;

GetVariable Reader(const Variables& variables) {
  return [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

std::string Refusal(const Variables& variables, int size) {
  return CheckLaunchSize(Reader(variables), size, "libfoo").message();
}

TEST(launchers_that_agree) {
  EXPECT_EQ(Refusal({}, 1), "");
  EXPECT_EQ(Refusal({}, 4), "");
  EXPECT_EQ(Refusal({{"OMPI_COMM_WORLD_SIZE", "4"}}, 4), "");
  EXPECT_EQ(Refusal({{"PMI_SIZE", "1"}}, 1), "");
  EXPECT_EQ(Refusal({{"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}}, 4), "");
  // A job within another one's environment.
  EXPECT_EQ(Refusal({{"OMPI_COMM_WORLD_SIZE", "4"}, {"PMI_SIZE", "2"}}, 2), "");
  // A job script, in which nothing was launched or fewer ranks were.
  EXPECT_EQ(Refusal({{"SLURM_NTASKS", "8"}}, 1), "");
  EXPECT_EQ(Refusal({{"SLURM_NTASKS", "8"}, {"PMIX_RANK", "0"}}, 2), "");
}

void ExpectRefusal(const Variables& variables, int size,
                   const std::string& announced) {
  const std::string text = Refusal(variables, size);
  EXPECT_TRUE(text.find(announced) != std::string::npos);
  EXPECT_TRUE(text.find("libfoo sees " + std::to_string(size) + " rank") !=
              std::string::npos);
}

TEST(launchers_of_another_mpi) {
  ExpectRefusal({{"OMPI_COMM_WORLD_SIZE", "4"}}, 1, "OMPI_COMM_WORLD_SIZE=4");
  ExpectRefusal({{"OMPI_COMM_WORLD_SIZE", "4"}}, 3, "OMPI_COMM_WORLD_SIZE=4");
  ExpectRefusal({{"PMI_SIZE", "2"}}, 1, "PMI_SIZE=2");
  ExpectRefusal({{"OMPI_COMM_WORLD_SIZE", "4"}, {"PMI_SIZE", "2"}}, 1,
                "OMPI_COMM_WORLD_SIZE=4");
  ExpectRefusal({{"MPI_LOCALNRANKS", "2"}}, 1, "MPI_LOCALNRANKS=2");
  ExpectRefusal({{"SLURM_NTASKS", "8"}, {"PMI_RANK", "3"}}, 1,
                "SLURM_NTASKS=8");
}

std::string RefusalBeforeStart(const Variables& variables,
                               const std::string& library) {
  return CheckBeforeStart(Reader(variables), library).message();
}

TEST(who_is_certain_to_be_alone_is_refused_before_mpi_starts) {
  const std::string open_mpi = "the MPI library (Open MPI v5.0.11)";
  const Variables launched[] = {{{"OMPI_COMM_WORLD_SIZE", "4"}},
                                {{"PMI_SIZE", "4"}, {"PMI_RANK", "0"}},
                                {{"SLURM_NTASKS", "4"}, {"PMI_RANK", "0"}}};
  for (const Variables& variables : launched) {
    EXPECT_EQ(RefusalBeforeStart(variables, open_mpi),
              CheckLaunchSize(Reader(variables), 1, open_mpi).message());
    EXPECT_TRUE(!RefusalBeforeStart(variables, open_mpi).empty());
    EXPECT_TRUE(!RefusalBeforeStart(variables, "(Open MPI v10.1)").empty());
    // These may find their peers in other ways.
    EXPECT_EQ(RefusalBeforeStart(variables, "(Open MPI v4.1.4)"), "");
    EXPECT_EQ(RefusalBeforeStart(variables, "(MPICH Version: 5.0.2)"), "");
    Variables by_pmix = variables;
    by_pmix["PMIX_NAMESPACE"] = "a";
    EXPECT_EQ(RefusalBeforeStart(by_pmix, open_mpi), "");
  }
  EXPECT_EQ(RefusalBeforeStart({}, open_mpi), "");
  EXPECT_EQ(RefusalBeforeStart({{"SLURM_NTASKS", "4"}}, open_mpi), "");
}

TEST(warning_before_a_library_meets_another_launcher) {
  const Variables of_open_mpi = {{"OMPI_COMM_WORLD_SIZE", "2"}};
  const Variables of_hydra = {{"PMI_SIZE", "2"}};
  const std::string text = LauncherWarning(Reader(of_open_mpi), "MPICH 5");
  EXPECT_TRUE(text.find("OMPI_COMM_WORLD_SIZE=2") != std::string::npos);
  EXPECT_TRUE(text.find("MPICH 5") != std::string::npos);
  EXPECT_EQ(LauncherWarning(Reader(of_open_mpi), "Open MPI v5"), "");
  EXPECT_EQ(LauncherWarning(Reader(of_hydra), "MPICH 5"), "");
  EXPECT_EQ(LauncherWarning(Reader({}), "MPICH 5"), "");
}

TEST(warning_when_tasks_of_slurm_are_alone) {
  const Variables tasks = {{"SLURM_STEP_NUM_TASKS", "8"},
                           {"SLURM_PROCID", "0"}};
  EXPECT_TRUE(AloneWarning(Reader(tasks)).find("srun started 8 tasks") !=
              std::string::npos);
  Variables other = tasks;
  other["SLURM_PROCID"] = "3";
  EXPECT_EQ(AloneWarning(Reader(other)), "");
  Variables by_mpirun = tasks;
  by_mpirun["OMPI_COMM_WORLD_SIZE"] = "1";
  EXPECT_EQ(AloneWarning(Reader(by_mpirun)), "");
  // A job script, and one task.
  EXPECT_EQ(AloneWarning(Reader({{"SLURM_NTASKS", "8"}})), "");
  EXPECT_EQ(AloneWarning(Reader({{"SLURM_STEP_NUM_TASKS", "1"}})), "");
  EXPECT_EQ(AloneWarning(Reader({})), "");
}

}  // namespace
}  // namespace hvd
