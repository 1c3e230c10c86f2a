// SPDX-License-Identifier: Apache-2.0
// LogRecord: what a leader has decided, and LogMessage: some of its log.
#ifndef HVD_CORE_CONTROL_LOG_RECORD_H_
#define HVD_CORE_CONTROL_LOG_RECORD_H_

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "core/control/set_change.h"
#include "core/control/words.h"
#include "core/request.h"
#include "core/status.h"
#include "core/tuning.h"

namespace hvd {

struct AgreedTensor {
  SignatureNumber signature_number = 0;
  Key key;  // name left empty when every member knows signature_number
  // allgather: dimension 0 of [shape][rank of the set]
  std::vector<std::vector<int64_t>> first_dims;
  // For members that have not submitted it. Set where the batch has absent
  // ranks and the key has its name.
  std::optional<Signature> signature = std::nullopt;
};

// "These travel now, together."
struct AgreedBatch {
  std::vector<AgreedTensor> tensors;
  // Ranks that have joined, ascending. They take part without tensors.
  std::vector<int> absent = {};
  // What an average is divided by. 0: the size of the set.
  int64_t divisor = 0;
};

// Ranks of the set, `last` included.
struct RankRange {
  int first = 0;
  int last = 0;
};

// Each of these ranks loses a submission of the key, as often as it stands in
// `ranks`. It is the one before which `older` others still wait.
struct FailedKey {
  SignatureNumber signature_number = 0;
  Key key;  // name left empty when every member knows signature_number
  int older = 0;
  std::vector<RankRange> ranks;
};

// "These submissions failed, for this reason." If a key comes more than once,
// the order counts.
struct Failure {
  Status status;
  std::vector<FailedKey> keys;
};

// "Forget these."
struct Eviction {
  std::vector<SignatureNumber> numbers;
};

// "All ranks have joined, this one last." It answers the oldest Join of each.
struct Joined {
  int last_rank = 0;
};

// "The oldest Join of this rank was taken back in time."
struct JoinWithdrawn {
  int rank = 0;
};

// "So many records do not concern you." Never in the log itself.
struct Skipped {
  uint64_t count = 1;
};

// A Tuning holds for the batches of the records behind it.
using LogRecord = std::variant<AgreedBatch, Failure, Eviction, Tuning, Skipped,
                               Joined, JoinWithdrawn, SetChange>;

// Records are numbered 1, 2, ... over the life of the set.
struct LogMessage {
  uint64_t first_number = 1;
  std::vector<LogRecord> records;
};

void WriteRecord(Writer* writer, const LogRecord& record);
void Write(Writer* writer, const LogMessage& log);
void Read(Reader* reader, LogMessage* log);

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_LOG_RECORD_H_
