// SPDX-License-Identifier: Apache-2.0
// Moves ranks' times to one clock, and writes what the trace says of itself.
#include "core/timeline_writer.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "core/trace_events.h"
#include "core/trace_lines.h"

namespace hvd {
namespace {

constexpr size_t kMostTracedRanks = 64;
constexpr size_t kMostWaitingBytes = 16 << 20;

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace

std::vector<int> TracedRanks(const Topology& topology) {
  // By their place on their host, then by number.
  std::vector<std::pair<int, int>> order;
  std::map<int, int> places;
  for (int rank = 0; rank < topology.size; ++rank) {
    order.emplace_back(places[topology.host_of[rank]]++, rank);
  }
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), kMostTracedRanks));
  std::vector<int> ranks;
  for (const auto& [place, rank] : order) ranks.push_back(rank);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

TimelineWriter::TimelineWriter(const Topology& topology, int64_t start_ns)
    : topology_(topology), start_ns_(start_ns) {
  for (const int rank : TracedRanks(topology)) rows_.emplace(rank, rank);
  clocks_.resize(
      1 + *std::max_element(topology.host_of.begin(), topology.host_of.end()));
  clocks_[topology.host_of[0]] = ClockOffset{};
}

std::string TimelineWriter::Head() {
  std::string ranks;
  for (const auto& [rank, rows] : rows_) {
    ranks += (ranks.empty() ? "" : ",") + std::to_string(rank);
  }
  lines_.Metadata("hvd_timeline", 0, 0,
                  "\"version\":1," + JsonMember("size", topology_.size) +
                      ",\"ranks\":[" + ranks + "],\"started\":\"" + UtcNow() +
                      "\"");
  for (const auto& [rank, rows] : rows_) {
    std::string label = "rank " + std::to_string(rank);
    if (rank < static_cast<int>(topology_.hosts.size())) {
      label += " (" + topology_.hosts[rank] + ")";
    }
    lines_.Metadata("process_name", rank, 0, "\"name\":" + JsonText(label));
    lines_.Metadata("process_sort_index", rank, 0,
                    JsonMember("sort_index", rank));
  }
  return "[\n" + lines_.Take();
}

std::string TimelineWriter::Tail() {
  for (const Waiting& waiting : std::exchange(waiting_, {})) {
    // It is better to have these chunks at a wrong place than not at all, and
    // the file says that nothing is known of their clock.
    AddNow(waiting.rank, waiting.chunk, waiting.follows_loss);
  }
  for (const int rank : losers_) rows_.at(rank).EndOpen(&lines_);
  for (const auto& [rank, count] : unreadable_) {
    lines_.Metadata("hvd_unreadable_chunks", rank, 0,
                    JsonMember("count", static_cast<int64_t>(count)));
  }
  // JSON allows no comma behind the last one.
  lines_.Metadata("hvd_timeline_end", 0, 0, "");
  std::string text = lines_.Take();
  text.resize(text.size() - 2);
  return text + "\n]\n";
}

std::string TimelineWriter::Add(int rank, const std::string& chunk) {
  if (rows_.count(rank) == 0) return {};
  const bool waits = !clocks_[topology_.host_of[rank]].has_value();
  if (waits && waiting_bytes_ + chunk.size() > kMostWaitingBytes) {
    return Lost(rank, 1);
  }
  const bool follows_loss = losers_.erase(rank) > 0;
  if (waits) {
    waiting_bytes_ += chunk.size();
    waiting_.push_back({rank, chunk, follows_loss});
  } else {
    AddNow(rank, chunk, follows_loss);
  }
  return lines_.Take();
}

void TimelineWriter::AddNow(int rank, const std::string& chunk,
                            bool follows_loss) {
  const Result<TraceChunk> decoded = DecodeTrace(chunk);
  if (follows_loss || !decoded.ok()) rows_.at(rank).EndOpen(&lines_);
  if (!decoded.ok()) {
    ++unreadable_[rank];
    return;
  }
  const int host = topology_.host_of[rank];
  const int64_t offset_ns = clocks_[host].value_or(ClockOffset{}).offset_ns;
  rows_.at(rank).Add(decoded.value(), -offset_ns - start_ns_, &lines_);
}

std::string TimelineWriter::SetClock(int host, const ClockOffset& clock) {
  const bool is_first = !clocks_[host].has_value();
  clocks_[host] = clock;
  const auto found =
      std::find(topology_.host_of.begin(), topology_.host_of.end(), host);
  const int rank = static_cast<int>(found - topology_.host_of.begin());
  lines_.Metadata("hvd_clock", rank, 0,
                  JsonMember("host", host) + "," +
                      JsonMember("offset_ns", clock.offset_ns) + "," +
                      JsonMember("error_ns", clock.error_ns));
  if (is_first) {
    std::deque<Waiting> others;
    for (Waiting& waiting : std::exchange(waiting_, {})) {
      if (topology_.host_of[waiting.rank] == host) {
        waiting_bytes_ -= waiting.chunk.size();
        AddNow(waiting.rank, waiting.chunk, waiting.follows_loss);
      } else {
        others.push_back(std::move(waiting));
      }
    }
    waiting_ = std::move(others);
  }
  return lines_.Take();
}

std::string TimelineWriter::Lost(int rank, uint64_t chunks) {
  lines_.Metadata("hvd_lost_chunks", rank, 0,
                  JsonMember("count", static_cast<int64_t>(chunks)));
  if (rows_.count(rank) > 0) losers_.insert(rank);
  return lines_.Take();
}

}  // namespace hvd
