// SPDX-License-Identifier: Apache-2.0
// The part of DirectLane for how batches of a communicator end: done, failed,
// cancelled, or with a member.
#include <chrono>
#include <utility>

#include "transport/device/direct_lane.h"

namespace hvd {
namespace {

// A communicator that fails does not say because of whom. The runtime soon
// does, if a peer has gone. After that it is a failure of its own.
constexpr std::chrono::seconds kUntilAPeerIsNamed{5};

// Longer than a rank that leaves serves what it has started. One that failed
// may serve nothing. What its GPU was given completes in less.
constexpr std::chrono::seconds kAfterAnEnd{6}, kAfterAFailure{1};

}  // namespace

bool DirectLane::IsOver(Flight* flight) {
  if (flight->stage != Stage::kOver) return false;
  if (broken().ok() || !flight->status.ok()) return true;
  // Cancel may bring the name of a peer that is lost.
  if (Clock::now() < communicator_->broken_at() + kUntilAPeerIsNamed)
    return false;
  flight->status = broken();
  return true;
}

void DirectLane::MemberEnded(const Status& why, bool has_failed) {
  const Clock::time_point at =
      Clock::now() + (has_failed ? kAfterAFailure : kAfterAnEnd);
  if (!member_end_.ok() && end_at_ <= at) return;
  member_end_ = why;
  end_at_ = at;
}

void DirectLane::EndWithMember() {
  if (member_end_.ok() || Clock::now() < end_at_) return;
  decision_.EndWithMember(member_end_);
  for (const auto& [id, flight] : flights_) {
    // The host transport's own peers tell it.
    if (flight->stage == Stage::kMeeting) continue;
    communicator_->Break(member_end_);
    if (flight->status.ok()) flight->status = member_end_;
  }
}

void DirectLane::Cancel(BatchId id, const Status& why) {
  const auto staged = staged_.find(id);
  if (staged != staged_.end()) return staging_.Cancel(staged->second, why);
  const auto found = flights_.find(id);
  if (found == flights_.end()) return;
  const FlightPtr flight = found->second;
  if (!flight->done) return;  // it is done for the caller
  if (flight->status.ok()) flight->status = why;
  const bool is_lost = why.code() == StatusCode::kPeerLost;
  // The peers may have come to the batch, and would wait for this GPU.
  const bool has_come = flight->sizes == nullptr || flight->sizes->has_outputs;
  if (has_come && !is_lost) return;
  if (is_lost) communicator_->Break(why);
  if (flight->sizes != nullptr) host_->Cancel(flight->sizes->host_id, why);
  if (flight->stage == Stage::kMeeting) host_->Cancel(flight->before, why);
  if (is_lost) host_->Cancel(flight->behind, why);
  // What was not launched is not going to be.
  (void)Step(flight.get());
  if (!IsOver(flight.get())) return;  // the GPU is at it; Progress ends it
  flights_.erase(id);
  const BatchDone done = std::exchange(flight->done, nullptr);
  done(flight->status);
}

// The host transport counts what goes before and behind a batch, which counts
// once.
int DirectLane::in_flight() const {
  int count = staging_.in_flight() - decision_.trial_surplus();
  for (const auto& [id, flight] : flights_) count -= flight->host_batches() - 1;
  return count;
}

int DirectLane::count_of(BatchId id) const {
  const auto staged = staged_.find(id);
  if (staged != staged_.end()) return staging_.count_of(staged->second);
  const auto found = flights_.find(id);
  return found == flights_.end() ? 0 : found->second->host_batches();
}

}  // namespace hvd
