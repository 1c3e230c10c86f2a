// SPDX-License-Identifier: Apache-2.0
// Runtime::Start: what fails on one rank fails on all.
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/exception_status.h"
#include "core/runtime.h"
#include "forwarding_backend.h"
#include "harness.h"
#include "run_ranks.h"
#include "thread_world.h"

namespace hvd {
namespace {

// What a rank meets where its Backend would make a transport.
using Mishap = std::function<Status()>;

// A Backend with a mishap.
class UnluckyBackend : public ForwardingBackend {
 public:
  UnluckyBackend(std::unique_ptr<Backend> base, Mishap mishap)
      : ForwardingBackend(std::move(base)), mishap_(std::move(mishap)) {}

  Result<std::unique_ptr<Transport>> NewTransport(
      int slot, const ProcessSet& process_set) override {
    HVD_RETURN_IF_ERROR(mishap_());
    return ForwardingBackend::NewTransport(slot, process_set);
  }

 private:
  const Mishap mishap_;
};

// Three ranks start, and rank 1 with the mishap. All must fail alike.
void StartAll(const Mishap& mishap, StatusCode code, const std::string& text) {
  ThreadWorld world(3, {"alpha", "beta", "gamma"});
  RunRanks(3, [&](int rank) {
    std::unique_ptr<Backend> backend = world.Open(rank);
    if (rank == 1) {
      backend = std::make_unique<UnluckyBackend>(std::move(backend), mishap);
    }
    Runtime runtime(std::move(backend), Options::Defaults());
    const Status status = runtime.Start({});
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), "rank 1 (beta) cannot start: " + text);
    runtime.Stop();
  });
}

TEST(runtime_start_fails_on_all_ranks_if_it_fails_on_one) {
  StartAll([] { return InvalidArgument("no more tags."); },
           StatusCode::kInvalidArgument, "no more tags.");
}

TEST(runtime_start_fails_on_all_ranks_if_one_has_no_thread_or_memory) {
  const auto code =
      std::make_error_code(std::errc::resource_unavailable_try_again);
  StartAll([&]() -> Status { throw std::system_error(code); },
           StatusCode::kInternal,
           "no thread could be started (Resource temporarily unavailable); "
           "allow more of them (ulimit -u, or docker's --pids-limit).");
  StartAll([]() -> Status { throw std::bad_alloc(); },
           StatusCode::kResourceExhausted, "there is no memory left.");
}

TEST(an_exception_of_another_kind_keeps_its_words) {
  const Status status = StatusOf(std::runtime_error("no such thing"));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "no such thing");
}

}  // namespace
}  // namespace hvd
