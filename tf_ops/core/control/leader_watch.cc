// SPDX-License-Identifier: Apache-2.0
// The part of Leader that tells people why nothing moves.
#include <algorithm>
#include <chrono>
#include <utility>

#include "core/control/leader.h"
#include "core/control/mismatch.h"

namespace hvd {
namespace {

double SecondsBetween(Leader::Clock::time_point from,
                      Leader::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Leader::Watched Leader::Watch(Clock::time_point now) {
  Watched watched;
  if (pending_.empty()) return watched;
  const bool is_mismatch = AllWaitForOthers(now);
  if (is_mismatch && !mismatch_warned_) {
    mismatch_warned_ = true;
    watched.warnings.push_back(MismatchText(now));
  }
  FindStalls(now, &watched);
  if (is_mismatch && watched.lost.has_value()) {
    // No rank is to blame, because all wait.
    watched.lost.reset();
    FailMismatch(now);
  }
  return watched;
}

void Leader::FindStalls(Clock::time_point now, Watched* watched) {
  const double warning_s = options_.stall_warning_s;
  const double shutdown_s = options_.stall_shutdown_s;
  // Groups the tensors by the ranks that are missing. A warning that is due
  // also names tensors that have waited for half as long. So a stall makes one
  // warning.
  struct Group {
    Stall stall;
    std::vector<Pending*> pending;
    bool is_due = false;
  };
  std::map<std::vector<int>, Group> groups;
  if (warning_s <= 0 && shutdown_s <= 0) return;
  const double shortest_s = warning_s <= 0 ? shutdown_s
                            : shutdown_s <= 0
                                ? 0.5 * warning_s
                                : std::min(0.5 * warning_s, shutdown_s);
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
    // The gaps between warnings double while the tensor waits.
    for (Pending* pending : group.pending) {
      const double age_s = SecondsBetween(pending->since, now);
      pending->next_warning_s =
          std::max(2 * pending->next_warning_s, age_s + warning_s);
    }
    watched->stalls.push_back(std::move(group.stall));
  }
}

bool Leader::AllWaitForOthers(Clock::time_point now) const {
  if (options_.mismatch_warning_s <= 0 ||
      SecondsBetween(last_submission_, now) < options_.mismatch_warning_s) {
    return false;
  }
  for (int rank = 0; rank < size_; ++rank) {
    const auto waits = [rank](const auto& element) {
      return element.second.fronts[rank].signature != nullptr;
    };
    // A rank that waits for nothing may just be slow.
    if (std::none_of(pending_.begin(), pending_.end(), waits)) return false;
  }
  return true;
}

std::string Leader::MismatchText(Clock::time_point now) const {
  std::vector<WaitedFor> tensors;
  for (const auto& [key, pending] : pending_) {
    WaitedFor& tensor = tensors.emplace_back();
    tensor.name = key.name;
    for (int rank = 0; rank < size_; ++rank) {
      if (pending.fronts[rank].signature == nullptr) continue;
      tensor.signature = pending.fronts[rank].signature;
      tensor.ranks.push_back(job_ranks_[rank]);
    }
  }
  return hvd::MismatchText(std::move(tensors), job_ranks_,
                           SecondsBetween(last_submission_, now));
}

void Leader::FailMismatch(Clock::time_point now) {
  const SharedStatus why =
      Share(Status(StatusCode::kFailedPrecondition, MismatchText(now),
                   {CauseKind::kRanksDiffer, -1, ""}));
  std::vector<Key> keys;
  for (const auto& [key, pending] : pending_) keys.push_back(key);
  std::vector<StepOfRank> lost;
  for (const Key& key : keys) {
    Pending* const pending = &pending_.find(key)->second;
    for (int rank = 0; rank < size_; ++rank) {
      for (int place = PlacesOf(*pending, rank) - 1; place >= 0; --place) {
        const int64_t step = At(pending, rank, place)->step;
        if (step != 0) {
          lost.push_back({rank, step});
        } else {
          FailAt(pending, rank, place, why);
        }
      }
    }
    EraseIfEmpty(key);
  }
  HitSteps(0, why, std::move(lost));
}

}  // namespace hvd
