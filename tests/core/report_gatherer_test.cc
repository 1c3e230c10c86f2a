// SPDX-License-Identifier: Apache-2.0
// ReportGatherer and HostTree: who tells whom what, and when.
#include "core/control/report_gatherer.h"

#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "core/control/host_tree.h"
#include "harness.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// Ranks 2, 5 and 6 of a set share a host.
class Host {
 public:
  void Say(int rank, ReportItem item, uint64_t log_seen = 0) {
    EXPECT_EQ(
        gatherer_.Add(rank, {log_seen, {std::move(item)}}, now_).message(), "");
  }
  void Pass(milliseconds time) { now_ += time; }

  // Such as "2,5,6 of 10,20,30: 7 8 | 5 joins". Empty: nothing.
  std::string Told() {
    const auto report = gatherer_.Take(now_);
    if (!report.has_value()) return "";
    log_seen = report->log_seen;
    std::string text;
    for (const HostItem& item : report->items) {
      if (!text.empty()) text += " | ";
      text += std::visit([](const auto& value) { return Text(value); }, item);
    }
    return text;
  }
  ReportGatherer& gatherer() { return gatherer_; }
  milliseconds UntilDue() const {
    return std::chrono::duration_cast<milliseconds>(*gatherer_.due() - now_);
  }
  ReportGatherer::Clock::time_point now() const { return now_; }

  uint64_t log_seen = 0;

 private:
  template <typename Number>
  static std::string List(const std::vector<Number>& numbers, char between) {
    std::string text;
    for (Number number : numbers) {
      if (!text.empty()) text += between;
      text += std::to_string(number);
    }
    return text;
  }
  static std::string Text(const HostSubmissions& host) {
    return List(host.ranks, ',') + " of " + List(host.steps, ',') + ": " +
           List(host.numbers, ' ');
  }
  static std::string Text(const HostMemberItem& member) {
    const std::string rank = std::to_string(member.rank);
    if (const auto* one = std::get_if<Submission>(&member.item)) {
      return rank + " has " + one->key.name;
    }
    if (const auto* many = std::get_if<CachedSubmissions>(&member.item)) {
      return rank + " has " + List(many->numbers, ' ') + " of " +
             List(many->first_dims, ' ');
    }
    if (std::holds_alternative<Withdrawal>(member.item)) {
      return rank + " withdraws";
    }
    return rank +
           (std::holds_alternative<Join>(member.item) ? " joins" : " unjoins");
  }

  ReportGatherer gatherer_{{2, 5, 6}};
  ReportGatherer::Clock::time_point now_{};
};

CachedSubmissions Numbers(int64_t step, std::vector<SignatureNumber> numbers,
                          Shape first_dims = {}) {
  return {step, std::move(numbers), std::move(first_dims)};
}

Submission Name(const std::string& name) {
  Submission submission;
  submission.key.name = name;
  return submission;
}

TEST(report_gatherer_numbers_wait_for_the_whole_host) {
  Host host;
  EXPECT_FALSE(host.gatherer().due().has_value());
  host.Say(5, Numbers(20, {7, 8, 9}));
  host.Say(2, Numbers(10, {9, 8}));
  EXPECT_EQ(host.Told(), "");
  host.Say(6, Numbers(30, {8, 7}));
  EXPECT_EQ(host.Told(), "2,5,6 of 10,20,30: 8");
  host.Say(2, Numbers(10, {7}));
  host.Say(6, Numbers(30, {9}));
  EXPECT_EQ(host.Told(), "2,5,6 of 10,20,30: 7 9");
  EXPECT_FALSE(host.gatherer().due().has_value());
  // Two sessions of one process: numbers of equal steps travel together.
  host.Say(2, Numbers(11, {1, 2}));
  host.Say(2, Numbers(12, {3, 4}));
  host.Say(5, Numbers(21, {1, 2}));
  host.Say(5, Numbers(22, {3, 4}));
  for (SignatureNumber id : {1, 3, 2, 4}) {
    host.Say(6, Numbers(31, {id}));
  }
  EXPECT_EQ(host.Told(), "2,5,6 of 11,21,31: 1 2 | 2,5,6 of 12,22,31: 3 4");
}

TEST(report_gatherer_numbers_with_first_dimensions_are_passed_on_at_once) {
  Host host;
  host.Say(5, Numbers(20, {7}));
  host.Say(5, Numbers(20, {8, 9}, {4, 0}));
  EXPECT_EQ(host.Told(), "5 has 8 9 of 4 0");
  // What is held stays so.
  host.Say(2, Numbers(10, {7}));
  host.Say(6, Numbers(30, {7}));
  EXPECT_EQ(host.Told(), "2,5,6 of 10,20,30: 7");
}

TEST(report_gatherer_what_waits_for_long_is_told_in_part) {
  Host host;
  host.Say(5, Numbers(20, {7}));
  host.Pass(milliseconds(15));
  host.Say(5, Numbers(20, {8}));
  EXPECT_EQ(host.UntilDue().count(), 5);
  host.Say(2, Numbers(10, {7}));
  host.Say(6, Numbers(30, {7}));
  EXPECT_EQ(host.Told(), "2,5,6 of 10,20,30: 7");
  // The older one has gone. The other has time left.
  host.Pass(milliseconds(5));
  EXPECT_EQ(host.Told(), "");
  EXPECT_EQ(host.UntilDue().count(), 15);
  host.Say(6, Numbers(30, {8}));
  host.Pass(milliseconds(15));
  host.Say(2, Numbers(10, {9}));
  const std::string both = host.Told();  // in any order
  EXPECT_TRUE(both == "5,6 of 20,30: 8 | 2 of 10: 9" ||
              both == "2 of 10: 9 | 5,6 of 20,30: 8");
  // The rest of it is another part.
  host.Say(2, Numbers(10, {8}));
  EXPECT_EQ(host.Told(), "");
  host.Pass(milliseconds(20));
  EXPECT_EQ(host.Told(), "2 of 10: 8");
}

TEST(report_gatherer_what_is_held_is_told_before_what_it_may_depend_on) {
  Host host;
  host.Say(5, Numbers(20, {7}));
  host.Say(6, Name("new"));  // depends on nothing
  EXPECT_EQ(host.Told(), "6 has new");
  host.Say(5, Withdrawal{{"x", 0}, 20, Cancelled("no")});
  host.Say(5, Numbers(21, {7}));
  EXPECT_EQ(host.Told(), "5 of 20: 7 | 5 withdraws");
  host.Say(2, Numbers(10, {7}));
  host.Say(6, Numbers(30, {7}));
  EXPECT_EQ(host.Told(), "2,5,6 of 10,21,30: 7");
  // It makes no sense, and the leader sees that.
  host.Say(2, Numbers(10, {8}));
  host.Say(2, Numbers(11, {8}));
  EXPECT_EQ(host.Told(), "2 of 10: 8");
}

TEST(report_gatherer_nothing_waits_for_ranks_that_have_joined) {
  Host host;
  host.Say(2, Numbers(10, {7}));
  host.Say(5, Join{});
  EXPECT_EQ(host.Told(), "2 of 10: 7 | 5 joins");
  host.Say(2, Numbers(10, {8}));
  EXPECT_EQ(host.Told(), "");
  host.Say(6, Numbers(30, {8}));
  EXPECT_EQ(host.Told(), "2,6 of 10,30: 8");
  host.Say(5, Unjoin{});
  host.Say(2, Numbers(10, {9}));
  host.Say(6, Numbers(30, {9}));
  EXPECT_EQ(host.Told(), "5 unjoins");
  host.Say(5, Join{});
  EXPECT_EQ(host.Told(), "2,6 of 10,30: 9 | 5 joins");
  host.gatherer().ForgetJoined();
  host.Say(2, Numbers(10, {1}));
  host.Say(6, Numbers(30, {1}));
  EXPECT_EQ(host.Told(), "");
}

// Else the leader would forget a number that is still held here.
TEST(report_gatherer_tells_no_record_that_is_newer_than_what_is_held) {
  Host host;
  for (int rank : {2, 5, 6}) host.Say(rank, Numbers(1, {7}), 10);
  EXPECT_EQ(host.Told(), "2,5,6 of 1,1,1: 7");
  EXPECT_EQ(host.log_seen, 10u);
  host.Say(2, Numbers(1, {8}), 11);
  for (int rank : {2, 5, 6}) host.Say(rank, Numbers(1, {9}), 12);
  EXPECT_EQ(host.Told(), "2,5,6 of 1,1,1: 9");
  EXPECT_EQ(host.log_seen, 10u);
  host.Say(5, Numbers(1, {8}), 13);
  host.Say(6, Numbers(1, {8}), 14);
  EXPECT_EQ(host.Told(), "2,5,6 of 1,1,1: 8");
  EXPECT_EQ(host.log_seen, 12u);
}

TEST(report_gatherer_refuses_what_makes_no_sense) {
  Host host;
  host.Say(5, Numbers(1, {7}), 3);
  EXPECT_FALSE(host.gatherer().Add(5, {2, {}}, host.now()).ok());
  EXPECT_FALSE(host.gatherer().Add(4, {3, {}}, host.now()).ok());
  EXPECT_FALSE(host.gatherer().Add(7, {3, {}}, host.now()).ok());
}

std::string Text(const HostTree& tree) {
  std::string text = std::to_string(tree.upper()) + ":";
  for (const LogReceiver& receiver : tree.receivers()) {
    text += " " + std::to_string(receiver.rank) + "(";
    for (int rank : receiver.hears_for) text += std::to_string(rank);
    text += ")";
  }
  return text;
}

TEST(host_tree_each_rank_finds_its_place) {
  const HostMap hosts = MakeHostMap({7, 3, 7, 9, 3, 7});
  const char* const places[] = {
      "0: 2(2) 5(5) 1(14) 3(3)", "0: 4(4)", "0:", "0:", "1:", "0:"};
  for (int rank = 0; rank < 6; ++rank) {
    const HostTree tree(hosts, rank, 6);
    EXPECT_TRUE(tree.is_on());
    EXPECT_EQ(tree.gathers(), rank == 0 || rank == 1 || rank == 3);
    EXPECT_EQ(Text(tree), places[rank]);
  }
  const HostTree tree(hosts, 0, 6);
  EXPECT_EQ(tree.HostOfGatherer(1), 1);
  EXPECT_EQ(tree.HostOfGatherer(3), 2);
  for (int rank : {-1, 2, 4, 6}) EXPECT_EQ(tree.HostOfGatherer(rank), -1);
}

TEST(host_tree_is_for_several_hosts_of_several_ranks) {
  for (const HostMap& hosts : {HostMap(), OneHost(3), EachAlone(3)}) {
    const HostTree leader(hosts, 0, 3), member(hosts, 2, 3);
    EXPECT_FALSE(leader.is_on() || leader.gathers() || member.gathers());
    EXPECT_EQ(Text(leader), "0: 1(1) 2(2)");
    EXPECT_EQ(Text(member), "0:");
    EXPECT_EQ(leader.HostOfGatherer(0), -1);
  }
}

}  // namespace
}  // namespace hvd
