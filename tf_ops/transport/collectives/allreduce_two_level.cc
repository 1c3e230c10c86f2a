// SPDX-License-Identifier: Apache-2.0
// Allreduce over hosts with several ranks. Each host reduces first within
// itself. So a byte crosses the network no more often than in a ring over
// hosts.
//
// A chunk is cut into as many slices as the smallest host has ranks. On every
// host, the rank at place s owns slice s. It works like this:
//
// 1. The owner reduces the slice over the ranks of its host. The result is the
//    host's partial.
// 2. A slice is cut into parts, one for each host. The slice's owner on that
//    host gets the hosts' partials of the part, and reduces them in the order
//    of the hosts.
// 3. It sends the result to the slice's owners on the other hosts.
// 4. Owners send results to the other ranks of their host.

#include "transport/collectives/allreduce_phase.h"
#include "transport/collectives/two_level_chunk.h"

namespace hvd {
namespace {

enum Hop { kInput = 0, kPartial = 1, kAcross = 2, kResult = 3 };

class TwoLevelAllreduce final : public TwoLevelChunk {
 public:
  TwoLevelAllreduce(AllreducePhase* phase, int64_t index)
      : TwoLevelChunk(phase, index),
        allreduce_(phase),
        range_(phase->RangeOf(index)) {
    slices_.resize(hosts().smallest_host());
    for (int s = 0; s < slice_count(); ++s) {
      slices_[s].range = ShardOf(range_, s, slice_count());
      if (slices_[s].range.empty()) continue;
      if (s == place_) {
        ReserveOwn(&slices_[s]);
      } else {
        ReserveOther(s, &slices_[s]);
      }
    }
  }

  bool Advance() override {
    bool moved = false;
    if (owns_slice()) moved = AdvanceOwn();
    for (int s = 0; s < slice_count(); ++s) {
      if (s != place_) moved |= AdvanceOther(s);
    }
    moved |= Sweep(&sends_);
    output_done_ = open_parts_ == 0;
    finished_ =
        output_done_ && sends_.empty() && (!owns_slice() || AllHandedOn());
    return moved;
  }

 protected:
  void Post() override {
    for (const Slice& slice : slices_) {
      for (const Part& part : slice.parts) open_parts_ += !part.range.empty();
    }
    // The loop begins with the slice after this rank's own, so that not all
    // ranks of the host send to the same one first. The own slice comes last.
    for (int i = 1; i <= slice_count(); ++i) {
      const int s = (place_ + i) % slice_count();
      if (slices_[s].range.empty()) continue;
      if (s == place_) {
        PostOwn();
      } else {
        PostOther(s);
      }
    }
  }

 private:
  // A host's part of a slice. In this rank's own slice, the memory has this
  // host's partial, and later the result. In another owner's slice it has the
  // result only.
  struct Part {
    Range range;
    Arrival result;
    MoveId partial_send = 0;
    bool sending = false;  // the partial is being sent
    bool complete = false;
  };
  struct Slice {
    Range range;
    Block input;              // this rank's, for the slice's owner
    std::vector<Part> parts;  // by host
  };

  int slice_count() const { return static_cast<int>(slices_.size()); }
  int host_count() const { return hosts().host_count(); }
  int OwnerOf(int s, int host) const { return hosts().ranks[host][s]; }
  int64_t BytesOf(const Range& range) const {
    return allreduce_->BytesOf(range);
  }
  bool owns_slice() const {
    return place_ < slice_count() && !slices_[place_].range.empty();
  }
  Slice& own_slice() { return slices_[place_]; }
  const Slice& own_slice() const { return slices_[place_]; }
  Part& own_part() { return own_slice().parts[host_]; }

  // --- The slice that this rank owns
  void ReserveOwn(Slice* slice) {
    inputs_.resize(neighbours().size());
    for (size_t place = 0; place < inputs_.size(); ++place) {
      if (static_cast<int>(place) == place_) continue;
      inputs_[place] = NewArrival(neighbours()[place], BytesOf(slice->range));
    }
    slice->parts.resize(host_count());
    partials_.resize(host_count());
    for (int host = 0; host < host_count(); ++host) {
      Part& part = slice->parts[host];
      part.range = ShardOf(slice->range, host, host_count());
      if (part.range.empty()) continue;
      part.result.peer = OwnerOf(place_, host);
      part.result.block = AddBlock(BytesOf(part.range));
    }
    const Range own = slice->parts[host_].range;
    if (own.empty()) return;
    for (int host = 0; host < host_count(); ++host) {
      if (host == host_) continue;
      partials_[host] = NewArrival(OwnerOf(place_, host), BytesOf(own));
    }
  }

  void PostOwn() {
    ExpectAll(kInput, &inputs_, &missing_inputs_);
    ExpectAll(kPartial, &partials_, &missing_partials_);
  }

  bool AdvanceOwn() {
    bool moved = Collect(&inputs_, &missing_inputs_);
    if (missing_inputs_ == 0 && !has_partials_) {
      SendPartials();
      moved = true;
    }
    moved |= Collect(&partials_, &missing_partials_);
    if (has_partials_ && missing_partials_ == 0 && !own_part().complete &&
        !own_part().range.empty()) {
      CombinePartials();
      moved = true;
    }
    for (int host = 0; host < host_count(); ++host) {
      if (host != host_) moved |= AdvanceResult(host);
    }
    HandOn();
    return moved;
  }

  // Reduces within the host, and sends the partials to the other hosts' owners.
  void SendPartials() {
    Poison poison = FirstPoison(inputs_);
    Contributions from{allreduce_->map()};
    from.blocks.resize(inputs_.size());
    from.own_place = place_;
    for (int host = 0; host < host_count(); ++host) {
      Part& part = own_slice().parts[host];
      if (part.range.empty()) continue;
      if (!poison) {
        const int64_t offset =
            BytesOf({own_slice().range.begin, part.range.begin});
        for (size_t place = 0; place < inputs_.size(); ++place) {
          if (static_cast<int>(place) == place_) continue;
          from.blocks[place] = Content(inputs_[place].block) + offset;
        }
        from.begin = part.range.begin;
        from.end = part.range.end;
        phase_->reducer().ReduceWithinHost(from, Payload(part.result.block));
        poison = phase_->FailIfNotFinite();
      }
      Label(part.result.block, poison);
      if (host == host_) continue;
      part.partial_send =
          Send(OwnerOf(place_, host), kPartial, part.result.block);
      part.sending = true;
    }
    ReleaseAll(&inputs_);
    has_partials_ = true;
  }

  // Reduces the hosts' partials of this host's part, and sends the result to
  // the other owners.
  void CombinePartials() {
    Part& part = own_part();
    const Poison poison = FirstPoison(partials_);
    Label(part.result.block, poison);
    if (!poison) {
      std::vector<const std::byte*> blocks;
      for (int host = 0; host < host_count(); ++host) {
        blocks.push_back(
            Content(host == host_ ? part.result.block : partials_[host].block));
      }
      phase_->reducer().ReduceAcrossHosts(part.range.size(), blocks,
                                          Payload(part.result.block));
    }
    for (int i = 1; i < host_count(); ++i) {
      const int host = (host_ + i) % host_count();
      sends_.push_back(Send(OwnerOf(place_, host), kAcross, part.result.block));
    }
    Complete(&part);
  }

  // The result of another host's part arrives in the memory of its partial.
  bool AdvanceResult(int host) {
    Part& part = own_slice().parts[host];
    if (part.sending && Test(part.partial_send)) {
      part.sending = false;
      Expect(kAcross, &part.result);
    }
    if (!HasCome(&part.result)) return false;
    // Bytes that made no sense have become poison.
    Label(part.result.block, Read(part.result.block));
    Complete(&part);
    return true;
  }

  void Complete(Part* part) {
    if (!Read(part->result.block)) {
      UnpackBlock(part->result.block, allreduce_->map(), part->range.begin,
                  part->range.end);
    }
    part->complete = true;
    --open_parts_;
  }

  // Sends results within the host, in the order of the parts. The receivers
  // expect that order.
  void HandOn() {
    for (; next_part_ < host_count(); ++next_part_) {
      const Part& part = own_slice().parts[next_part_];
      if (part.range.empty()) continue;
      if (!part.complete) return;
      for (int peer : neighbours()) {
        if (peer == work_->rank()) continue;
        sends_.push_back(Send(peer, kResult, part.result.block));
      }
    }
  }
  bool AllHandedOn() const { return next_part_ == host_count(); }

  // --- A slice that another rank of the host owns
  void ReserveOther(int s, Slice* slice) {
    slice->input = AddBlock(BytesOf(slice->range));
    slice->parts.resize(host_count());
    for (int host = 0; host < host_count(); ++host) {
      Part& part = slice->parts[host];
      part.range = ShardOf(slice->range, host, host_count());
      if (part.range.empty()) continue;
      part.result = NewArrival(OwnerOf(s, host_), BytesOf(part.range));
    }
  }

  void PostOther(int s) {
    Slice& slice = slices_[s];
    PackBlock(slice.input, allreduce_->map(), slice.range.begin,
              slice.range.end);
    sends_.push_back(Send(OwnerOf(s, host_), kInput, slice.input));
    for (Part& part : slice.parts) {
      if (part.range.empty()) continue;
      Expect(kResult, &part.result);
    }
  }

  bool AdvanceOther(int s) {
    bool moved = false;
    for (Part& part : slices_[s].parts) {
      if (!HasCome(&part.result)) continue;
      Complete(&part);
      Release(&part.result);
      moved = true;
    }
    return moved;
  }

  AllreducePhase* const allreduce_;
  const Range range_;          // of the chunk
  std::vector<Slice> slices_;  // by the owner's place
  std::vector<MoveId> sends_;
  int open_parts_ = 0;  // without a result yet

  // For the slice that this rank owns.
  std::vector<Arrival> inputs_;    // by place; this rank's own stays empty
  std::vector<Arrival> partials_;  // by host; this host's own stays empty
  int missing_inputs_ = 0;
  int missing_partials_ = 0;
  bool has_partials_ = false;
  int next_part_ = 0;  // the next to send within the host
};

}  // namespace

std::unique_ptr<Chunk> NewTwoLevelAllreduceChunk(AllreducePhase* phase,
                                                 int64_t index) {
  return std::make_unique<TwoLevelAllreduce>(phase, index);
}

}  // namespace hvd
