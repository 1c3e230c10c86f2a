// SPDX-License-Identifier: Apache-2.0
// Collectives of floats on a Runtime, as a caller makes and awaits them.
#ifndef HVD_TESTS_CORE_RUNTIME_CALLS_H_
#define HVD_TESTS_CORE_RUNTIME_CALLS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/runtime.h"
#include "core/verbs/verb_rules.h"
#include "harness.h"

namespace hvd {

using Floats = std::vector<float>;

// One call under way, as a caller sees it.
class Pending {
 public:
  void Finish(const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_FALSE(result_.has_value());  // told once
    result_ = status;
    told_.notify_all();
  }
  // Internal after `limit`.
  Status Wait(
      std::chrono::milliseconds limit = std::chrono::milliseconds(20000)) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!told_.wait_for(lock, limit, [&] { return result_.has_value(); })) {
      return Internal("still waiting");
    }
    return *result_;
  }
  bool told() {
    std::lock_guard<std::mutex> lock(mutex_);
    return result_.has_value();
  }

  uint64_t ticket = 0;
  std::vector<Floats> in, out;
  Entry entry;

 private:
  std::mutex mutex_;
  std::condition_variable told_;
  std::optional<Status> result_;
};
using PendingPtr = std::shared_ptr<Pending>;

struct Ask {
  std::string name;
  Verb verb = Verb::kAllreduce;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  int set = 0;
  int64_t step = 0;
  RankCounts splits = {};
};

// Starts a collective of one tensor per vector in `in`.
inline PendingPtr Start(Runtime* runtime, const Ask& ask,
                        std::vector<Floats> in) {
  auto pending = std::make_shared<Pending>();
  pending->in = std::move(in);
  Entry& entry = pending->entry;
  Request& request = entry.request;
  request.key.name = ask.name;
  request.step = ask.step;
  request.signature.verb = ask.verb;
  request.signature.reduce_op = ask.op;
  request.signature.root = ask.root;
  entry.splits = ask.splits;
  for (const Floats& tensor : pending->in) {
    request.signature.shapes.push_back({static_cast<int64_t>(tensor.size())});
    entry.inputs.push_back(tensor.data());
    if (RulesOf(ask.verb).first_dim_varies) continue;
    pending->out.emplace_back(tensor.size());
    entry.outputs.push_back(pending->out.back().data());
  }
  // emplace_back may have moved the vectors, not their data.
  Pending* raw = pending.get();
  entry.allocate = [raw](const std::vector<Shape>& shapes, RankCountsSpan,
                         std::vector<void*>* outputs) {
    for (const Shape& shape : shapes) raw->out.emplace_back(shape[0]);
    for (Floats& tensor : raw->out) outputs->push_back(tensor.data());
    return Status::Ok();
  };
  entry.ticket = pending->ticket = runtime->NewTicket();
  entry.done = [raw](const Status& status) { raw->Finish(status); };
  runtime->Enqueue(ask.set, EntryPtr(pending, &entry));
  return pending;
}

inline Floats Filled(size_t count, float value) { return Floats(count, value); }

}  // namespace hvd

#endif  // HVD_TESTS_CORE_RUNTIME_CALLS_H_
