// SPDX-License-Identifier: Apache-2.0
// Compares the number of ranks that a launcher announced with the real one.
#ifndef HVD_TRANSPORT_LAUNCH_SIZE_H_
#define HVD_TRANSPORT_LAUNCH_SIZE_H_

#include <functional>
#include <string>

#include "core/status.h"

namespace hvd {

using GetVariable = std::function<const char*(const char* name)>;

// An MPI library that does not belong to the launcher starts every process as a
// job of its own. Each would train alone. Not Ok when the launchers' variables
// announce several ranks, and none of them agrees with `size`. The text names
// both values and `library`.
Status CheckLaunchSize(const GetVariable& get, int size,
                       const std::string& library);

// The same before MPI starts, where it is certain already that this process
// would be alone. Started so, Open MPI leaves files behind when it ends.
Status CheckBeforeStart(const GetVariable& get, const std::string& library);

// A warning for a rank that is alone. Empty: none. Slurm may have started
// several tasks without telling them of each other. That is rarely meant. Only
// one of the tasks warns.
std::string AloneWarning(const GetVariable& get);

// A warning before MPI starts. Empty: none. Some libraries end the process when
// another library's launcher has started it, and their text does not help.
std::string LauncherWarning(const GetVariable& get, const std::string& library);

}  // namespace hvd

#endif  // HVD_TRANSPORT_LAUNCH_SIZE_H_
