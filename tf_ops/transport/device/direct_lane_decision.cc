// SPDX-License-Identifier: Apache-2.0
// The part of DirectLane for how its ranks come to have a communicator.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/log.h"
#include "transport/device/direct_lane.h"
#include "transport/device/small_batch.h"

namespace hvd {
namespace {

// That of a communicator, with room for a library that needs more.
constexpr size_t kIdBytes = 128;

}  // namespace

void DirectLane::AskToMeet(const Batch& batch) {
  const bool wants_to = state_ == State::kStaged ||
                        state_ == State::kConnected ||
                        state_ == State::kTried || state_ == State::kAgreed;
  if (!wants_to || is_asking_) return;
  for (const Segment& segment : batch.segments) {
    if (segment.ready != nullptr) ready_ = segment.ready;
  }
  if (ready_ == nullptr) return;  // this rank has joined
  Ask();
}

void DirectLane::Ask() {
  is_asking_ = true;
  owner_.ask_to_meet(
      [self = std::weak_ptr<DirectLane*>(self_)](const Status& answer) {
        const auto lane = self.lock();
        if (lane != nullptr && *lane != nullptr) (*lane)->HearAnswer(answer);
      });
}

void DirectLane::HearAnswer(const Status& answer) {
  // Only now may it ask again: a rank that had joined may have asked after the
  // others had met.
  is_asking_ = false;
  if (answer.ok()) return;
  // The set has ended.
  state_ = State::kStagedForGood;
  communicator_.reset();
}

void DirectLane::Meet(bool all_came) {
  // A rank that has joined cannot say what GPU it has, nor whether it is
  // connected. The next batch asks again.
  if (!all_came) return;
  switch (state_) {
    case State::kStaged:
      return StartOffering();
    case State::kConnected:
      return StartTrial();
    case State::kTried:
      return StartTelling();
    case State::kAgreed:
      state_ = State::kDirect;
      return;
    default:
      return;
  }
}

void DirectLane::FindOffer() {
  const Result<Communicators::Offer> found = communicators_->Look(ready_);
  if (!owner_.refusal.empty()) {
    offer_.Refuse(owner_.refusal);
  } else if (!found.ok()) {
    offer_.Refuse(found.status().message());
  } else if (const Status opened = queue_->OpenStream(ready_); !opened.ok()) {
    offer_.Refuse(opened.message());
  } else {
    const Status kernels = queue_->stream()->CheckKernels();
    offer_.has_kernels = 1;
    if (!kernels.ok()) offer_.HasNoKernels(kernels.message());
    offer_.is_hierarchical = owner_.is_hierarchical ? 1 : 0;
    offer_.may_share_gpu = owner_.may_share_gpu ? 1 : 0;
    offer_.trial_limit_ms = static_cast<int32_t>(OwnTrialLimit().count());
    offer_.version = found.value().version;
    std::memcpy(offer_.gpu, found.value().gpu.data(),
                std::min(found.value().gpu.size(), LaneOffer::kGpuBytes));
  }
}

void DirectLane::ExchangeOffers() {
  decision_ = std::make_shared<Decision>();
  Decision& decision = *decision_;
  const auto ranks = static_cast<size_t>(size());
  decision.mine = offer_;
  decision.all.resize(ranks);
  Batch offers = SmallBatch(Verb::kAllgather, DataType::kUint8, &decision.mine,
                            decision.all.data(), sizeof(LaneOffer));
  offers.rows = {std::vector<int64_t>(ranks, sizeof(LaneOffer))};
  const auto decide = [given = decision_, hosts = owner_.hosts,
                       ranks = owner_.job_ranks](const Status& why) {
    given->verdict = why.ok() ? Decide(given->all, hosts, ranks) : why;
    given->has_offers = true;
  };
  own_on_host_.push_back(host_->Start(std::move(offers), decide));
}

void DirectLane::StartOffering() {
  state_ = State::kOffering;
  FindOffer();
  ExchangeOffers();
  Decision& decision = *decision_;
  const auto ranks = static_cast<size_t>(size());
  decision.id.resize(kIdBytes);
  decision.ids.resize(kIdBytes * ranks);
  // It has its place in the order, and waits for the decision.
  Batch identity =
      SmallBatch(Verb::kAllgather, DataType::kUint8, decision.id.data(),
                 decision.ids.data(), kIdBytes);
  identity.rows = {std::vector<int64_t>(ranks, kIdBytes)};
  identity.inputs_are_ready = [given = decision_] { return given->has_own_id; };
  own_on_host_.push_back(
      host_->Start(std::move(identity), [given = decision_](const Status& why) {
        if (given->verdict.ok()) given->verdict = why;
        given->has_ids = true;
      }));
}

void DirectLane::StartTelling() {
  state_ = State::kTelling;
  ExchangeOffers();
}

std::vector<int> DirectLane::GpuPeers() const {
  if (is_by_host_) {
    return owner_.hosts.ranks[static_cast<size_t>(
        owner_.hosts.host[static_cast<size_t>(rank())])];
  }
  std::vector<int> all(static_cast<size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

bool DirectLane::Advance() {
  switch (state_) {
    case State::kOffering:
      return AdvanceOffering();
    case State::kConnecting:
      return AdvanceConnecting();
    case State::kTelling:
      return AdvanceTelling();
    default:
      return false;
  }
}

bool DirectLane::AdvanceOffering() {
  Decision& decision = *decision_;
  if (decision.has_offers && !decision.has_own_id) {
    is_by_host_ = IsByHost(decision.all, owner_.hosts);
    // An identity is made only where it is used: NCCL listens for its ranks.
    if (decision.verdict.ok() && rank() == GpuPeers().front()) {
      const Result<std::string> made = communicators_->NewId();
      if (made.ok() && made.value().size() <= kIdBytes) {
        std::copy(made.value().begin(), made.value().end(),
                  decision.id.begin());
      }
    }
    decision.has_own_id = true;
    return true;
  }
  if (!decision.has_offers || !decision.has_ids) return false;
  const auto ended = std::move(decision_);
  if (ended->verdict.ok()) {
    Connect(*ended);
  } else {
    StayStaged(ended->verdict);
  }
  return true;
}

void DirectLane::Connect(const Decision& decision) {
  state_ = State::kConnecting;
  connecting_since_ = Clock::now();
  all_have_kernels_ = std::all_of(
      decision.all.begin(), decision.all.end(),
      [](const LaneOffer& offer) { return offer.has_kernels != 0; });
  for (const LaneOffer& offer : decision.all) {
    trial_limit_ =
        std::min(trial_limit_, std::chrono::milliseconds(offer.trial_limit_ms));
  }
  const std::vector<int> peers = GpuPeers();
  const auto own = std::find(peers.begin(), peers.end(), rank());
  // One of zeros: the rank could not make one. Its peers refuse it alike.
  auto made = communicators_->Connect(
      decision.ids.substr(static_cast<size_t>(peers.front()) * kIdBytes,
                          kIdBytes),
      static_cast<int>(own - peers.begin()), static_cast<int>(peers.size()),
      ready_);
  if (!made.ok()) return EndConnecting(made.status());
  communicator_ = std::move(made.value());
}

bool DirectLane::AdvanceConnecting() {
  const Result<bool> is_ready = communicator_->IsReady();
  if (is_ready.ok() && !is_ready.value()) {
    if (Clock::now() < connecting_since_ + connect_limit_) return false;
    offer_.is_guess = 1;
    EndConnecting(LimitReached("NCCL did not connect", connect_limit_));
  } else {
    EndConnecting(is_ready.status());
  }
  return true;
}

Status DirectLane::LimitReached(const std::string& what,
                                std::chrono::milliseconds limit) const {
  std::string text =
      what + " within " + std::to_string(limit.count() / 1000) + " s";
  if (limit < connect_limit_) text += ", half of HVD_STALL_SHUTDOWN_S";
  text += "; NCCL_DEBUG=INFO shows what it waits for";
  if (owner_.hosts.has_two_levels() && !is_by_host_) {
    text += "; HVD_HIERARCHICAL_ALLREDUCE=1 needs it within hosts only";
  }
  return FailedPrecondition(std::move(text));
}

void DirectLane::EndConnecting(const Status& status) {
  state_ = State::kConnected;
  if (!status.ok()) offer_.Refuse(status.message());
  Ask();
}

bool DirectLane::AdvanceTelling() {
  if (!decision_->has_offers) return false;
  const auto ended = std::move(decision_);
  if (ended->verdict.ok()) {
    state_ = State::kAgreed;
    WarnOfKernels(*ended);
    Ask();
  } else {
    StayStaged(ended->verdict);
  }
  return true;
}

void DirectLane::WarnOfKernels(const Decision& decision) {
  if (rank() != 0 || all_have_kernels_) return;
  const std::string lack = LackOfKernels(decision.all, owner_.job_ranks);
  if (!queue_->IsNews(lack)) return;
  Log(LogLevel::kWarning,
      lack +
          "; these stay in host memory: sparse gradients, compressed tensors, "
          "scaled products, and means of float16 and bfloat16 whose divisor is "
          "no power of two");
}

void DirectLane::StayStaged(const Status& why) {
  state_ = State::kStagedForGood;
  communicator_.reset();
  broken_ = Status::Ok();  // nothing needs it
  // Else the job ends, and has other words for it.
  if (rank() != 0 || why.code() != StatusCode::kFailedPrecondition) return;
  // Sets mostly have it in common.
  if (!queue_->IsNews(why.message())) return;
  Log(LogLevel::kWarning,
      "tensors on GPUs are reduced in host memory, not by NCCL: " +
          why.message());
}

}  // namespace hvd
