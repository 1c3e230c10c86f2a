// SPDX-License-Identifier: Apache-2.0
// What the cases have in common.
#include "transport_contract.h"

#include <sched.h>

#include <chrono>
#include <numeric>
#include <utility>

#include "harness.h"
#include "set_of.h"

namespace hvd {

std::unique_ptr<Transport> ContractRank::NewTransport() {
  std::vector<int> ranks(size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return NewTransport(ranks);
}

std::unique_ptr<Transport> ContractRank::NewTransport(
    const std::vector<int>& ranks) {
  auto transport = backend_->NewTransport(next_slot_++, SetOf(ranks, rank()));
  if (EXPECT_TRUE(transport.ok())) return std::move(transport.value());
  return nullptr;
}

Call::Call(std::vector<float> in, int64_t out_count)
    : in_(std::move(in)), out_(static_cast<size_t>(out_count), -1.0f) {}

void Call::Start(Transport* transport, Batch batch) {
  if (batch.segments.empty()) {
    batch.segments = {
        {in_.data(), out_.data(), static_cast<int64_t>(in_.size())}};
    batch.segments[0].rows = batch.segments[0].count;
  }
  id_ = transport->Start(std::move(batch), [this](const Status& status) {
    EXPECT_FALSE(done_);
    done_ = true;
    status_ = status;
    if (then) then();
  });
  EXPECT_FALSE(done_);
}

bool Drive(std::initializer_list<Transport*> transports,
           const std::function<bool()>& met) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!met()) {
    bool moved = false;
    for (Transport* transport : transports) moved |= transport->Progress();
    if (moved) continue;
    sched_yield();
    if (std::chrono::steady_clock::now() > limit) {
      return EXPECT_TRUE(false && "done within a minute");
    }
  }
  return true;
}

bool Drive(Transport* transport, const std::function<bool()>& met) {
  return Drive({transport}, met);
}

void CheckSetIsWell(Transport* transport, int64_t count) {
  Call call(std::vector<float>(static_cast<size_t>(count), 1.0f), count);
  call.Start(transport, {});
  if (!Drive(transport, [&] { return call.done(); })) return;
  EXPECT_EQ(call.status().message(), "");
  EXPECT_TRUE(call.out() ==
              std::vector<float>(static_cast<size_t>(count),
                                 static_cast<float>(transport->size())));
}

int TakeFailures() { return test::failures.exchange(0); }

std::vector<ContractCase> ContractCases() {
  std::vector<ContractCase> cases = NumberCases();
  for (const auto& more :
       {AverageCases(), LifeCases(), FiniteCases(), RowCases(), PhaseCases(),
        JoinedCases(), AdasumCases(), SparseCases(), SparsePhaseCases(),
        DroppedCases(), PartnerCases(), PassingCases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

}  // namespace hvd
