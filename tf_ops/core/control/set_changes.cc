// SPDX-License-Identifier: Apache-2.0
// Matches the ranks' calls, and takes a set from its preparation to its end.
#include "core/control/set_changes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/control/agreement.h"
#include "core/process_set.h"

namespace hvd {
namespace {

Status Unexpected(int rank, const char* what) {
  return Internal("rank " + std::to_string(rank) + " " + what +
                  " of process sets at the wrong time.");
}

// Such as "add_process_set([0, 1])". Ranks may not be what they should.
std::string NameAnyCall(const SetRequest& request) {
  if (request.error.ok()) return NameCall(request);
  return std::string(request.removes ? "remove" : "add") + "_process_set";
}

}  // namespace

SetChanges::SetChanges(int size, const std::vector<std::vector<int>>& sets)
    : size_(size), asked_(static_cast<size_t>(size)) {
  for (const std::vector<int>& ranks : sets) {
    const int id = ++serials_;
    sets_[id] = {id, id, ranks};
    std::sort(sets_[id].ranks.begin(), sets_[id].ranks.end());
  }
}

Status SetChanges::Handle(int rank, const SetRequest& request,
                          Clock::time_point now) {
  // A rank makes one call at a time.
  if (asked_[rank].has_value() || due_.has_value() || preparing_.has_value()) {
    return Unexpected(rank, "asks for a change");
  }
  if (asked_count_ == 0) asked_since_ = now;
  asked_[rank] = request;
  if (++asked_count_ == size_) Decide();
  return Status::Ok();
}

std::vector<std::optional<SetRequest>> SetChanges::TakeRequests() {
  asked_count_ = 0;
  return std::exchange(asked_, std::vector<std::optional<SetRequest>>(size_));
}

void SetChanges::RefuseWithout(const std::vector<int>& joined) {
  if (asked_count_ == 0) return;
  std::vector<int> absent;
  for (int rank = 0; rank < size_; ++rank) {
    if (asked_[rank].has_value()) continue;
    // That rank may join, too, and is named then.
    if (std::count(joined.begin(), joined.end(), rank) == 0) return;
    absent.push_back(rank);
  }
  const auto requests = TakeRequests();
  const auto first =
      std::find_if(requests.begin(), requests.end(),
                   [](const auto& asked) { return asked.has_value(); });
  Refuse(Status(StatusCode::kFailedPrecondition,
                NameAnyCall(**first) +
                    " needs every rank of the job, and hvd.join() has been "
                    "called on " +
                    NameRanks(absent) +
                    "; add and remove process sets before any rank joins, or "
                    "after all have.",
                {CauseKind::kRanksDiffer, -1, ""}));
}

void SetChanges::Decide() {
  const Status status = CheckRequests();
  const SetRequest request = *TakeRequests()[0];
  if (!status.ok()) return Refuse(status);
  if (request.removes) return Remove(request.id);
  if (const Status why = CheckNew(request.ranks); !why.ok()) return Refuse(why);
  if (!draining_.empty()) {
    due_ = request.ranks;
    return;
  }
  Prepare(request.ranks);
}

Status SetChanges::CheckRequests() const {
  std::map<std::string, std::vector<int>> ranks_of;  // by call
  for (int rank = 0; rank < size_; ++rank) {
    const SetRequest& request = *asked_[rank];
    if (!request.error.ok()) {
      return request.error.Reworded(
          NameAnyCall(request) + " failed on " + NameRanks({rank}) +
          ", and so on all ranks: " + request.error.message());
    }
    ranks_of[NameCall(request)].push_back(rank);
  }
  if (ranks_of.size() == 1) return Status::Ok();
  std::vector<std::pair<std::vector<int>, std::string>> calls;
  for (const auto& [call, ranks] : ranks_of) calls.emplace_back(ranks, call);
  std::sort(calls.begin(), calls.end());
  std::string text = "the ranks change process sets differently: ";
  for (size_t i = 0; i < calls.size(); ++i) {
    text += (i == 0 ? "" : ", ") + calls[i].second + " on " +
            NameRanks(calls[i].first);
  }
  text += "; make the same calls in the same order on every rank of the job.";
  return Status(StatusCode::kFailedPrecondition, std::move(text),
                {CauseKind::kRanksDiffer, -1, ""});
}

Status SetChanges::CheckNew(const std::vector<int>& ranks) const {
  HVD_RETURN_IF_ERROR(CheckSetRanks(ranks, size_));
  if (static_cast<int>(ranks.size()) == size_) {
    return InvalidArgument("add_process_set(" + RanksText(ranks) +
                           "): these are all ranks, which "
                           "hvd.global_process_set has; use that.");
  }
  for (const auto& [id, set] : sets_) {
    if (set.ranks != ranks) continue;
    return InvalidArgument("add_process_set(" + RanksText(ranks) +
                           "): process set " + std::to_string(id) +
                           " has the same ranks; use that.");
  }
  if (sets_.size() >= kProcessSetSlots - 1) {
    return InvalidArgument(
        "add_process_set(" + RanksText(ranks) + "): there are " +
        std::to_string(sets_.size()) +
        " process sets, and there can be no more at a time; remove one.");
  }
  return Status::Ok();
}

void SetChanges::Refuse(Status why, int serial) {
  SetChange change;
  change.step = SetStep::kRefuse;
  change.serial = serial;
  change.status = std::move(why);
  news_.push_back(std::move(change));
}

void SetChanges::Prepare(std::vector<int> ranks) {
  Preparing& preparing = preparing_.emplace(Preparing{});
  preparing.id = FreeId();
  preparing.set = {++serials_, FreeSlot(), std::move(ranks)};
  preparing.unanswered.insert(preparing.set.ranks.begin(),
                              preparing.set.ranks.end());
  SetChange change;
  change.step = SetStep::kPrepare;
  change.serial = preparing.set.serial;
  change.id = preparing.id;
  change.slot = preparing.set.slot;
  change.ranks = preparing.set.ranks;
  news_.push_back(std::move(change));
}

Status SetChanges::Handle(int rank, const SetAnswer& answer) {
  if (preparing_.has_value() && preparing_->set.serial == answer.serial) {
    if (preparing_->unanswered.erase(rank) == 0) {
      return Unexpected(rank, "answers to a change");
    }
    if (!answer.status.ok()) preparing_->failed[rank] = answer.status;
    if (preparing_->unanswered.empty()) EndPreparation();
    return Status::Ok();
  }
  const auto draining = draining_.find(answer.serial);
  if (draining == draining_.end() || draining->second.erase(rank) == 0) {
    return Unexpected(rank, "answers to a change");
  }
  if (!draining->second.empty()) return Status::Ok();
  draining_.erase(draining);
  if (draining_.empty() && due_.has_value()) {
    std::vector<int> ranks = std::move(*due_);
    due_.reset();
    Prepare(std::move(ranks));
  }
  return Status::Ok();
}

void SetChanges::EndPreparation() {
  const Preparing prepared = std::move(*preparing_);
  preparing_.reset();
  if (prepared.failed.empty()) {
    SetChange change;
    change.step = SetStep::kCommit;
    change.serial = prepared.set.serial;
    change.id = prepared.id;
    change.ranks = prepared.set.ranks;
    news_.push_back(std::move(change));
    sets_[prepared.id] = prepared.set;
    return;
  }
  // One reason is enough. The first rank's is the same for all.
  const auto& [rank, status] = *prepared.failed.begin();
  Refuse(Status(status.code(),
                "add_process_set(" + RanksText(prepared.set.ranks) +
                    ") failed on " + NameRanks({rank}) +
                    ", and so on all ranks: " + status.message(),
                {CauseKind::kCallFailed, rank, ""}),
         prepared.set.serial);
}

void SetChanges::Remove(int id) {
  const auto found = sets_.find(id);
  if (found == sets_.end()) {
    return Refuse(
        InvalidArgument("remove_process_set: there is no process set " +
                        std::to_string(id) + "."));
  }
  const Known set = std::move(found->second);
  sets_.erase(found);
  SetChange change;
  change.step = SetStep::kRemove;
  change.serial = set.serial;
  change.id = id;
  change.status = FailedPrecondition("process set " + std::to_string(id) +
                                     " (ranks " + RanksText(set.ranks) +
                                     ") was removed by remove_process_set.");
  draining_[set.serial] = {set.ranks.begin(), set.ranks.end()};
  news_.push_back(std::move(change));
}

std::optional<SetChange> SetChanges::Next() {
  if (news_.empty()) return std::nullopt;
  std::optional<SetChange> next = std::move(news_.front());
  news_.pop_front();
  return next;
}

std::optional<Stall> SetChanges::Waiting(Clock::time_point now) const {
  if (asked_count_ == 0) return std::nullopt;
  Stall stall;
  std::set<std::string> calls;
  for (int rank = 0; rank < size_; ++rank) {
    if (!asked_[rank].has_value()) {
      stall.missing.push_back(rank);
    } else {
      calls.insert(NameAnyCall(*asked_[rank]));
    }
  }
  stall.are_calls = true;
  stall.names.assign(calls.begin(), calls.end());
  stall.waited_s = std::chrono::duration<double>(now - asked_since_).count();
  return stall;
}

// No set is prepared before those that are removed have left the wire.
int SetChanges::FreeSlot() const {
  std::set<int> taken;
  for (const auto& [id, set] : sets_) taken.insert(set.slot);
  for (int slot = 1; slot < kProcessSetSlots; ++slot) {
    if (taken.count(slot) == 0) return slot;
  }
  return 0;
}

int SetChanges::FreeId() const {
  int id = 1;
  while (sets_.count(id) > 0) ++id;
  return id;
}

}  // namespace hvd
