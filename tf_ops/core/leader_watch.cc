// SPDX-License-Identifier: Apache-2.0
// The part of Leader that tells people why nothing moves.
#include <algorithm>
#include <chrono>

#include "core/agreement.h"
#include "core/leader.h"

namespace hvd {
namespace {

constexpr size_t kNamesShown = 4;

double SecondsBetween(Leader::Clock::time_point from,
                      Leader::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string Whole(double seconds) {
  return std::to_string(static_cast<int64_t>(seconds + 0.5)) + " s";
}

// "'a', 'b' and 3 more"
std::string NameSome(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  std::string text;
  for (size_t i = 0; i < names.size() && i < kNamesShown; ++i) {
    text += (i > 0 ? ", '" : "'") + names[i] + "'";
  }
  if (names.size() > kNamesShown) {
    text += " and " + std::to_string(names.size() - kNamesShown) + " more";
  }
  return text;
}

}  // namespace

std::vector<std::string> Leader::Watch(Clock::time_point now) {
  std::vector<std::string> warnings;
  if (pending_.empty()) return warnings;
  WarnOfMismatch(now, &warnings);
  WarnOfStalls(now, &warnings);
  return warnings;
}

void Leader::WarnOfStalls(Clock::time_point now,
                          std::vector<std::string>* warnings) {
  if (options_.stall_warning_s <= 0) return;
  // Missing ranks, and the names that wait for just those.
  std::map<std::vector<int>, std::vector<std::string>> stalled;
  for (auto& [key, pending] : pending_) {
    if (SecondsBetween(pending.warned, now) < options_.stall_warning_s) {
      continue;
    }
    pending.warned = now;
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (pending.fronts[rank].signature == nullptr) {
        missing.push_back(job_ranks_[rank]);
      }
    }
    stalled[missing].push_back(key.name);
  }
  for (auto& [missing, names] : stalled) {
    warnings->push_back(
        "For " + Whole(options_.stall_warning_s) + " or more, " +
        std::to_string(names.size()) + " tensor(s) wait for " +
        NameRanks(missing) + ": " + NameSome(names) +
        ". Either that rank is slow, or it does not run the same operations.");
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
         Whole(options_.mismatch_warning_s) + " (" + text + ")." +
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
    Fail(key, {rank}, FailedPrecondition(text));
    EraseIfEmpty(key);
  }
}

std::string Leader::LikelyPairs(
    const std::vector<std::vector<const Pending*>>& waits) const {
  std::string text;
  size_t pairs = 0;
  for (const Pending* first : waits[0]) {
    for (int rank = 1; rank < size_ && pairs < kNamesShown; ++rank) {
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
