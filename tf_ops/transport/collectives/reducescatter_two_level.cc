// SPDX-License-Identifier: Apache-2.0
// Reducescatter over hosts with several ranks. Each host reduces an owner's
// elements within itself, and sends them to the owner once.
//
// The additions are those of an allreduce over the same hosts, in the same
// order. So the bits are the same.
#include <utility>

#include "transport/collectives/reducescatter_phase.h"
#include "transport/collectives/two_level_chunk.h"

namespace hvd {
namespace {

enum Hop { kInput = 0, kPartial = 1 };

// Elements of one owner, which this rank reduces over its host.
//
// It does so for itself. For an owner on another host, the rank at the owner's
// place does.
class TwoLevelReducescatter final : public TwoLevelChunk {
 public:
  TwoLevelReducescatter(ReducescatterPhase* phase, int64_t index)
      : TwoLevelChunk(phase, index), scatter_(phase) {
    sent_.resize(static_cast<size_t>(work_->size()));
    for (int owner = 0; owner < work_->size(); ++owner) {
      if (!phase->Exists(owner, index)) continue;
      const Range range = phase->RangeOf(owner, index);
      if (ReducerOf(owner) == work_->rank()) {
        Reserve(owner, range);
      } else {
        sent_[owner] = AddBlock(phase->BytesOf(range));
      }
    }
  }

  bool Advance() override {
    bool moved = Sweep(&sends_);
    for (Gathering& gathering : gatherings_) {
      moved |= Collect(&gathering.inputs, &gathering.missing);
      if (gathering.missing > 0 || gathering.reduced) continue;
      ReduceWithinHost(&gathering);
      moved = true;
    }
    moved |= Collect(&partials_, &missing_partials_);
    if (missing_partials_ == 0 && own_ != nullptr && own_->reduced &&
        !combined_) {
      Combine();
      combined_ = moved = true;
    }
    output_done_ = AllReduced() && (own_ == nullptr || combined_);
    finished_ = output_done_ && sends_.empty();
    return moved;
  }

 protected:
  void Post() override {
    // Pairs may have several blocks. Both sides take them in the order of the
    // owners.
    for (Gathering& gathering : gatherings_) {
      ExpectAll(kInput, &gathering.inputs, &gathering.missing);
    }
    ExpectAll(kPartial, &partials_, &missing_partials_);
    for (int owner = 0; owner < work_->size(); ++owner) {
      if (ReducerOf(owner) == work_->rank() ||
          !scatter_->Exists(owner, index_)) {
        continue;
      }
      const Range range = scatter_->RangeOf(owner, index_);
      PackBlock(sent_[owner], scatter_->in(owner), range.begin, range.end);
      sends_.push_back(Send(ReducerOf(owner), kInput, sent_[owner]));
    }
  }

 private:
  struct Gathering {
    int owner = 0;
    Range range;
    std::vector<Arrival> inputs;  // of this host's other ranks
    int missing = 0;
    Block partial;
    bool reduced = false;
  };

  // The rank of a host that reduces an owner's elements over that host.
  int ReducerOn(int owner, int host) const {
    if (hosts().host[owner] == host) return owner;
    const std::vector<int>& ranks = hosts().ranks[host];
    return ranks[static_cast<size_t>(hosts().place[owner]) % ranks.size()];
  }
  int ReducerOf(int owner) const { return ReducerOn(owner, host_); }

  void Reserve(int owner, const Range& range) {
    const int64_t bytes = scatter_->BytesOf(range);
    Gathering gathering;
    gathering.owner = owner;
    gathering.range = range;
    for (int peer : neighbours()) {
      if (peer == work_->rank()) continue;
      gathering.inputs.push_back(NewArrival(peer, bytes));
    }
    gathering.partial = AddBlock(bytes);
    if (owner == work_->rank()) {
      for (int host = 0; host < hosts().host_count(); ++host) {
        if (host == host_) continue;
        partials_.push_back(NewArrival(ReducerOn(owner, host), bytes));
      }
    }
    // gatherings_ never grows after the constructor, so own_ stays valid.
    if (gatherings_.empty()) {
      gatherings_.reserve(static_cast<size_t>(work_->size()));
    }
    gatherings_.push_back(std::move(gathering));
    if (owner == work_->rank()) own_ = &gatherings_.back();
  }

  // The result is this host's partial. It goes to the owner.
  void ReduceWithinHost(Gathering* gathering) {
    Poison poison = FirstPoison(gathering->inputs);
    if (!poison) {
      Contributions from{scatter_->in(gathering->owner), gathering->range.begin,
                         gathering->range.end};
      from.blocks.resize(neighbours().size());
      from.own_place = place_;
      size_t next = 0;
      for (size_t place = 0; place < from.blocks.size(); ++place) {
        if (static_cast<int>(place) == place_) continue;
        from.blocks[place] = Content(gathering->inputs[next++].block);
      }
      phase_->reducer().ReduceWithinHost(from, Payload(gathering->partial));
      poison = phase_->FailIfNotFinite();
    }
    Label(gathering->partial, poison);
    ReleaseAll(&gathering->inputs);
    gathering->reduced = true;
    if (gathering->owner == work_->rank()) return;
    sends_.push_back(Send(gathering->owner, kPartial, gathering->partial));
  }

  // Reduces the hosts' partials, in the order of the hosts.
  void Combine() {
    const Poison poison = FirstPoison(partials_);
    if (!poison) {
      std::vector<const std::byte*> blocks;
      size_t next = 0;
      for (int host = 0; host < hosts().host_count(); ++host) {
        blocks.push_back(host == host_ ? Content(own_->partial)
                                       : Content(partials_[next++].block));
      }
      phase_->reducer().ReduceAcrossHosts(own_->range.size(), blocks,
                                          Payload(own_->partial));
      UnpackBlock(own_->partial, scatter_->out(), own_->range.begin,
                  own_->range.end);
    }
    ReleaseAll(&partials_);
  }

  bool AllReduced() const {
    for (const Gathering& gathering : gatherings_) {
      if (!gathering.reduced) return false;
    }
    return true;
  }

  ReducescatterPhase* const scatter_;
  std::vector<Block> sent_;            // by owner
  std::vector<Gathering> gatherings_;  // by owner, ascending
  Gathering* own_ = nullptr;           // the one that this rank owns
  std::vector<Arrival> partials_;      // for it, of the other hosts
  int missing_partials_ = 0;
  bool combined_ = false;
  std::vector<MoveId> sends_;
};

}  // namespace

std::unique_ptr<Chunk> NewTwoLevelReducescatterChunk(ReducescatterPhase* phase,
                                                     int64_t index) {
  return std::make_unique<TwoLevelReducescatter>(phase, index);
}

}  // namespace hvd
