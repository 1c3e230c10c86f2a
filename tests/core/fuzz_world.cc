// SPDX-License-Identifier: Apache-2.0
// Delivers, executes and checks.
#include "fuzz_world.h"

#include <algorithm>
#include <chrono>

#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

// Ticks. Within the second, the leader has heard of a cancelled call, or of a
// join that was taken back, for sure.
constexpr int kLongestDelay = 12;
constexpr int kSurelyHeard = 200;

constexpr int64_t kMostChunkBytes = 1 << 30;

}  // namespace

FuzzWorld::FuzzWorld(uint64_t seed, std::vector<std::vector<int>> sets,
                     const Options& options)
    : random_(seed),
      most_in_flight_(static_cast<size_t>(options.batches_in_flight)) {
  DrawHosts(static_cast<int>(sets[0].size()));
  sets_.reserve(sets.size());
  for (size_t id = 0; id < sets.size(); ++id) {
    AddSet(static_cast<int>(id), std::move(sets[id]), options);
  }
}

void FuzzWorld::DrawHosts(int size) {
  const int hosts = 1 + random_.Below(3);
  for (int rank = 0; rank < size; ++rank) {
    host_of_.push_back(random_.Below(hosts));
  }
}

void FuzzWorld::AddSet(int id, std::vector<int> ranks, const Options& options) {
  Set& set = sets_.emplace_back();
  set.ranks = std::move(ranks);
  std::vector<int> hosts;
  for (int rank : set.ranks) hosts.push_back(host_of_[rank]);
  for (size_t place = 0; place < set.ranks.size(); ++place) {
    const int rank = set.ranks[place];
    set.negotiators[rank] = std::make_unique<Negotiator>(
        id, static_cast<int>(place), set.ranks, options, kMostChunkBytes,
        MakeHostMap(hosts));
  }
}

bool FuzzWorld::IsMember(int rank, int set) const {
  return sets_[set].negotiators.count(rank) > 0;
}

void FuzzWorld::Pass(int rank) {
  Receive(rank);
  for (Set& set : sets_) {
    const auto own = set.negotiators.find(rank);
    if (own == set.negotiators.end()) continue;
    const Negotiator::Clock::time_point now{std::chrono::milliseconds(now_)};
    const Result<bool> advanced =
        own->second->Advance(static_cast<int>(set.running[rank].size()), now);
    if (!advanced.ok()) Fail(advanced.status().message());
    ExecuteReady(rank, &set);
    const bool has_room = set.running[rank].size() < most_in_flight_;
    if (rank == set.ranks[0] && has_room) set.free_at = now_;
    for (OutgoingMessage& message : own->second->TakeMessages()) {
      std::deque<Letter>& link = links_[{rank, set.ranks[message.rank]}];
      const int64_t due = now_ + random_.Below(kLongestDelay);
      link.push_back({link.empty() ? due : std::max(due, link.back().due),
                      std::move(message.bytes)});
    }
  }
  FinishBatches(rank);
}

void FuzzWorld::Receive(int rank) {
  for (int from = 0; from < size(); ++from) {
    std::deque<Letter>& link = links_[{from, rank}];
    while (!link.empty() && link.front().due <= now_) {
      Result<Envelope> envelope = Decode(*link.front().bytes);
      link.pop_front();
      const Status status =
          envelope.ok() ? Handle(from, rank, std::move(envelope.value()))
                        : envelope.status();
      if (!status.ok()) Fail(status.message());
    }
  }
}

Status FuzzWorld::Handle(int from, int rank, Envelope envelope) {
  Set& set = sets_[envelope.serial];
  Negotiator& negotiator = *set.negotiators.at(rank);
  if (const auto* log = std::get_if<LogMessage>(&envelope.message)) {
    const Status status = negotiator.HandleLog(*log);
    ExecuteReady(rank, &set);
    return status;
  }
  const auto place = std::find(set.ranks.begin(), set.ranks.end(), from);
  const Negotiator::Clock::time_point now{std::chrono::milliseconds(now_)};
  const int from_place = static_cast<int>(place - set.ranks.begin());
  if (auto* report = std::get_if<HostReport>(&envelope.message)) {
    return negotiator.HandleHostReport(from_place, std::move(*report), now);
  }
  return negotiator.HandleReport(from_place, std::get<Report>(envelope.message),
                                 now);
}

uint64_t FuzzWorld::Submit(int rank, int set, Request request,
                           Answered answered) {
  auto entry = std::make_shared<Entry>();
  const uint64_t ticket = ++tickets_;
  entry->request = std::move(request);
  entry->ticket = ticket;
  // Callers may keep the number of an equal request.
  EntryPtr& last = last_entries_[{set, rank, entry->request.key.name}];
  if (last != nullptr && last->request.signature == entry->request.signature) {
    entry->signature_number = last->signature_number;
  }
  last = entry;
  auto is_answered = std::make_shared<bool>(false);
  const std::string name = entry->request.key.name;
  entry->done = [this, name, is_answered,
                 answered = std::move(answered)](const Status& status) {
    if (std::exchange(*is_answered, true)) Fail("'" + name + "' ended twice.");
    if (status.code() == StatusCode::kInternal) Fail(status.message());
    answered(status);
  };
  sets_[set].negotiators.at(rank)->Submit(std::move(entry));
  return ticket;
}

void FuzzWorld::Cancel(int rank, int set, uint64_t ticket, const Status& why) {
  Negotiator& negotiator = *sets_[set].negotiators.at(rank);
  cancelled_at_[ticket] = now_;
  if (negotiator.Cancel(ticket, why)) return;
  for (const auto& [number, running] : sets_[set].running[rank]) {
    for (const Outstanding& tensor : running.batch.tensors) {
      if (tensor.entry->ticket != ticket || tensor.cancelled) continue;
      const Request& request = tensor.entry->request;
      negotiator.AbortStep(request.key, request.step, why);
    }
  }
}

void FuzzWorld::AbortStep(int rank, int set, const Key& key, int64_t step,
                          const Status& why) {
  sets_[set].negotiators.at(rank)->AbortStep(key, step, why);
}

uint64_t FuzzWorld::Join(int rank, int set, Answered answered) {
  auto call = std::make_shared<JoinCall>();
  const uint64_t ticket = ++tickets_;
  call->ticket = ticket;
  sets_[set].joins[rank].is_joined = true;
  auto is_answered = std::make_shared<bool>(false);
  call->done = [this, rank, set, is_answered, answered = std::move(answered)](
                   const Status& status, int last_rank) {
    if (std::exchange(*is_answered, true)) Fail("a join ended twice.");
    if (status.code() == StatusCode::kInternal) Fail(status.message());
    Joins& joins = sets_[set].joins[rank];
    joins.is_joined = false;
    joins.ended_at = now_;
    if (status.ok()) CheckLastRank(rank, &sets_[set], last_rank);
    answered(status);
  };
  sets_[set].negotiators.at(rank)->Join(std::move(call));
  return ticket;
}

void FuzzWorld::CheckLastRank(int rank, Set* set, int last_rank) {
  if (last_rank < 0 || last_rank >= static_cast<int>(set->ranks.size())) {
    Fail("rank " + std::to_string(last_rank) + " is said to have joined.");
  }
  // A rank that takes a join back too late does not hear of it.
  if (set->is_skewed) return;
  const size_t number = set->joins[rank].answered++;
  if (number == set->last_ranks.size()) set->last_ranks.push_back(last_rank);
  if (set->last_ranks[number] == last_rank) return;
  Fail("the ranks hear of different ranks that joined last.");
}

void FuzzWorld::TakeBackJoin(int rank, int set, uint64_t ticket) {
  sets_[set].is_skewed = true;
  if (!sets_[set].negotiators.at(rank)->Cancel(ticket, Cancelled("enough"))) {
    Fail("a join could not be taken back.");
  }
}

int FuzzWorld::CountJoined(int set) const {
  int count = 0;
  for (const auto& [rank, joins] : sets_[set].joins) count += joins.is_joined;
  return count;
}

void FuzzWorld::ExecuteReady(int rank, Set* set) {
  const int id = static_cast<int>(set - sets_.data());
  while (std::optional<ReadyItem> item =
             set->negotiators.at(rank)->TakeReady()) {
    Execute(id, rank, std::get<ReadyBatch>(std::move(*item)));
  }
}

void FuzzWorld::Close(int set) {
  sets_[set]
      .negotiators.at(sets_[set].ranks[0])
      ->Close(FailedPrecondition("the set was removed"));
}

bool FuzzWorld::HasDrained(int set) const {
  for (const auto& [rank, negotiator] : sets_[set].negotiators) {
    const auto running = sets_[set].running.find(rank);
    const bool runs =
        running != sets_[set].running.end() && !running->second.empty();
    if (!negotiator->is_closed() || runs) return false;
  }
  return sets_[set].executions.empty();
}

void FuzzWorld::Begin(int id, const ReadyBatch& ready) {
  Set& set = sets_[id];
  std::vector<Key> keys;
  for (const Outstanding& tensor : ready.tensors) {
    keys.push_back(tensor.entry->request.key);
  }
  const auto [execution, is_first] =
      set.executions.try_emplace(ready.log_number);
  if (is_first) {
    execution->second.free_at = set.free_at;
    execution->second.keys = keys;
    execution->second.absent = ready.absent;
  }
  if (!(execution->second.keys == keys) ||
      execution->second.absent != ready.absent) {
    Fail("members execute different tensors as record " +
         std::to_string(ready.log_number) + ".");
  }
}

void FuzzWorld::Execute(int id, int rank, ReadyBatch ready) {
  Set& set = sets_[id];
  const uint64_t number = ready.log_number;
  Begin(id, ready);
  CheckCancelled(id, rank, ready);
  CheckAbsent(id, rank, ready);
  Execution& execution = set.executions[number];
  std::vector<int64_t>& steps = execution.steps[rank];
  for (const Outstanding& tensor : ready.tensors) {
    steps.push_back(tensor.entry->request.step);
  }
  const Signature& first = ready.tensors[0].entry->request.signature;
  if (RulesOf(first.verb).uses_wire) {
    set.running[rank][number].batch = std::move(ready);
  } else {
    FinishBatch(ready);
  }
  if (execution.steps.size() < set.ranks.size()) return;
  CheckSteps(id, execution);
  set.executions.erase(number);
  for (int member : set.ranks) {
    const auto running = set.running[member].find(number);
    if (running == set.running[member].end()) continue;
    running->second.done_at = now_ + random_.Below(kLongestDelay);
  }
}

// What was agreed on after `free_at` is at fault, but not what was held back.
void FuzzWorld::CheckCancelled(int id, int rank, const ReadyBatch& ready) {
  const int64_t free_at = sets_[id].executions.at(ready.log_number).free_at;
  for (const Outstanding& tensor : ready.tensors) {
    const auto cancelled = cancelled_at_.find(tensor.entry->ticket);
    if (cancelled == cancelled_at_.end() ||
        free_at <= cancelled->second + kSurelyHeard) {
      continue;
    }
    Fail("'" + tensor.entry->request.key.name + "' of step " +
         std::to_string(tensor.entry->request.step) + " of rank " +
         std::to_string(rank) + " was agreed on though it was cancelled.");
  }
}

void FuzzWorld::CheckAbsent(int id, int rank, const ReadyBatch& ready) {
  Set& set = sets_[id];
  const auto place = std::find(set.ranks.begin(), set.ranks.end(), rank);
  const bool is_absent =
      std::binary_search(ready.absent.begin(), ready.absent.end(),
                         static_cast<int>(place - set.ranks.begin()));
  for (const Outstanding& tensor : ready.tensors) {
    // Only an entry that nobody has submitted has no ticket.
    if ((tensor.entry->ticket == 0) == is_absent) continue;
    Fail("rank " + std::to_string(rank) + " takes part in record " +
         std::to_string(ready.log_number) + " in the wrong way.");
  }
  const Joins& joins = set.joins[rank];
  const int64_t free_at = set.executions.at(ready.log_number).free_at;
  if (!is_absent || joins.is_joined ||
      free_at <= joins.ended_at + kSurelyHeard) {
    return;
  }
  Fail("record " + std::to_string(ready.log_number) + " is without rank " +
       std::to_string(rank) + ", which has not joined.");
}

void FuzzWorld::CheckSteps(int id, const Execution& execution) {
  // Without a rank that then came back, a part of a step has been agreed on.
  if (sets_[id].is_skewed) return;
  for (const auto& [rank, steps] : execution.steps) {
    for (const auto& [other, other_steps] : execution.steps) {
      if (rank == other) continue;
      for (size_t i = 0; i < steps.size(); ++i) {
        if (steps[i] == 0 || other_steps[i] == 0) continue;
        const auto [met, is_new] =
            sets_[id].met[{rank, other}].try_emplace(steps[i], other_steps[i]);
        if (met->second == other_steps[i]) continue;
        Fail("in set " + std::to_string(id) + " '" + execution.keys[i].name +
             "' of step " + std::to_string(steps[i]) + " of rank " +
             std::to_string(rank) + " met step " +
             std::to_string(other_steps[i]) + " of rank " +
             std::to_string(other) + ", and step " +
             std::to_string(met->second) + " before.");
      }
    }
  }
}

void FuzzWorld::FinishBatches(int rank) {
  for (Set& set : sets_) {
    std::map<uint64_t, Running>& running = set.running[rank];
    for (auto batch = running.begin(); batch != running.end();) {
      if (batch->second.done_at < 0 || batch->second.done_at > now_) {
        ++batch;
        continue;
      }
      const ReadyBatch done = std::move(batch->second.batch);
      batch = running.erase(batch);
      FinishBatch(done);
    }
  }
}

void FuzzWorld::FinishBatch(const ReadyBatch& batch) {
  for (const Outstanding& tensor : batch.tensors) {
    if (!tensor.cancelled) tensor.entry->done(Status::Ok());
  }
}

void FuzzWorld::Fail(const std::string& text) {
  if (error_.empty()) error_ = text;
}

}  // namespace hvd
