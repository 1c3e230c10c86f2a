// SPDX-License-Identifier: Apache-2.0
// One rank of control_plane.cc: its control plane and executor, and what its
// passes cost.
#ifndef HVD_BENCHMARKS_CONTROL_PLANE_RANK_H_
#define HVD_BENCHMARKS_CONTROL_PLANE_RANK_H_

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/control/message.h"
#include "core/control/negotiator.h"
#include "core/executor.h"
#include "core/host_map.h"
#include "core/options.h"

namespace hvd {

// Kept by operator new and delete of control_plane.cc.
inline int64_t allocations = 0;
inline int64_t live_bytes = 0;
inline int64_t peak_bytes = 0;  // the most live_bytes since a Meter began

// The costs of one rank in one step.
struct Cost {
  double messages_in = 0, messages_out = 0;
  double bytes_in = 0, bytes_out = 0;
  double us = 0;
  double allocations = 0;
  double most_bytes = 0;  // the most memory that one pass has added
};

inline double CpuMicroseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 +
         static_cast<double>(time.tv_nsec) / 1e3;
}

// Measures CPU time and allocations during its life, and adds them to a Cost.
class Meter {
 public:
  explicit Meter(Cost* cost)
      : cost_(cost),
        before_(allocations),
        bytes_before_(peak_bytes = live_bytes),
        begin_us_(CpuMicroseconds()) {}
  ~Meter() {
    cost_->us += CpuMicroseconds() - begin_us_;
    cost_->allocations += static_cast<double>(allocations - before_);
    cost_->most_bytes = std::max(
        cost_->most_bytes, static_cast<double>(peak_bytes - bytes_before_));
  }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

 private:
  Cost* const cost_;
  const int64_t before_;
  const int64_t bytes_before_;
  const double begin_us_;
};

[[noreturn]] inline void Stop(const std::string& text) {
  std::fprintf(stderr, "control_plane: %s\n", text.c_str());
  std::exit(1);
}

inline void StopUnlessOk(const Status& status) {
  if (!status.ok()) Stop(status.message());
}

// Moves nothing. A batch is done at the next Progress.
class InstantTransport : public Transport {
 public:
  InstantTransport(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  BatchId Start(Batch, BatchDone done) override {
    dones_.push_back(std::move(done));
    return ++last_id_;
  }
  bool Progress() override {
    std::vector<BatchDone> dones = std::exchange(dones_, {});
    for (BatchDone& done : dones) done(Status::Ok());
    return !dones.empty();
  }
  void Cancel(BatchId, const Status&) override {}
  int in_flight() const override { return static_cast<int>(dones_.size()); }

 private:
  const int rank_, size_;
  BatchId last_id_ = 0;
  std::vector<BatchDone> dones_;
};

struct Letter {
  int from;
  SharedBytes bytes;
};

// One rank's background thread.
class Rank {
 public:
  Rank(int rank, const std::vector<int>& ranks, const HostMap& hosts)
      : executor_(LaneTable::HostOnly(std::make_unique<InstantTransport>(
            rank, static_cast<int>(ranks.size())))),
        negotiator_(0, rank, ranks, Options::Defaults(),
                    executor_.chunk_limits().most_bytes, hosts) {}

  // When the entry is done, `index` is added to executed().
  EntryPtr MakeEntry(Signature signature, const std::string& name, int64_t step,
                     int index) {
    auto entry = std::make_shared<Entry>();
    entry->request.key.name = name;
    entry->request.signature = std::move(signature);
    entry->request.step = step;
    entry->ticket = ++last_ticket_;
    entry->inputs = {nullptr};
    entry->outputs = {nullptr};
    if (entry->request.signature.verb == Verb::kAllgather) {
      entry->allocate = [](const std::vector<Shape>&, RankCountsSpan,
                           std::vector<void*>* outputs) {
        *outputs = {nullptr};
        return Status::Ok();
      };
    }
    entry->done = [this, index](const Status& status) {
      if (!may_fail_) StopUnlessOk(status);
      (status.ok() ? executed_ : failed_).push_back(index);
    };
    return entry;
  }

  // Cancels all that a step has submitted, like TensorFlow's cancellation
  // manager.
  void Abort(const std::vector<uint64_t>& tickets) {
    Meter meter(&cost_);
    is_rung_ = true;
    for (uint64_t ticket : tickets) {
      negotiator_.Cancel(ticket, Cancelled("NaN in the loss of this step"));
    }
  }

  void Submit(std::vector<EntryPtr>* entries) {
    Meter meter(&cost_);
    is_rung_ = true;
    for (EntryPtr& entry : *entries) negotiator_.Submit(std::move(entry));
  }

  // Like BackgroundLoop::Pass.
  std::vector<OutgoingMessage> Pass() {
    std::vector<Letter> letters = std::exchange(inbox_, {});
    cost_.messages_in += static_cast<double>(letters.size());
    Meter meter(&cost_);
    const auto now = Negotiator::Clock::now() + skipped_time_;
    for (Letter& letter : letters) {
      Result<Envelope> envelope = Decode(*letter.bytes);
      StopUnlessOk(envelope.status());
      Message& message = envelope.value().message;
      if (const auto* report = std::get_if<Report>(&message)) {
        StopUnlessOk(negotiator_.HandleReport(letter.from, *report, now));
      } else if (auto* host = std::get_if<HostReport>(&message)) {
        StopUnlessOk(
            negotiator_.HandleHostReport(letter.from, std::move(*host), now));
      } else {
        StopUnlessOk(negotiator_.HandleLog(std::get<LogMessage>(message)));
      }
    }
    StopUnlessOk(negotiator_.Advance(executor_.in_flight(), now).status());
    while (std::optional<ReadyItem> item = negotiator_.TakeReady()) {
      executor_.Execute(std::get<ReadyBatch>(std::move(*item)));
    }
    auto messages = negotiator_.TakeMessages();
    is_rung_ = executor_.Progress() || !messages.empty();
    return messages;
  }

  void Receive(Letter letter) {
    cost_.bytes_in += static_cast<double>(letter.bytes->size());
    inbox_.push_back(std::move(letter));
    is_rung_ = true;
  }
  // Whether its thread must wake up.
  bool is_rung() const { return is_rung_; }
  // Until it has something to do though nothing comes.
  void SkipTime() {
    if (!negotiator_.due().has_value()) return;
    skipped_time_ += 2 * ReportGatherer::kLongestHold;
    is_rung_ = true;
  }
  void CountSent(size_t bytes) {
    cost_.messages_out += 1;
    cost_.bytes_out += static_cast<double>(bytes);
  }

  Cost TakeCost() { return std::exchange(cost_, {}); }
  std::vector<int>& executed() { return executed_; }
  std::vector<int>& failed() { return failed_; }
  void set_may_fail(bool may_fail) { may_fail_ = may_fail; }
  bool idle() const { return negotiator_.idle() && inbox_.empty(); }

 private:
  Executor executor_;
  Negotiator negotiator_;
  std::vector<Letter> inbox_;
  std::vector<int> executed_, failed_;
  bool may_fail_ = false;
  bool is_rung_ = false;
  Negotiator::Clock::duration skipped_time_{};
  uint64_t last_ticket_ = 0;
  Cost cost_;
};

}  // namespace hvd

#endif  // HVD_BENCHMARKS_CONTROL_PLANE_RANK_H_
