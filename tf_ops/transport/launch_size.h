// SPDX-License-Identifier: Apache-2.0
// The number of ranks that a launcher announced, held against what there is.
#ifndef HVD_TRANSPORT_LAUNCH_SIZE_H_
#define HVD_TRANSPORT_LAUNCH_SIZE_H_

#include <functional>
#include <string>

#include "core/status.h"

namespace hvd {

using GetVariable = std::function<const char*(const char* name)>;

// An MPI library that does not belong to the launcher starts every process as
// a job of its own, each of which would train alone. Not Ok when the variables
// of the launchers say that there are several ranks and none of them agrees
// with `size`; the text names both values and `library`.
Status CheckLaunchSize(const GetVariable& get, int size,
                       const std::string& library);

// What to warn of when this rank is alone, or "": Slurm started several tasks
// without telling them of each other, which may be meant and mostly is not. One
// of the tasks warns.
std::string AloneWarning(const GetVariable& get);

// What to warn of before MPI starts, or "": some libraries end the process
// when they meet another's launcher, and their text helps nobody.
std::string LauncherWarning(const GetVariable& get, const std::string& library);

}  // namespace hvd

#endif  // HVD_TRANSPORT_LAUNCH_SIZE_H_
