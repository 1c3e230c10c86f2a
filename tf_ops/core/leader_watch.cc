// SPDX-License-Identifier: Apache-2.0
// The part of Leader that tells people why nothing moves.
#include <algorithm>
#include <chrono>

#include "core/agreement.h"
#include "core/leader.h"

namespace hvd {
namespace {

constexpr size_t kPairsShown = 4;

double SecondsBetween(Leader::Clock::time_point from,
                      Leader::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Leader::Watched Leader::Watch(Clock::time_point now) {
  Watched watched;
  if (pending_.empty()) return watched;
  WarnOfMismatch(now, &watched.warnings);
  FindStalls(now, &watched);
  return watched;
}

void Leader::FindStalls(Clock::time_point now, Watched* watched) {
  const double warning_s = options_.stall_warning_s;
  const double shutdown_s = options_.stall_shutdown_s;
  // By the ranks that are missing. What is due is told together with what has
  // waited for half as long, so that a stall makes one warning.
  struct Group {
    Stall stall;
    std::vector<Pending*> pending;
    bool is_due = false;
  };
  std::map<std::vector<int>, Group> groups;
  const double shortest_s = 0.5 * (warning_s > 0 ? warning_s : shutdown_s);
  if (shortest_s <= 0) return;
  for (auto& [key, pending] : pending_) {
    const double waited_s = SecondsBetween(pending.since, now);
    if (waited_s < shortest_s) continue;
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (pending.fronts[rank].signature == nullptr) {
        missing.push_back(job_ranks_[rank]);
      }
    }
    Group& group = groups[missing];
    group.stall.missing = missing;
    group.stall.names.push_back(key.name);
    group.stall.waited_s = std::max(group.stall.waited_s, waited_s);
    group.pending.push_back(&pending);
    group.is_due |= warning_s > 0 && waited_s >= pending.next_warning_s;
  }
  for (auto& [missing, group] : groups) {
    const double waited_s = group.stall.waited_s;
    if (shutdown_s > 0 && waited_s >= shutdown_s &&
        (!watched->lost.has_value() || watched->lost->waited_s < waited_s)) {
      watched->lost = group.stall;
    }
    if (!group.is_due) continue;
    // Ever more seldom, for as long as the tensor waits.
    for (Pending* pending : group.pending) {
      const double age_s = SecondsBetween(pending->since, now);
      pending->next_warning_s =
          std::max(2 * pending->next_warning_s, age_s + warning_s);
    }
    watched->stalls.push_back(std::move(group.stall));
  }
}

void Leader::WarnOfMismatch(Clock::time_point now,
                            std::vector<std::string>* warnings) {
  if (mismatch_warned_ || options_.mismatch_warning_s <= 0 ||
      SecondsBetween(last_submission_, now) < options_.mismatch_warning_s) {
    return;
  }
  std::vector<std::vector<const Pending*>> waits(size_);
  bool all_eager = true;
  for (const auto& [key, pending] : pending_) {
    for (int rank = 0; rank < size_; ++rank) {
      const Waiting& front = pending.fronts[rank];
      if (front.signature == nullptr) continue;
      waits[rank].push_back(&pending);
      all_eager = all_eager && front.step == 0;
    }
  }
  std::string text;
  for (int rank = 0; rank < size_; ++rank) {
    if (waits[rank].empty()) return;  // it may just be slow
    std::vector<std::string> names;
    for (const Pending* pending : waits[rank]) {
      names.push_back(pending->key.name);
    }
    if (!text.empty()) text += "; ";
    text += RankName(rank) + ": " + NameSome(names);
    all_eager = all_eager && waits[rank].size() == 1;
  }
  mismatch_warned_ = true;
  text = "Every rank waits for a tensor that no other rank has asked for in " +
         WholeSeconds(options_.mismatch_warning_s) + " (" + text + ")." +
         LikelyPairs(waits) +
         " Ranks match tensors by name: give them the same name= and run the "
         "same operations on every rank.";
  if (!all_eager) {
    warnings->push_back(text);
    return;
  }
  // Each rank's caller sits in one eager call: nothing else can ever come.
  std::vector<std::pair<Key, int>> lost;
  for (int rank = 0; rank < size_; ++rank) {
    lost.emplace_back(waits[rank][0]->key, rank);
  }
  for (const auto& [key, rank] : lost) {
    TakeOut(&pending_.find(key)->second, rank, 0);
    Fail(key, {rank},
         Status(StatusCode::kFailedPrecondition, text,
                {CauseKind::kRanksDiffer, -1, key.name}));
    EraseIfEmpty(key);
  }
}

std::string Leader::LikelyPairs(
    const std::vector<std::vector<const Pending*>>& waits) const {
  std::string text;
  size_t pairs = 0;
  for (const Pending* first : waits[0]) {
    for (int rank = 1; rank < size_ && pairs < kPairsShown; ++rank) {
      for (const Pending* second : waits[rank]) {
        if (first == second ||
            !SameButFirstDims(*first->fronts[0].signature,
                              *second->fronts[rank].signature)) {
          continue;
        }
        ++pairs;
        text += " '" + first->key.name + "' on " + RankName(0) + " and '" +
                second->key.name + "' on " + RankName(rank) +
                " look like one tensor under two names.";
        break;
      }
    }
  }
  return text;
}

}  // namespace hvd
