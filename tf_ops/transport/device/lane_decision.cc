// SPDX-License-Identifier: Apache-2.0
// LaneDecision: ranks meet, and tell each other what they have.
#include "transport/device/lane_decision.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/log.h"
#include "transport/device/find_offer.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

}  // namespace

LaneDecision::LaneDecision(Transport* host, std::shared_ptr<GpuQueue> queue,
                           Communicators* communicators,
                           std::function<void()> wake, const LaneOwner* owner,
                           milliseconds connect_limit)
    : host_(host),
      queue_(std::move(queue)),
      communicators_(communicators),
      wake_(std::move(wake)),
      owner_(owner),
      connect_limit_(connect_limit),
      trial_limit_(connect_limit),
      communicator_(std::make_unique<WatchedCommunicator>()),
      self_(std::make_shared<LaneDecision*>(this)) {}

LaneDecision::~LaneDecision() {
  *self_ = nullptr;
  // Other sets do not wait for what ends here.
  if (trial_ != nullptr) trial_->Leave();
  // Before the memory that its kernels use goes.
  communicator_.reset();
}

void LaneDecision::Notice(const Batch& batch) {
  const bool wants_to = state_ == State::kUndecided ||
                        state_ == State::kConnected ||
                        state_ == State::kTried || state_ == State::kAgreed;
  if (!wants_to || is_asking_) return;
  for (const Segment& segment : batch.segments) {
    if (segment.ready != nullptr) ready_ = segment.ready;
  }
  if (ready_ == nullptr) return;  // this rank has joined
  Ask();
}

void LaneDecision::Ask() {
  is_asking_ = true;
  owner_->ask_to_meet(
      [self = std::weak_ptr<LaneDecision*>(self_)](const Status& answer) {
        const auto decision = self.lock();
        if (decision != nullptr && *decision != nullptr) {
          (*decision)->HearAnswer(answer);
        }
      });
}

void LaneDecision::HearAnswer(const Status& answer) {
  // Only now may it ask again: a rank that had joined may have asked after the
  // others had met.
  is_asking_ = false;
  if (answer.ok()) return;
  // The set has ended. No trial is under way: a meeting answers at once, so
  // what was asked before the trial has been answered.
  state_ = State::kStagedForGood;
  if (communicator_ != nullptr) communicator_->Destroy();
}

void LaneDecision::Meet(bool all_came) {
  // A rank that has joined cannot say what GPU it has, nor whether it is
  // connected. The next batch asks again.
  if (!all_came) return;
  switch (state_) {
    case State::kUndecided:
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

std::unique_ptr<WatchedCommunicator> LaneDecision::Take() {
  return state_ == State::kDirect ? std::move(communicator_) : nullptr;
}

bool LaneDecision::Advance() {
  if (!own_on_host_.empty()) ForgetOwnOnHost();
  switch (state_) {
    case State::kOffering:
      return AdvanceOffering();
    case State::kConnecting:
      return AdvanceConnecting();
    case State::kTrying:
      return AdvanceTrial();
    case State::kTelling:
      return AdvanceTelling();
    default:
      return false;
  }
}

// --- Offers ---

void LaneDecision::ExchangeOffers() {
  exchange_ = std::make_shared<LaneExchange>();
  own_on_host_.push_back(
      LaneExchange::TellOffers(exchange_, offer_, host_, *owner_));
}

void LaneDecision::StartOffering() {
  state_ = State::kOffering;
  offer_ =
      FindOffer(*owner_, communicators_, queue_.get(), ready_, connect_limit_);
  ExchangeOffers();
  own_on_host_.push_back(LaneExchange::TellIds(exchange_, host_));
}

bool LaneDecision::AdvanceOffering() {
  if (exchange_->has_offers() && !exchange_->has_own_id()) {
    is_by_host_ = IsByHost(exchange_->offers(), owner_->hosts);
    // An identity is made only where it is used: NCCL listens for its ranks.
    const bool makes_it =
        exchange_->verdict().ok() && host_->rank() == GpuPeers().front();
    exchange_->SetOwnId(makes_it ? communicators_->NewId() : std::string());
    return true;
  }
  if (!exchange_->has_offers() || !exchange_->has_ids()) return false;
  const auto ended = std::move(exchange_);
  if (ended->verdict().ok()) {
    Connect(*ended);
  } else {
    StayStaged(ended->verdict());
  }
  return true;
}

std::vector<int> LaneDecision::GpuPeers() const {
  if (is_by_host_) {
    return owner_->hosts.ranks[static_cast<size_t>(
        owner_->hosts.host[static_cast<size_t>(host_->rank())])];
  }
  std::vector<int> all(static_cast<size_t>(host_->size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// --- The verdict ---

void LaneDecision::StartTelling() {
  state_ = State::kTelling;
  ExchangeOffers();
}

bool LaneDecision::AdvanceTelling() {
  if (!exchange_->has_offers()) return false;
  const auto ended = std::move(exchange_);
  if (ended->verdict().ok()) {
    state_ = State::kAgreed;
    WarnOfKernels(*ended);
    Ask();
  } else {
    StayStaged(ended->verdict());
  }
  return true;
}

void LaneDecision::WarnOfKernels(const LaneExchange& exchange) {
  if (host_->rank() != 0 || all_have_kernels_) return;
  const std::string lack = LackOfKernels(exchange.offers(), owner_->job_ranks);
  if (!queue_->IsNews(lack)) return;
  Log(LogLevel::kWarning,
      lack +
          "; these stay in host memory: sparse gradients, compressed tensors, "
          "scaled products, and means of float16 and bfloat16 whose divisor is "
          "no power of two");
}

void LaneDecision::StayStaged(const Status& why) {
  state_ = State::kStagedForGood;
  // Nothing needs it, nor why it was broken.
  communicator_ = std::make_unique<WatchedCommunicator>();
  // Else the job ends, and has other words for it.
  if (host_->rank() != 0 || why.code() != StatusCode::kFailedPrecondition) {
    return;
  }
  // Sets mostly have it in common.
  if (!queue_->IsNews(why.message())) return;
  Log(LogLevel::kWarning,
      "tensors on GPUs are reduced in host memory, not by NCCL: " +
          why.message());
}

// --- What it has on the host transport ---

int LaneDecision::own_in_flight() const {
  int count = -trial_surplus();
  for (const BatchId id : own_on_host_) count += host_->count_of(id);
  return count;
}

void LaneDecision::ForgetOwnOnHost() {
  const auto is_over = [this](BatchId id) { return host_->count_of(id) == 0; };
  own_on_host_.erase(
      std::remove_if(own_on_host_.begin(), own_on_host_.end(), is_over),
      own_on_host_.end());
}

}  // namespace hvd
