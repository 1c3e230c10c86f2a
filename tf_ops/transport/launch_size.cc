// SPDX-License-Identifier: Apache-2.0
// Reads the variables of Open MPI, MPICH's Hydra and Slurm.
#include "transport/launch_size.h"

#include <cstdlib>
#include <optional>

namespace hvd {
namespace {

struct Announcement {
  std::string variable;
  long size = 0;
};

long Read(const GetVariable& get, const char* name) {
  const char* text = get(name);
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

Status Refuse(const Announcement& announced, int size,
              const std::string& library) {
  return FailedPrecondition(
      "The launcher set " + announced.variable + "=" +
      std::to_string(announced.size) + ", but " + library + " sees " +
      std::to_string(size) + (size == 1 ? " rank" : " ranks") +
      ". Start the job with the launcher of that MPI library, or build hvd_tf "
      "against the launcher's; if no launcher was used, unset " +
      announced.variable + ".");
}

// Open MPI 5 and later only know of PMIx. Earlier ones may know of PMI too.
bool KnowsOnlyPmix(const std::string& library) {
  const std::string name = "Open MPI v";
  const size_t at = library.find(name);
  if (at == std::string::npos) return false;
  return std::strtol(library.c_str() + at + name.size(), nullptr, 10) >= 5;
}

}  // namespace

Status CheckLaunchSize(const GetVariable& get, int size,
                       const std::string& library) {
  std::optional<Announcement> other;
  // A job may be started from within another one, and inherits its variables.
  // So it is enough that one variable agrees.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const long announced = Read(get, name);
    if (announced == size) return Status::Ok();
    if (announced > 1 && !other) other = Announcement{name, announced};
  }
  if (other) return Refuse(*other, size, library);
  // The number of ranks on this host only.
  const long local = Read(get, "MPI_LOCALNRANKS");
  if (local > size) return Refuse({"MPI_LOCALNRANKS", local}, size, library);
  // Slurm sets its size in every job script. If there is a PMI rank too, srun
  // has started this process. mpirun within the job may have started fewer
  // ranks.
  const bool by_srun =
      get("PMI_RANK") != nullptr || get("PMIX_RANK") != nullptr;
  const long tasks = Read(get, "SLURM_NTASKS");
  if (by_srun && size == 1 && tasks > 1) {
    return Refuse({"SLURM_NTASKS", tasks}, size, library);
  }
  return Status::Ok();
}

Status CheckBeforeStart(const GetVariable& get, const std::string& library) {
  if (get("PMIX_NAMESPACE") != nullptr || !KnowsOnlyPmix(library)) {
    return Status::Ok();
  }
  return CheckLaunchSize(get, 1, library);
}

std::string AloneWarning(const GetVariable& get) {
  const long tasks = Read(get, "SLURM_STEP_NUM_TASKS");
  // A launcher within the step has its own number of ranks.
  const bool launched =
      get("OMPI_COMM_WORLD_SIZE") != nullptr || get("PMI_SIZE") != nullptr;
  if (tasks <= 1 || launched || Read(get, "SLURM_PROCID") != 0) return "";
  return "srun started " + std::to_string(tasks) +
         " tasks, but each of them is a job of one rank and would train "
         "alone. Should they be ranks of one job, choose what the MPI of "
         "hvd_tf understands with srun --mpi=..., or start them by hvdrun.";
}

std::string LauncherWarning(const GetVariable& get,
                            const std::string& library) {
  const long announced = Read(get, "OMPI_COMM_WORLD_SIZE");
  const bool is_own = library.find("Open MPI") != std::string::npos;
  if (announced <= 1 || is_own || get("PMI_SIZE") != nullptr) return "";
  return "OMPI_COMM_WORLD_SIZE=" + std::to_string(announced) +
         " is of Open MPI's launcher, but hvd_tf was built against " + library +
         ". Should MPI not start, use the launcher of that library, or build "
         "hvd_tf against Open MPI.";
}

}  // namespace hvd
