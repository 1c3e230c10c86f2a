// SPDX-License-Identifier: Apache-2.0
// The part of DirectLane for how its ranks come to have a communicator.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/log.h"
#include "transport/device/direct_lane.h"
#include "transport/device/small_batch.h"

namespace hvd {
namespace {

// That of a communicator, with room for a library that needs more.
constexpr size_t kIdBytes = 128;

}  // namespace

void DirectLane::AskToMeet(const Batch& batch) {
  if (state_ != State::kStaged && state_ != State::kConnected) return;
  for (const Segment& segment : batch.segments) {
    if (segment.ready != nullptr) ready_ = segment.ready;
  }
  if (ready_ == nullptr) return;  // this rank has joined
  Ask(state_ == State::kStaged ? State::kMeeting : State::kMeetingAgain,
      Status::Ok());
}

void DirectLane::Ask(State next, const Status& error) {
  state_ = next;
  owner_.ask_to_meet(
      error, [self = std::weak_ptr<DirectLane*>(self_)](const Status& why) {
        const auto lane = self.lock();
        if (lane != nullptr && *lane != nullptr) (*lane)->HearAnswer(why);
      });
}

void DirectLane::HearAnswer(const Status& answer) {
  if (!answer.ok()) return StayStaged(answer);
  // Not all came, or Meet has gone on from here. Only now may it ask again: a
  // rank that had joined may have asked after the others had met.
  if (state_ == State::kMeeting) state_ = State::kStaged;
  if (state_ == State::kMeetingAgain) state_ = State::kConnected;
}

void DirectLane::Meet(bool all_came) {
  // A rank that has joined cannot say what card it has, nor whether it is
  // connected.
  if (!all_came) return;
  if (state_ == State::kMeeting) {
    StartOffering();
  } else if (state_ == State::kMeetingAgain) {
    state_ = State::kDirect;
  }
}

void DirectLane::StartOffering() {
  state_ = State::kOffering;
  offering_ = std::make_shared<Offering>();
  Offering& offering = *offering_;
  const Result<Communicators::Offer> found = communicators_->Look(ready_);
  if (!owner_.refusal.empty()) {
    offering.mine.Refuse(owner_.refusal);
  } else if (!found.ok()) {
    offering.mine.Refuse(found.status().message());
  } else if (const Status opened = queue_->OpenStream(ready_); !opened.ok()) {
    offering.mine.Refuse(opened.message());
  } else {
    offering.mine.has_kernels = queue_->stream()->CheckKernels().ok() ? 1 : 0;
    offering.mine.version = found.value().version;
    std::memcpy(offering.mine.card, found.value().card.data(),
                std::min(found.value().card.size(), LaneOffer::kCardBytes));
  }
  offering.all.resize(static_cast<size_t>(size()));
  offering.id.resize(kIdBytes);
  Batch offers = SmallBatch(Verb::kAllgather, DataType::kUint8, &offering.mine,
                            offering.all.data(), sizeof(LaneOffer));
  offers.rows = {
      std::vector<int64_t>(static_cast<size_t>(size()), sizeof(LaneOffer))};
  (void)host_->Start(std::move(offers), [given = offering_](const Status& why) {
    given->verdict = why.ok() ? hvd::Decide(given->all) : why;
    given->has_offers = true;
  });
  // It has its place in the order, and waits for the decision.
  Batch identity = SmallBatch(Verb::kBroadcast, DataType::kUint8,
                              offering.id.data(), offering.id.data(), kIdBytes);
  identity.inputs_are_ready = [given = offering_] { return given->is_decided; };
  (void)host_->Start(std::move(identity),
                     [given = offering_](const Status& why) {
                       if (given->verdict.ok()) given->verdict = why;
                       given->has_id = true;
                     });
}

bool DirectLane::Advance() {
  switch (state_) {
    case State::kOffering:
      return AdvanceOffering();
    case State::kConnecting:
      return AdvanceConnecting();
    default:
      return false;
  }
}

bool DirectLane::AdvanceOffering() {
  Offering& offering = *offering_;
  if (offering.has_offers && !offering.is_decided) {
    // An identity is made only where it is used: NCCL listens for its ranks.
    if (rank() == 0 && offering.verdict.ok()) {
      const Result<std::string> made = communicators_->NewId();
      if (made.ok() && made.value().size() <= kIdBytes) {
        offering.id = made.value();
        offering.id.resize(kIdBytes);
      }
    }
    offering.is_decided = true;
    return true;
  }
  if (!offering.has_offers || !offering.has_id) return false;
  const auto ended = std::move(offering_);
  if (!ended->verdict.ok()) {
    StayStaged(ended->verdict);
    return true;
  }
  // One of zeros: rank 0 could not make one. Its ranks refuse it alike.
  auto made = communicators_->Connect(ended->id, rank(), size(), ready_);
  if (!made.ok()) {
    Ask(State::kMeetingAgain, FailedPrecondition(made.status().message()));
    return true;
  }
  all_have_kernels_ = std::all_of(
      ended->all.begin(), ended->all.end(),
      [](const LaneOffer& offer) { return offer.has_kernels != 0; });
  communicator_ = std::move(made.value());
  state_ = State::kConnecting;
  connecting_since_ = Clock::now();
  return true;
}

bool DirectLane::AdvanceConnecting() {
  const Result<bool> is_ready = communicator_->IsReady();
  Status status = is_ready.status();
  if (is_ready.ok() && !is_ready.value()) {
    if (Clock::now() < connecting_since_ + connect_limit_) return false;
    status = FailedPrecondition("NCCL did not connect within " +
                                std::to_string(connect_limit_.count() / 1000) +
                                " s; NCCL_DEBUG=INFO shows what it waits for");
  }
  Ask(State::kMeetingAgain,
      status.ok() ? status : FailedPrecondition(status.message()));
  return true;
}

void DirectLane::StayStaged(const Status& why) {
  state_ = State::kStagedForGood;
  communicator_.reset();
  // Else the job ends, and has other words for it.
  if (rank() != 0 || why.code() != StatusCode::kFailedPrecondition) return;
  // Sets mostly have it in common.
  if (!queue_->IsNews(why.message())) return;
  Log(LogLevel::kWarning,
      "tensors on GPUs are reduced in host memory, not by NCCL: " +
          why.message());
}

}  // namespace hvd
