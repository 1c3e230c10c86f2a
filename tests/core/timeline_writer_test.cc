// SPDX-License-Identifier: Apache-2.0
// TimelineWriter: from chunks of events to rows of a file.
#include "core/timeline_writer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/timeline_rows.h"
#include "core/trace.h"
#include "harness.h"
#include "trace_calls.h"
#include "trace_text.h"

namespace hvd {
namespace {

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

// t5 of SomeChunk is open at its end. No later tensor goes to a second row.
void ExpectEndOfOpen(const std::string& text) {
  const auto ends = LinesWith(text, {"\"lost\":true"});
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
  EXPECT_EQ(LinesWith(text, {"{\"name\":\"a\"}"}).size(), 1u);
  EXPECT_EQ(LinesWith(text, {"{\"name\":\"a (2)\",\"tensor\":\"a\"}"}).size(),
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
  EXPECT_EQ(LinesWith(text, {"{\"name\":\"a [set 2]\"}"}).size(), 1u);
  EXPECT_EQ(LinesWith(text, {"{\"name\":\"batches of set 2\"}"}).size(), 1u);
  // Two phases of the tensor, and the batch.
  EXPECT_EQ(LinesWith(text, {"\"set\":2,\"batch\":7,\"set_serial\":5"}).size(),
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

TEST(trace_of_a_host_waits_although_much_has_waited_before) {
  TimelineWriter writer(TopologyOf({0, 1, 2}), 0);
  const std::string large(10 << 20, 'x');
  std::string text = writer.Add(1, large);
  text += writer.SetClock(1, {5, 1});
  text += writer.Add(2, large);
  EXPECT_EQ(text.find("hvd_lost_chunks"), std::string::npos);
  // The two together are more than may wait.
  EXPECT_NE(writer.Add(2, large).find("hvd_lost_chunks"), std::string::npos);
}

}  // namespace
}  // namespace hvd
