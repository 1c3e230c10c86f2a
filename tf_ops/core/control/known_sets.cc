// SPDX-License-Identifier: Apache-2.0
// Checks each change of process sets against those before it.
#include "core/control/known_sets.h"

#include <algorithm>
#include <string>

namespace hvd {
namespace {

// Such as "the log removes process set 2, which there is not."
Status Wrong(const char* verb, int id, const std::string& why) {
  return Internal("the log " + std::string(verb) + " process set " +
                  std::to_string(id) + ", " + why + ".");
}

}  // namespace

void KnownSets::Add(const ProcessSet& set) {
  sets_[set.serial] = {set.id, set.id};
  newest_serial_ = std::max(newest_serial_, set.serial);
}

Status KnownSets::Apply(const SetChange& change) {
  switch (change.step) {
    case SetStep::kPrepare:
      return Prepare(change);
    case SetStep::kCommit:
      return Commit(change);
    case SetStep::kRefuse:
      return Refuse(change);
    case SetStep::kRemove:
      return Remove(change);
    case SetStep::kClose:
      break;  // CheckSetChange refuses it
  }
  return Status::Ok();
}

Status KnownSets::Prepare(const SetChange& change) {
  if (begun_.has_value()) {
    return Wrong(
        "begins", change.id,
        "while process set " + std::to_string(begun_->id) + " is not ready");
  }
  if (change.serial <= newest_serial_) {
    return Wrong("begins", change.id, "whose number was used before");
  }
  for (const auto& [serial, known] : sets_) {
    if (known.id != change.id && known.slot != change.slot) continue;
    return Wrong("begins", change.id,
                 "in the place of process set " + std::to_string(known.id));
  }
  begun_ = change;
  newest_serial_ = change.serial;
  return Status::Ok();
}

Status KnownSets::Commit(const SetChange& change) {
  if (!begun_.has_value() || begun_->serial != change.serial ||
      begun_->id != change.id || begun_->ranks != change.ranks) {
    return Wrong("commits to", change.id, "which it has not begun");
  }
  sets_[change.serial] = {change.id, begun_->slot};
  begun_.reset();
  return Status::Ok();
}

Status KnownSets::Refuse(const SetChange& change) {
  // 0: the call that fails has begun no set.
  const int serial = begun_.has_value() ? begun_->serial : 0;
  if (change.serial != serial) {
    return Internal(
        "the log refuses process set number " + std::to_string(change.serial) +
        ", and has begun " +
        (serial == 0 ? "none" : "number " + std::to_string(serial)) + ".");
  }
  begun_.reset();
  return Status::Ok();
}

Status KnownSets::Remove(const SetChange& change) {
  const auto found = sets_.find(change.serial);
  if (found == sets_.end() || found->second.id != change.id) {
    return Wrong("removes", change.id, "which there is not");
  }
  if (begun_.has_value()) {
    return Wrong(
        "removes", change.id,
        "while process set " + std::to_string(begun_->id) + " is not ready");
  }
  sets_.erase(found);
  return Status::Ok();
}

}  // namespace hvd
