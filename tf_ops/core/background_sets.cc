// SPDX-License-Identifier: Apache-2.0
// The part of BackgroundLoop for process sets, which come and go.
#include <algorithm>
#include <utility>

#include "core/background_loop.h"
#include "core/host_map.h"

namespace hvd {

Status BackgroundLoop::Begin(const std::vector<ProcessSetPtr>& sets) {
  std::vector<std::vector<int>> ranks;
  for (const ProcessSetPtr& set : sets) {
    registry_->Add(set);
    if (set->id != 0) {
      known_sets_.Add(*set);
      ranks.push_back(set->ranks);
    }
    if (set->rank >= 0) HVD_RETURN_IF_ERROR(AddSet(*set, set->id));
  }
  const Set& global = sets_.front();
  if (global.process_set.rank == 0) {
    global.negotiator->LeadSets(
        std::make_unique<SetChanges>(backend_->topology().size, ranks));
  }
  return Status::Ok();
}

Result<std::unique_ptr<BackgroundLoop::Set>> BackgroundLoop::NewSet(
    const ProcessSet& process_set, int slot) {
  auto transport = backend_->NewTransport(slot, process_set);
  if (!transport.ok()) return transport.status();
  if (transport.value() == nullptr) return std::unique_ptr<Set>();
  LaneTable lanes = LaneTable::HostOnly(std::move(transport.value()));
  if (device_lanes_ != nullptr) {
    lanes.of(MemoryKind::kCuda) = device_lanes_->NewLane(
        lanes.of(MemoryKind::kHost).get(), OwnerOfLane(process_set));
  }
  auto executor =
      std::make_unique<Executor>(std::move(lanes), options_.check_numerics);
  auto negotiator = std::make_unique<Negotiator>(
      process_set.serial, process_set.rank, process_set.ranks, options_,
      executor->chunk_limits().most_bytes, HostsOf(process_set));
  negotiator->TellTo(timeline_.trace(), process_set.id);
  executor->TellTo(timeline_.trace(), process_set.serial);
  auto set = std::make_unique<Set>();
  set->process_set = process_set;
  set->negotiator = std::move(negotiator);
  set->executor = std::move(executor);
  return set;
}

HostMap BackgroundLoop::HostsOf(const ProcessSet& process_set) const {
  std::vector<int> hosts;
  for (int rank : process_set.ranks) {
    hosts.push_back(backend_->topology().host_of[rank]);
  }
  return MakeHostMap(hosts);
}

LaneOwner BackgroundLoop::OwnerOfLane(const ProcessSet& process_set) {
  LaneOwner owner;
  owner.set_id = process_set.id;
  owner.job_ranks = process_set.ranks;
  owner.hosts = HostsOf(process_set);
  owner.is_hierarchical = options_.hierarchical_allreduce;
  owner.completes_in_stream = options_.async_completion;
  owner.stall_shutdown_s = options_.stall_shutdown_s;
  owner.may_share_gpu = options_.nccl == NcclUse::kOnSharedGpus;
  if (options_.check_numerics) {
    owner.refusal =
        "HVD_CHECK_NUMERICS is set, which looks at tensors on the host";
  } else if (options_.nccl == NcclUse::kOff) {
    owner.refusal = "HVD_NCCL is 0";
  }
  // A meeting is a barrier in the lane's memory.
  owner.ask_to_meet = [this, serial = process_set.serial](
                          std::function<void(const Status&)> answered) {
    auto entry = std::make_shared<Entry>();
    entry->request.key.name = kMeetingOfLanes;
    entry->request.signature.verb = Verb::kBarrier;
    entry->request.signature.memory = MemoryKind::kCuda;
    entry->done = answered;
    Command command = EnqueueCommand{serial, std::move(entry)};
    const Status pushed = queue_->Push(std::move(command));
    if (!pushed.ok()) answered(pushed);
  };
  return owner;
}

Status BackgroundLoop::AddSet(const ProcessSet& process_set, int slot) {
  auto set = NewSet(process_set, slot);
  if (!set.ok()) return set.status();
  if (set.value() == nullptr) {
    return Internal("nothing is on the wire yet, but its memory is in use.");
  }
  sets_.push_back(std::move(*set.value()));
  return Status::Ok();
}

void BackgroundLoop::Apply(ChangeSetsCommand&& command) {
  if (set_call_ != nullptr) {
    const Status why = Internal("two calls change process sets at a time.");
    std::exchange(command.call, nullptr)->done(why);
    return;
  }
  if (sets_.front().negotiator->is_joining()) {
    // The leader may have refused the others' call, since this rank has joined.
    const Status why = FailedPrecondition(
        NameCall(command.call->request) +
        " is called while this rank waits in hvd.join(); call it when join has "
        "returned.");
    std::exchange(command.call, nullptr)->done(why);
    return;
  }
  set_call_ = std::move(command.call);
  AskForChange();
}

bool BackgroundLoop::AskForChange() {
  Negotiator& global = *sets_.front().negotiator;
  if (set_call_ == nullptr || set_call_->is_asked) return false;
  // A join that was taken back is in the log until that is. Before it there may
  // be the end of a call of the others, which needed this rank.
  if (global.has_joins()) return false;
  global.Tell(set_call_->request);
  set_call_->is_asked = true;
  return true;
}

bool BackgroundLoop::ChangeSets() {
  bool moved = false;
  for (const LoggedChange& logged :
       sets_.front().negotiator->TakeSetChanges()) {
    moved = true;
    if (const Status status = Apply(logged); !status.ok()) {
      Break(status.message());
      return true;
    }
  }
  moved |= PrepareSet();
  moved |= SweepRemovedSets();
  moved |= FailSetCallIfEnded();
  moved |= AskForChange();
  return moved;
}

Status BackgroundLoop::Apply(const LoggedChange& logged) {
  const SetChange& change = logged.change;
  const Topology& topology = backend_->topology();
  HVD_RETURN_IF_ERROR(CheckSetChange(change, topology.size));
  HVD_RETURN_IF_ERROR(CheckAnswers(change));
  HVD_RETURN_IF_ERROR(known_sets_.Apply(change));
  Set* const set = FindSet(change.serial);
  const auto own =
      std::find(change.ranks.begin(), change.ranks.end(), topology.rank);
  switch (change.step) {
    case SetStep::kPrepare:
      if (own != change.ranks.end()) preparing_ = logged;
      break;
    case SetStep::kCommit: {
      if (set == nullptr && own != change.ranks.end()) {
        return Internal("the log commits to process set " +
                        std::to_string(change.id) +
                        ", which this rank has not prepared.");
      }
      auto known = std::make_shared<ProcessSet>();
      known->ranks = change.ranks;
      if (set != nullptr) known->rank = set->process_set.rank;
      known->id = change.id;
      known->serial = change.serial;
      registry_->Add(std::move(known));
      EndSetCall(change.id);
      break;
    }
    case SetStep::kRefuse:
      // Nobody has sent anything in it.
      if (set != nullptr && change.serial != 0) {
        sets_.erase(sets_.begin() + (set - sets_.data()));
      }
      if (set_call_ != nullptr && set_call_->is_asked) {
        EndSetCall(change.status);
      }
      break;
    case SetStep::kRemove:
      registry_->Remove(change.id);
      if (set != nullptr) {
        set->is_removed = true;
        set->negotiator->Close(change.status);
      }
      EndSetCall(change.id);
      break;
    case SetStep::kClose:
      break;  // CheckSetChange refuses it
  }
  return Status::Ok();
}

Status BackgroundLoop::CheckAnswers(const SetChange& change) const {
  if (preparing_.has_value()) {
    return Internal(
        "the log goes on with process sets before this rank has answered to "
        "process set " +
        std::to_string(preparing_->change.id) + ".");
  }
  if (change.step != SetStep::kPrepare) return Status::Ok();
  for (const Set& set : sets_) {
    if (!set.is_removed) continue;
    return Internal("the log begins process set " + std::to_string(change.id) +
                    " before this rank has left process set " +
                    std::to_string(set.process_set.id) + ".");
  }
  return Status::Ok();
}

bool BackgroundLoop::PrepareSet() {
  if (!preparing_.has_value()) return false;
  const SetChange& change = preparing_->change;
  if (sets_.front().negotiator->is_answered()) {
    // The log is not going to commit to it.
    backend_->ForgetNewTransport();
    preparing_.reset();
    return true;
  }
  ProcessSet process_set;
  process_set.ranks = change.ranks;
  process_set.rank =
      static_cast<int>(std::find(change.ranks.begin(), change.ranks.end(),
                                 backend_->topology().rank) -
                       change.ranks.begin());
  process_set.id = change.id;
  process_set.serial = change.serial;
  auto made = NewSet(process_set, change.slot);
  if (made.ok() && made.value() == nullptr) return false;
  if (made.ok()) {
    Set& set = sets_.emplace_back(std::move(*made.value()));
    set.begun_at = preparing_->log_number;
    for (const auto& [end, why] : ends_.of_peers()) EndSet(&set, end, why);
  }
  sets_.front().negotiator->Tell(SetAnswer{change.serial, made.status()});
  preparing_.reset();
  return true;
}

bool BackgroundLoop::SweepRemovedSets() {
  bool moved = false;
  for (size_t i = 1; i < sets_.size();) {
    const Set& set = sets_[i];
    if (!set.is_removed || !set.negotiator->is_closed() ||
        set.negotiator->has_messages() || set.executor->in_flight() > 0) {
      ++i;
      continue;
    }
    sets_.front().negotiator->Tell(
        SetAnswer{set.process_set.serial, Status::Ok()});
    sets_.erase(sets_.begin() + static_cast<std::ptrdiff_t>(i));
    moved = true;
  }
  return moved;
}

void BackgroundLoop::EndSetCall(const Result<int>& result) {
  // A call that has failed already is gone.
  const std::shared_ptr<SetCall> call = std::move(set_call_);
  if (call != nullptr) call->done(result);
}

bool BackgroundLoop::FailSetCallIfEnded() {
  const Negotiator& global = *sets_.front().negotiator;
  if (set_call_ == nullptr || !global.is_answered()) return false;
  const Status& why = global.ended();
  EndSetCall(why.Reworded(NameCall(set_call_->request) +
                          " cannot complete: " + why.message()));
  return true;
}

}  // namespace hvd
