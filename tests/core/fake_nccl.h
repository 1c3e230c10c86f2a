// SPDX-License-Identifier: Apache-2.0
// NCCL on GPUs that are made up, whose ranks are threads of this process.
#ifndef HVD_TESTS_CORE_FAKE_NCCL_H_
#define HVD_TESTS_CORE_FAKE_NCCL_H_

#include "transport/device/communicator_calls.h"

namespace hvd {

// No call waits. What a call begins is in progress for some time. Links are
// made at the first calls that need them, once both their ends have made such a
// call. So a communicator may be ready, and its first group never begin.
class FakeNccl {
 public:
  // The address of a function of nccl.h by its name, or null.
  static void* Find(const char* name);

  // Forgets the faults below, and what was counted.
  static void Reset();
  // No communicator gets ready before Release.
  static void HoldConnect();
  static void ReleaseConnect(int rank);
  // The rank's communicators never get ready, and then fail.
  static void FailConnect(int rank);
  // No group of calls begins from now on: a link that it needs does not come.
  static void HoldLinks();
  // The rank's links fail when its first group of calls needs them: it is the
  // first answer to be had.
  static void FailLinks(int rank);
  // The rank's next group of calls is not started.
  static void FailLaunch(int rank);
  // The rank's communicators do not start their first group: the trial.
  static void FailTrials(int rank);
  // From its next group on the rank's communicators report an error, and their
  // kernels do not end before they are aborted.
  static void FailAsync(int rank);
  // The same for kernels that run now.
  static void FailNow(int rank);
  // The rank's kernels have read, but do not end before ReleaseKernels.
  static void HoldKernels(int rank);
  static void ReleaseKernels();
  // Aborting a communicator of the rank waits for all kernels of its GPU, as
  // NCCL may do.
  static void AbortWaits(int rank);
  // Groups of calls that kernels of all ranks have completed. The first group
  // of each communicator does not count: lanes try it by that.
  static int completed();
  // Groups of calls whose kernels are in the streams of the rank's GPU, or
  // were.
  static int launched(int rank);
  // Waits until they are so many. False when they are not in time.
  [[nodiscard]] static bool WaitUntilLaunched(int rank, int groups);
  // Calls of that kind that kernels were launched with, of these groups.
  static int calls(CommunicatorCall::Kind kind);
  // Calls of a rank that a peer's do not fit to.
  static int misfitting();
  // Communicators that went while a peer's GPU had still to do with them.
  static int gone_early();
  // Identities that were asked for.
  static int identities();
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_FAKE_NCCL_H_
