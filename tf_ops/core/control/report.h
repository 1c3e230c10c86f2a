// SPDX-License-Identifier: Apache-2.0
// Report: what a rank tells its set's leader, or the rank that gathers for it.
#ifndef HVD_CORE_CONTROL_REPORT_H_
#define HVD_CORE_CONTROL_REPORT_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "core/control/set_change.h"
#include "core/control/words.h"
#include "core/request.h"
#include "core/status.h"

namespace hvd {

// "I have this tensor ready."
struct Submission {
  // Not 0: the name and the signature are the remembered ones. Only what may
  // change travels beside the number.
  SignatureNumber signature_number = 0;
  Key key;              // name left empty when cached
  Signature signature;  // when not cached
  Shape first_dims;     // allgather and cached: dimension 0 of each shape
  int64_t step = 0;
  Status error;
};

// "I have these tensors ready, all of this step." They are remembered. The
// usual news of a training step.
struct CachedSubmissions {
  int64_t step = 0;
  std::vector<SignatureNumber> numbers;
  // Dimension 0 of each shape, in the order of the numbers, if the log has
  // these (SizesInLog). Numbers with and without are not in one item.
  Shape first_dims = {};
};

// "The step of this tensor was aborted here." If the cause of that is known, it
// is what the peers fail with too.
struct Withdrawal {
  Key key;
  int64_t step = 0;
  Status why;
};

// "I shall not ask for names with this prefix." It holds until this rank asks
// for one again, or sends the same with an empty text.
struct ScopeEnd {
  std::string name_prefix;
  std::string text;
};

// "I have no more tensors. Go on without mine until all have joined."
struct Join {};
// "I take my latest Join back."
struct Unjoin {};

// The last two are of the global set alone.
using ReportItem = std::variant<Submission, CachedSubmissions, Withdrawal,
                                ScopeEnd, Join, Unjoin, SetRequest, SetAnswer>;

// After so many records without news a rank tells that it has applied them.
constexpr uint64_t kMostRecordsUntold = 1024;

struct Report {
  uint64_t log_seen = 0;  // number of the last log record applied
  std::vector<ReportItem> items;
};

// "These ranks of my host have all of these tensors ready." They are
// remembered, and nothing else travels with their numbers.
struct HostSubmissions {
  std::vector<int> ranks;      // of the set, ascending
  std::vector<int64_t> steps;  // one for each of these ranks
  std::vector<SignatureNumber> numbers;
};

// "This rank of my host says that."
struct HostMemberItem {
  int rank = 0;  // of the set
  ReportItem item;
};

using HostItem = std::variant<HostSubmissions, HostMemberItem>;

// What the gatherer of a host tells the leader. Items of one rank and key are
// in the order in which the rank told them.
struct HostReport {
  uint64_t log_seen = 0;  // all ranks of the host have applied that record
  std::vector<HostItem> items;
};

void Write(Writer* writer, const Report& report);
void Write(Writer* writer, const HostReport& report);
void Read(Reader* reader, Report* report);
void Read(Reader* reader, HostReport* report);

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_REPORT_H_
