// SPDX-License-Identifier: Apache-2.0
// Trace: what is noted, what is counted, and what the autotuner hears.
#include "core/trace.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "core/control/autotuner.h"
#include "harness.h"
#include "trace_calls.h"

namespace hvd {
namespace {

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
  EXPECT_EQ(first.serial, 2);
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
  // There are no times of a batch that is given up.
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

}  // namespace
}  // namespace hvd
