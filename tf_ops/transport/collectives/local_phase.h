// SPDX-License-Identifier: Apache-2.0
// LocalPhase: a phase in which a rank works on its own memory.
//
// Nothing goes over the wire. The work is cut into chunks, so that small
// batches pass it and the background thread stays awake.
#ifndef HVD_TRANSPORT_COLLECTIVES_LOCAL_PHASE_H_
#define HVD_TRANSPORT_COLLECTIVES_LOCAL_PHASE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "transport/collectives/chunk.h"
#include "transport/collectives/phase.h"

namespace hvd {

class LocalPhase final : public Phase {
 public:
  // Does units [begin, end) of the work. Called in their order, and not once
  // the batch is detached.
  using Do = std::function<void(int64_t begin, int64_t end)>;

  // `unit_bytes` are what a unit reads. A chunk has at least one unit.
  LocalPhase(BatchWork* work, int64_t units, int64_t unit_bytes, Do does,
             Next next)
      : Phase(work, OwnMemory(), 0, std::move(next)),
        units_(units),
        step_(std::max(work->chunk_bytes() / unit_bytes, int64_t{1})),
        does_(std::move(does)) {}

  int64_t chunk_count() const override {
    return std::max((units_ + step_ - 1) / step_, int64_t{1});
  }
  std::unique_ptr<Chunk> NewChunk(int64_t index) override {
    return std::make_unique<LocalChunk>(this, index);
  }

 private:
  class LocalChunk final : public Chunk {
   public:
    LocalChunk(LocalPhase* phase, int64_t index)
        : Chunk(phase, index), local_(phase) {}
    bool Advance() override {
      const int64_t begin = std::min(index_ * local_->step_, local_->units_);
      const int64_t end = std::min(begin + local_->step_, local_->units_);
      if (!work_->is_detached()) local_->does_(begin, end);
      output_done_ = finished_ = true;
      return true;
    }

   protected:
    void Post() override {}

   private:
    LocalPhase* const local_;
  };

  static Operands OwnMemory() {
    Operands operands;
    operands.is_callers = false;
    return operands;
  }

  const int64_t units_;
  const int64_t step_;
  const Do does_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_LOCAL_PHASE_H_
