// SPDX-License-Identifier: Apache-2.0
// Words for poison: what a rank tells whose batch has failed at a peer.
#ifndef HVD_TRANSPORT_COLLECTIVES_POISON_WORDS_H_
#define HVD_TRANSPORT_COLLECTIVES_POISON_WORDS_H_

#include <vector>

#include "core/transport.h"
#include "transport/collectives/poison.h"

namespace hvd {

// The status of a batch that poison has ended. `job_ranks` are the members'
// ranks of the job. `rank` is this rank's place among them.
[[nodiscard]] Status ExplainPoison(const Poison& poison, const Batch& batch,
                                   const std::vector<int>& job_ranks, int rank);

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_POISON_WORDS_H_
