// SPDX-License-Identifier: Apache-2.0
// Events of a rank: their bytes, bounds, rows, clocks, and which ranks have
// them.
#include "core/trace.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "core/clock_offsets.h"
#include "core/control/autotuner.h"
#include "core/timeline_rows.h"
#include "core/timeline_writer.h"
#include "harness.h"

namespace hvd {
namespace {

Entry Tensor(const std::string& name, uint64_t ticket) {
  Entry entry;
  entry.request.key = {name, 3};
  entry.request.step = 7;
  entry.request.signature.shapes = {{10, 2}, {5}};
  entry.ticket = ticket;
  entry.enqueued_ns = SteadyNow_ns();
  return entry;
}

ReadyBatch BatchOf(const std::vector<Entry>& entries, uint64_t number) {
  ReadyBatch ready;
  ready.log_number = number;
  ready.first_dims.resize(entries.size());
  for (const Entry& entry : entries) {
    ready.tensors.push_back({std::make_shared<Entry>(entry), false});
  }
  return ready;
}

TEST(trace_events_come_back_in_order) {
  CommCounters counters;
  Trace trace(&counters);
  trace.Start(true);
  const std::vector<Entry> entries{Tensor("a", 11), Tensor("b", 9)};
  const Entry lonely = Tensor("c", 10);
  const ReadyBatch batch = BatchOf(entries, 5);
  trace.Cycle();
  for (const Entry& entry : entries) trace.Submitted(2, 1, entry);
  trace.Agreed(2, batch);
  const auto times = trace.NewTimes(2, 5);
  {
    const CopyTimer in(times.get(), &BatchTimes::copy_in_ns);
  }
  times->payload_bytes = 77;
  trace.Finished(2, batch, {Status::Ok(), 0, times.get(), true});
  trace.Submitted(2, 1, lonely);
  trace.Failed(lonely);
  EXPECT_TRUE(trace.has_news());
  const Result<TraceChunk> chunk = DecodeTrace(trace.Take());
  EXPECT_FALSE(trace.has_news());
  ASSERT_TRUE(chunk.ok());
  EXPECT_EQ(chunk.value().dropped, 0u);
  EXPECT_TRUE(chunk.value().names == (std::vector<std::string>{"a", "b", "c"}));
  const std::vector<TraceEvent>& events = chunk.value().events;
  ASSERT_EQ(events.size(), 7u);
  const auto& cycle = std::get<CycleEvent>(events[0]);
  const auto& first = std::get<SubmittedEvent>(events[1]);
  const auto& second = std::get<SubmittedEvent>(events[2]);
  const auto& agreed = std::get<AgreedEvent>(events[3]);
  const auto& finished = std::get<FinishedEvent>(events[4]);
  const auto& failed = std::get<FailedEvent>(events[6]);
  EXPECT_EQ(first.enqueued_ns, entries[0].enqueued_ns);
  EXPECT_EQ(first.set, 2);
  EXPECT_EQ(first.set_id, 1);
  EXPECT_EQ(first.ticket, 11u);
  EXPECT_EQ(first.instance, 3u);
  EXPECT_EQ(first.step, 7);
  EXPECT_EQ(first.bytes, 100);
  EXPECT_EQ(second.name, 1u);
  EXPECT_EQ(second.ticket, 9u);
  EXPECT_EQ(agreed.batch, 5u);
  EXPECT_TRUE(agreed.tickets == (std::vector<uint64_t>{11, 9}));
  EXPECT_TRUE(finished.is_ok && finished.carrier == Carrier::kShm);
  EXPECT_EQ(finished.times.started_ns, times->started_ns);
  EXPECT_EQ(finished.times.first_in_ns, times->first_in_ns);
  EXPECT_EQ(finished.times.packed_ns, times->packed_ns);
  EXPECT_EQ(finished.times.last_out_ns, 0);
  EXPECT_EQ(finished.times.payload_bytes, 77);
  EXPECT_EQ(failed.ticket, 10u);
  const int64_t order[] = {cycle.time_ns,
                           first.time_ns,
                           second.time_ns,
                           agreed.time_ns,
                           finished.times.started_ns,
                           finished.time_ns,
                           failed.time_ns};
  EXPECT_TRUE(std::is_sorted(std::begin(order), std::end(order)));
  EXPECT_EQ(counters.of(Verb::kAllreduce).collectives.value(), 2u);
  EXPECT_EQ(counters.of(Verb::kAllreduce).batches.value(), 1u);
}

TEST(trace_that_is_off_notes_nothing_and_counts) {
  CommCounters counters;
  Trace trace(&counters);
  const ReadyBatch batch = BatchOf({Tensor("a", 1)}, 1);
  trace.Cycle();
  trace.Submitted(0, 0, *batch.tensors[0].entry);
  trace.Agreed(0, batch);
  EXPECT_TRUE(trace.NewTimes(0, 1) == nullptr);
  trace.Finished(0, batch, {Status::Ok(), 4, nullptr, false});
  trace.Finished(0, batch, {Internal("x"), 5, nullptr, false});
  EXPECT_FALSE(trace.has_news());
  EXPECT_EQ(counters.of(Verb::kAllreduce).batches.value(), 1u);
  EXPECT_EQ(counters.of(Verb::kAllreduce).rows.value(), 4u);
}

TEST(trace_that_is_closed_notes_the_ends_of_what_has_begun) {
  CommCounters counters;
  Trace trace(&counters);
  const ReadyBatch before = BatchOf({Tensor("a", 1)}, 1);
  trace.Start(false);
  const ReadyBatch batch = BatchOf({Tensor("b", 2)}, 2);
  trace.Submitted(0, 0, *batch.tensors[0].entry);
  trace.Agreed(0, batch);
  const auto times = trace.NewTimes(0, 2);
  // It had no times, because it began before the trace.
  trace.Finished(0, before, {});
  (void)trace.Take();
  trace.Close();
  EXPECT_FALSE(trace.is_complete());
  const ReadyBatch after = BatchOf({Tensor("c", 3)}, 3);
  trace.Submitted(0, 0, *after.tensors[0].entry);
  trace.Agreed(0, after);
  EXPECT_FALSE(trace.has_news());
  trace.Finished(0, batch, {Status::Ok(), 0, times.get(), false});
  EXPECT_TRUE(trace.is_complete());
  EXPECT_TRUE(trace.has_news());
}

// The background thread hears of the end of a timeline between the agreement
// on a batch and its start.
TEST(trace_that_is_closed_before_a_batch_starts_notes_its_end) {
  CommCounters counters;
  Trace trace(&counters);
  trace.Start(false);
  const ReadyBatch batch = BatchOf({Tensor("a", 1)}, 1);
  trace.Submitted(0, 0, *batch.tensors[0].entry);
  trace.Agreed(0, batch);
  trace.Close();
  EXPECT_FALSE(trace.is_complete());
  const auto times = trace.NewTimes(0, 1);
  EXPECT_TRUE(times != nullptr);
  trace.Finished(0, batch, {Status::Ok(), 0, times.get(), false});
  EXPECT_TRUE(trace.is_complete());
  const Result<TraceChunk> chunk = DecodeTrace(trace.Take());
  ASSERT_TRUE(chunk.ok());
  ASSERT_EQ(chunk.value().events.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<FinishedEvent>(chunk.value().events[2]));
}

// What is noted ends, however little room there is. What is not has no end.
TEST(trace_without_room_notes_the_ends_of_what_has_begun) {
  CommCounters counters;
  Trace trace(&counters);
  trace.Start(false);
  const std::vector<Entry> early{Tensor("a", 1), Tensor("b", 2)};
  const Entry lost = Tensor("lost", 3);
  for (const Entry& entry : early) trace.Submitted(0, 0, entry);
  for (uint64_t i = 0; i < 20000; ++i) {
    const Entry entry = Tensor("tensor " + std::to_string(i), 10 + i);
    trace.Submitted(0, 0, entry);
    trace.Failed(entry);
  }
  trace.Submitted(0, 0, lost);
  // One of them was cancelled meanwhile.
  trace.Failed(early[1]);
  const ReadyBatch batch = BatchOf({early[0], early[1], lost}, 1);
  const ReadyBatch lost_batch = BatchOf({lost}, 2);
  trace.Agreed(0, batch);
  trace.Agreed(0, lost_batch);
  EXPECT_TRUE(trace.NewTimes(0, 2) == nullptr);
  trace.Finished(0, lost_batch, {});
  // Of a batch that is given up there are no times.
  trace.Finished(0, batch, {Internal("x"), 0, nullptr, false});
  const Result<TraceChunk> chunk = DecodeTrace(trace.Take());
  ASSERT_TRUE(chunk.ok());
  EXPECT_TRUE(chunk.value().dropped > 1000);
  int begun = 0, failed = 0;
  for (const TraceEvent& event : chunk.value().events) {
    begun += std::holds_alternative<SubmittedEvent>(event) ? 1 : 0;
    failed += std::holds_alternative<FailedEvent>(event) ? 1 : 0;
  }
  EXPECT_EQ(begun, failed + 1);
  const std::vector<TraceEvent>& events = chunk.value().events;
  const auto* agreed = std::get_if<AgreedEvent>(&events[events.size() - 2]);
  const auto* finished = std::get_if<FinishedEvent>(&events.back());
  ASSERT_TRUE(agreed != nullptr && finished != nullptr);
  EXPECT_TRUE(agreed->tickets == std::vector<uint64_t>{1});
  EXPECT_TRUE(finished->batch == 1 && !finished->is_ok);
}

TEST(trace_bytes_of_shapes_that_no_memory_has_are_a_number) {
  CommCounters counters;
  Trace trace(&counters);
  trace.Start(false);
  constexpr int64_t kHuge = int64_t{1} << 40;
  for (const std::vector<Shape>& shapes : {std::vector<Shape>{{kHuge, kHuge}},
                                           {{kHuge, 1 << 21}, {kHuge, 1 << 21}},
                                           {{kHuge, 1 << 19}}}) {
    Entry entry = Tensor("a", 1);
    entry.request.signature.shapes = shapes;
    trace.Submitted(0, 0, entry);
    trace.Failed(entry);
    const Result<TraceChunk> chunk = DecodeTrace(trace.Take());
    ASSERT_TRUE(chunk.ok());
    const auto& event = std::get<SubmittedEvent>(chunk.value().events[0]);
    EXPECT_EQ(event.bytes, (int64_t{1} << 60) - 1);
  }
}

TEST(trace_memory_is_bounded_and_what_is_dropped_is_counted) {
  CommCounters counters;
  Trace trace(&counters);
  trace.Start(false);
  constexpr uint64_t kCount = 100000;
  for (uint64_t i = 0; i < kCount; ++i) {
    trace.Submitted(0, 0, Tensor("tensor " + std::to_string(i % 100), i + 1));
  }
  const std::string bytes = trace.Take();
  EXPECT_TRUE(bytes.size() < Trace::kMostBytes + 100);
  const Result<TraceChunk> chunk = DecodeTrace(bytes);
  ASSERT_TRUE(chunk.ok());
  EXPECT_TRUE(chunk.value().events.size() > 5000);
  EXPECT_EQ(chunk.value().events.size() + chunk.value().dropped, kCount);
  EXPECT_EQ(chunk.value().names.size(), 100u);
  // There is room again.
  trace.Submitted(0, 0, Tensor("next", 1));
  EXPECT_EQ(DecodeTrace(trace.Take()).value().dropped, 0u);
}

// Time in which nothing is on the wire does not count, nor do other sets.
TEST(trace_tells_the_autotuner_of_the_global_set) {
  using std::chrono::milliseconds;
  std::vector<Autotuner::Sample> samples;
  Autotuner::Config config;
  config.rounds_per_sample = 3;
  config.most_samples = 100;
  Autotuner autotuner(config, [&](const Autotuner::Sample& sample) {
    samples.push_back(sample);
  });
  CommCounters counters;
  Trace trace(&counters);
  trace.FeedTo(&autotuner, 2);
  const ReadyBatch batch = BatchOf({Tensor("a", 1), Tensor("b", 2)}, 1);
  constexpr double kBytes = 2 * 25 * 4;
  double longest_s = 0;
  for (int i = 0; i < 1000 && samples.empty(); ++i) {
    const int64_t begin_ns = SteadyNow_ns();
    trace.Agreed(0, batch);
    trace.Agreed(2, batch);
    std::this_thread::sleep_for(milliseconds(2));
    trace.Finished(2, batch, {});
    trace.Finished(0, batch, {});
    longest_s = std::max(longest_s, 1e-9 * (SteadyNow_ns() - begin_ns));
    std::this_thread::sleep_for(milliseconds(20));
  }
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_TRUE(samples[0].rounds >= 3);
  EXPECT_TRUE(1e6 * samples[0].mb_per_s <= kBytes / 0.002);
  EXPECT_TRUE(1e6 * samples[0].mb_per_s >= kBytes / longest_s);
  trace.FeedTo(nullptr, 0);
  for (int i = 0; i < 100; ++i) trace.Agreed(0, batch);
  EXPECT_EQ(samples.size(), 1u);
}

std::string SomeChunk() {
  CommCounters counters;
  Trace trace(&counters);
  trace.Start(true);
  for (uint64_t i = 1; i <= 5; ++i) {
    const ReadyBatch batch = BatchOf({Tensor("t" + std::to_string(i), i)}, i);
    trace.Submitted(0, 0, *batch.tensors[0].entry);
    trace.Agreed(0, batch);
    if (i < 5) {
      const auto times = trace.NewTimes(0, i);
      trace.Finished(0, batch, {Status::Ok(), 0, times.get(), false});
    }
    trace.Cycle();
  }
  return trace.Take();
}

Topology TopologyOf(const std::vector<int>& hosts) {
  Topology topology;
  topology.size = static_cast<int>(hosts.size());
  topology.host_of = hosts;
  for (int host : hosts) topology.hosts.push_back("h" + std::to_string(host));
  return topology;
}

TEST(trace_bytes_that_make_no_sense_are_refused_or_harmless) {
  const std::string good = SomeChunk();
  std::mt19937 random(1);
  TimelineWriter writer(TopologyOf({0, 0}), 0);
  std::string text = writer.Head();
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    if (i % 3 == 0) bad.resize(random() % bad.size());
    for (unsigned changes = random() % 4; changes > 0 && !bad.empty();
         --changes) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    refused += DecodeTrace(bad).ok() ? 0 : 1;
    text += writer.Add(1, bad);
  }
  EXPECT_TRUE(refused > 1000);
  text += writer.Add(7, good);  // there is no such rank
  text += writer.Tail();
  EXPECT_TRUE(text.find("hvd_unreadable_chunks") != std::string::npos);
  // Each line is an object, whatever the names became.
  size_t lines = 0;
  for (size_t at = 2; at < text.size() - 2;) {
    const size_t end = text.find('\n', at);
    EXPECT_EQ(text[at], '{');
    EXPECT_TRUE(text[end - 1] == ',' || text[end - 1] == '}');
    at = end + 1;
    ++lines;
  }
  EXPECT_TRUE(lines > 1000);
}

// The lines of a rank's tensors, without those that name rows.
std::vector<std::string> LinesWith(const std::string& text,
                                   const std::string& part) {
  std::vector<std::string> found;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    const std::string line = text.substr(at, text.find('\n', at) - at);
    if (line.find(part) != std::string::npos) found.push_back(line);
  }
  return found;
}

// t5 of SomeChunk is open at its end. No later tensor goes to a second row.
void ExpectEndOfOpen(const std::string& text) {
  const auto ends = LinesWith(text, "\"lost\":true");
  EXPECT_EQ(ends.size(), 2u);  // the tensor and its batch
  for (const std::string& line : ends) {
    EXPECT_TRUE(line.find("\"ph\":\"E\"") != std::string::npos);
  }
  EXPECT_TRUE(text.find("(2)") == std::string::npos);
}

TEST(trace_rows_are_free_behind_chunks_that_are_lost_or_unreadable) {
  const Topology topology = TopologyOf({0, 0, 1});
  {
    TimelineWriter writer(topology, 0);
    std::string text = writer.Add(1, SomeChunk());
    text += writer.Lost(1, 3);
    text += writer.Add(1, SomeChunk());
    text += writer.Tail();
    ExpectEndOfOpen(text);
  }
  {
    TimelineWriter writer(topology, 0);
    std::string text = writer.Add(1, SomeChunk());
    text += writer.Add(1, "nonsense");
    text += writer.Add(1, SomeChunk());
    ExpectEndOfOpen(text);
  }
  {
    // Its clock is not known until later.
    TimelineWriter writer(topology, 0);
    std::string text = writer.Add(2, SomeChunk());
    text += writer.Lost(2, 1);
    text += writer.Add(2, SomeChunk());
    text += writer.SetClock(1, {5, 1});
    ExpectEndOfOpen(text);
  }
  {
    TimelineWriter writer(topology, 0);
    std::string text = writer.Add(1, SomeChunk());
    text += writer.Lost(1, 1);
    text += writer.Tail();
    ExpectEndOfOpen(text);
  }
}

// A second row shows what overlaps, and says whose it is.
TEST(trace_rows_of_one_name_say_the_name) {
  CommCounters counters;
  Trace trace(&counters);
  trace.Start(false);
  trace.Submitted(0, 0, Tensor("a", 1));
  trace.Submitted(0, 0, Tensor("a", 2));
  TimelineWriter writer(TopologyOf({0, 0}), 0);
  const std::string text = writer.Add(1, trace.Take());
  EXPECT_EQ(LinesWith(text, "{\"name\":\"a\"}").size(), 1u);
  EXPECT_EQ(LinesWith(text, "{\"name\":\"a (2)\",\"tensor\":\"a\"}").size(),
            1u);
}

// The id of a removed set is given to a new one.
TEST(trace_shows_the_id_of_a_set_and_keeps_its_serial) {
  CommCounters counters;
  Trace trace(&counters);
  trace.Start(false);
  const ReadyBatch batch = BatchOf({Tensor("a", 1)}, 7);
  trace.Submitted(5, 2, *batch.tensors[0].entry);
  trace.Agreed(5, batch);
  const auto times = trace.NewTimes(5, 7);
  trace.Finished(5, batch, {Status::Ok(), 0, times.get(), false});
  TimelineWriter writer(TopologyOf({0, 0}), 0);
  const std::string text = writer.Add(1, trace.Take());
  EXPECT_EQ(LinesWith(text, "{\"name\":\"a [set 2]\"}").size(), 1u);
  EXPECT_EQ(LinesWith(text, "{\"name\":\"batches of set 2\"}").size(), 1u);
  // Two phases of the tensor, and the batch.
  EXPECT_EQ(LinesWith(text, "\"set\":2,\"batch\":7,\"set_serial\":5").size(),
            3u);
}

TEST(trace_names_are_json) {
  EXPECT_EQ(JsonText("a/b"), "\"a/b\"");
  EXPECT_EQ(JsonText("\"\\\n\x7f"), "\"\\\"\\\\\\u000a\\u007f\"");
  EXPECT_EQ(JsonText("\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82"),
            "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\"");
  // Cut off, too long, a surrogate, past the end.
  EXPECT_EQ(JsonText("\xc3"), "\"?\"");
  EXPECT_EQ(JsonText("\xc0\xaf"), "\"??\"");
  EXPECT_EQ(JsonText("\xed\xa0\x80"), "\"???\"");
  EXPECT_EQ(JsonText("\xf4\x90\x80\x80"), "\"????\"");
}

TEST(trace_of_a_large_job_has_64_ranks_of_all_hosts) {
  std::vector<int> few(64, 0);
  EXPECT_EQ(TracedRanks(TopologyOf(few)).size(), 64u);
  EXPECT_EQ(TracedRanks(TopologyOf(few)).back(), 63);
  // 50 hosts of 4: the first of each, and the second of the first 14.
  std::vector<int> many;
  for (int rank = 0; rank < 200; ++rank) many.push_back(rank / 4);
  const std::vector<int> ranks = TracedRanks(TopologyOf(many));
  ASSERT_EQ(ranks.size(), 64u);
  EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
  for (int rank = 0; rank < 200; ++rank) {
    const bool is_traced =
        std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    EXPECT_EQ(is_traced, rank % 4 == 0 || (rank % 4 == 1 && rank / 4 < 14));
  }
  // More hosts than ranks that can be shown.
  many.clear();
  for (int rank = 0; rank < 100; ++rank) many.push_back(rank);
  EXPECT_EQ(TracedRanks(TopologyOf(many)).back(), 63);
  // The file says which.
  TimelineWriter writer(TopologyOf(many), 0);
  const std::string head = writer.Head();
  EXPECT_TRUE(head.find("\"size\":100,\"ranks\":[0,1,2,") != std::string::npos);
  EXPECT_TRUE(head.find(",63]") != std::string::npos);
}

TEST(trace_of_another_host_waits_for_its_clock) {
  TimelineWriter writer(TopologyOf({0, 0, 1}), 0);
  EXPECT_TRUE(writer.Add(1, SomeChunk()).size() > 100);
  EXPECT_EQ(writer.Add(2, SomeChunk()), "");
  const std::string text = writer.SetClock(1, {-5, 3});
  EXPECT_TRUE(text.find("\"host\":1,\"offset_ns\":-5,\"error_ns\":3") !=
              std::string::npos);
  EXPECT_TRUE(text.find("ALLREDUCE") != std::string::npos);
  EXPECT_TRUE(writer.Add(2, SomeChunk()).size() > 100);
}

// All spans are on one row each, one after the other.
TEST(trace_times_do_not_move_back_when_a_clock_is_known_better) {
  TimelineWriter writer(TopologyOf({0, 1}), 0);
  (void)writer.SetClock(1, {0, 1'000'000'000});
  std::string text = writer.Add(1, SomeChunk());
  (void)writer.SetClock(1, {100'000'000, 1});
  text += writer.Add(1, SomeChunk());
  std::map<int, double> ends;
  size_t spans = 0;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    const std::string line = text.substr(at, text.find('\n', at) - at);
    const auto number = [&line](const char* key) {
      return std::atof(line.c_str() + line.find(key) + std::strlen(key));
    };
    if (line.find("\"ph\":\"X\"") == std::string::npos ||
        line.find("dtype") == std::string::npos) {
      continue;
    }
    double& end = ends[static_cast<int>(number("\"tid\":"))];
    // Such sums have only so many digits.
    EXPECT_TRUE(end == 0 || number("\"ts\":") > end - 0.01);
    end = number("\"ts\":") + number("\"dur\":");
    ++spans;
  }
  // All but the last, whose number is that of a batch that is open still.
  EXPECT_EQ(spans, 9u);
}

TEST(clock_offsets_the_shortest_answer_wins) {
  ClockOffsets clocks(2);
  // The other clock reads 1000 more. The first answers have waited.
  for (int64_t asked : {10, 20, 30, 40}) {
    EXPECT_FALSE(clocks.Answered(1, asked, asked + 1900, asked + 2000));
    EXPECT_FALSE(clocks.is_settled(1));
  }
  ASSERT_TRUE(clocks.Best(1).has_value());
  EXPECT_EQ(clocks.Best(1)->error_ns, 1000);
  // Answers come at once, late, early.
  auto first = clocks.Answered(1, 2100, 3150, 2200);
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(clocks.is_settled(1));
  EXPECT_EQ(first->offset_ns, 1000);
  EXPECT_EQ(first->error_ns, 50);
  EXPECT_FALSE(clocks.Answered(1, 2300, 3390, 2500).has_value());
  const auto better = clocks.Answered(1, 2600, 3605, 2620);
  ASSERT_TRUE(better.has_value());
  EXPECT_EQ(better->offset_ns, 995);
  EXPECT_EQ(better->error_ns, 10);
  // After a second it may be wrong by 20 us more.
  const int64_t later = 1'000'000'000;
  EXPECT_TRUE(clocks.Answered(1, later, later + 6000, later + 12000));
  EXPECT_FALSE(clocks.Answered(1, later, later, later + 50000));
}

// The fifth answer settles it, though an earlier one was better.
TEST(clock_offsets_that_settle_are_the_best_so_far) {
  ClockOffsets clocks(1);
  for (int64_t way : {300, 20, 200, 100}) {
    EXPECT_FALSE(clocks.Answered(0, 1000, 1000 + way / 2, 1000 + way));
  }
  const auto settled = clocks.Answered(0, 2000, 2025, 2050);
  ASSERT_TRUE(settled.has_value());
  EXPECT_EQ(settled->error_ns, 10);
}

TEST(clock_offsets_refuse_answers_that_cannot_be) {
  ClockOffsets clocks(1);
  (void)clocks.Answered(0, 10, 5, 9);
  (void)clocks.Answered(0, 10, -5, 20);
  (void)clocks.Answered(0, -10, 5, 20);
  (void)clocks.Answered(0, 0, 5, int64_t{1} << 40);
  (void)clocks.Answered(0, 0, 5, int64_t{1} << 40);
  EXPECT_FALSE(clocks.Best(0).has_value());
  EXPECT_FALSE(clocks.is_settled(0));
}

}  // namespace
}  // namespace hvd
