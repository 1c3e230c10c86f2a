// SPDX-License-Identifier: Apache-2.0
// TimelineRows: one rank's events as lines of a Chrome trace.
#ifndef HVD_CORE_TIMELINE_ROWS_H_
#define HVD_CORE_TIMELINE_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/trace_events.h"
#include "core/trace_lines.h"

namespace hvd {

// The process of a trace is a rank. Its rows are tensors and, before them,
// rows of batches. What overlaps on a row gets a second track. Rows and what is
// open are bounded in number, whatever a peer sends.
class TimelineRows {
 public:
  explicit TimelineRows(int rank) : rank_(rank) {}

  // `shift_ns` is added to the rank's times. Afterwards what is still open
  // stands in the lines too, as a beginning without end.
  void Add(const TraceChunk& chunk, int64_t shift_ns, TraceLines* lines);
  // Events of the rank are lost. The ends of what is open may be among them, so
  // it ends here, and its rows are free.
  void EndOpen(TraceLines* lines);

 private:
  // What a row shows now, or has shown.
  struct Track {
    int tid = 0;
    bool is_busy = false;
    // The end of what it shows, on the trace's clock.
    int64_t end_ns = std::numeric_limits<int64_t>::min();
  };
  using Row = std::vector<Track>;
  using Place = std::pair<Row*, size_t>;

  struct OpenTensor {
    SubmittedEvent event;
    std::string arguments;
    Place place{nullptr, 0};
    int64_t begin_ns = 0;  // of the phase that is open now; the trace's clock
    bool is_written = false;
  };
  struct OpenBatch {
    Place place{nullptr, 0};
    Verb verb = Verb::kAllreduce;
    int set_id = 0;
    int64_t begin_ns = 0;  // on the trace's clock
    bool is_written = false;
    std::vector<OpenTensor> tensors;
  };

  void Apply(const SubmittedEvent& event, const TraceChunk& chunk);
  void Apply(const AgreedEvent& event);
  void Apply(const FinishedEvent& event);
  void Apply(const FailedEvent& event);
  void Apply(const CycleEvent& event);

  void WritePhases(const OpenBatch& batch, const FinishedEvent& event);
  // One phase, from its begin to `end_ns`.
  void EndPhase(const std::string& name, OpenTensor* tensor, int64_t end_ns,
                const std::string& arguments);
  void WriteOpen();
  void EndLost(const Place& place, int64_t begin_ns);
  Place Occupy(const std::string& label, bool is_batch);
  void Free(const Place& place) { TrackAt(place).is_busy = false; }
  int TidOf(const Place& place) const { return TrackAt(place).tid; }
  static Track& TrackAt(const Place& place) {
    return (*place.first)[place.second];
  }
  // On the trace's clock. When a host's clock becomes better known, its times
  // may move back. Nothing begins before what its row has shown, all the same.
  int64_t Shifted(int64_t time_ns) const { return time_ns + shift_ns_; }
  int64_t BeginOn(const Place& place, int64_t time_ns) const {
    return std::max(Shifted(time_ns), TrackAt(place).end_ns);
  }

  const int rank_;
  std::unordered_map<std::string, Row> rows_;
  const Row* others_ = nullptr;  // of names for which there is no row
  int next_tensor_tid_ = 1000;
  int next_batch_tid_ = 1;
  std::unordered_map<uint64_t, OpenTensor> waiting_;  // by ticket
  std::map<std::pair<int, uint64_t>, OpenBatch>
      batches_;          // by serial and number
  int64_t last_ns_ = 0;  // of all events; the trace's clock
  // While Add runs.
  int64_t shift_ns_ = 0;
  TraceLines* lines_ = nullptr;
};

}  // namespace hvd

#endif  // HVD_CORE_TIMELINE_ROWS_H_
