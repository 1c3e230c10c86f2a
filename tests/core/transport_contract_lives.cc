// SPDX-License-Identifier: Apache-2.0
// Contract cases: batches in flight, cancelled, refused and left behind.
#include <algorithm>
#include <string>

#include "harness.h"
#include "set_of.h"
#include "transport_contract.h"

namespace hvd {
namespace {

std::vector<float> Filled(int64_t count, float value) {
  return std::vector<float>(static_cast<size_t>(count), value);
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Call Ones(int64_t count) { return Call(Filled(count, 1.0f), count); }

// --- Many at a time ---

// More than there are tags.
void HundredsOfBatchesInFlight(ContractRank* self) {
  auto transport = self->NewTransport();
  std::vector<std::unique_ptr<Call>> calls;
  for (int64_t i = 0; i < 300; ++i) {
    const int64_t count = i % 50 == 0 ? self->Elements(2) : 1 + i;
    const float value = static_cast<float>(i + self->rank());
    calls.push_back(std::make_unique<Call>(Filled(count, value), count));
    calls.back()->Start(transport.get(), {});
  }
  Drive(transport.get(), [&] { return transport->in_flight() == 0; });
  const int size = self->size();
  for (int64_t i = 0; i < 300; ++i) {
    Call& call = *calls[i];
    const float sum = static_cast<float>(i * size + size * (size - 1) / 2);
    EXPECT_EQ(call.status().message(), "");
    EXPECT_TRUE(call.out() ==
                Filled(static_cast<int64_t>(call.out().size()), sum));
  }
}

void SetsStartedInOppositeOrder(ContractRank* self) {
  auto first = self->NewTransport(), second = self->NewTransport();
  const int64_t count = self->Elements(6);
  const int size = self->size();
  const auto mine = static_cast<float>(self->rank());
  Call one(Filled(count, mine), count);
  Call other(Filled(count, mine + 100), count);
  Transport* sets[] = {first.get(), second.get()};
  Call* calls[] = {&one, &other};
  const int begin = self->rank() % 2;
  calls[begin]->Start(sets[begin], {});
  sets[begin]->Progress();
  calls[1 - begin]->Start(sets[1 - begin], {});
  Drive({first.get(), second.get()},
        [&] { return one.done() && other.done(); });
  EXPECT_EQ(one.status().message(), "");
  EXPECT_EQ(other.status().message(), "");
  const auto sum = static_cast<float>(size * (size - 1) / 2);
  const auto more = static_cast<float>(100 * size);
  EXPECT_TRUE(one.out() == Filled(count, sum));
  EXPECT_TRUE(other.out() == Filled(count, sum + more));
}

void FrozenSetStopsNoOther(ContractRank* self) {
  auto frozen = self->NewTransport(), other = self->NewTransport();
  Call call = Ones(self->Elements(20));
  call.Start(frozen.get(), {});
  const bool freezes = self->rank() == 0;
  for (int i = 0; i < 20; ++i) {
    if (!freezes) frozen->Progress();
    CheckSetIsWell(other.get(), 1 + i * 400);
  }
  EXPECT_EQ(call.done(), false);
  Drive(frozen.get(), [&] { return frozen->in_flight() == 0; });
  EXPECT_EQ(call.status().message(), "");
}

void DoneMayStartAndCancel(ContractRank* self) {
  auto transport = self->NewTransport();
  Call victim = Ones(self->Elements(40));
  std::vector<std::unique_ptr<Call>> chain;
  std::function<void()> next = [&] {
    if (chain.size() == 20) {
      transport->Cancel(victim.id(), Cancelled("enough"));
      return;
    }
    chain.push_back(std::make_unique<Call>(Filled(300, 1.0f), 300));
    chain.back()->then = next;
    chain.back()->Start(transport.get(), {});
  };
  victim.Start(transport.get(), {});
  next();
  Drive(transport.get(), [&] { return transport->in_flight() == 0; });
  for (auto& call : chain) EXPECT_EQ(call->status().message(), "");
  EXPECT_TRUE(victim.done());
  CheckSetIsWell(transport.get());
}

// --- Cancelled and refused ---

const std::vector<Verb> kVerbs = {Verb::kAllreduce, Verb::kBroadcast,
                                  Verb::kAllgather, Verb::kAlltoall,
                                  Verb::kReducescatter};

// `count` elements of each rank, which are rows too.
Batch BatchOf(Verb verb, int64_t count, int size) {
  Batch batch;
  batch.verb = verb;
  if (verb == Verb::kAllgather) {
    batch.rows = {std::vector<int64_t>(size, count)};
  } else if (verb == Verb::kAlltoall) {
    std::vector<int64_t>& rows = batch.rows.emplace_back();
    for (int rank = 0; rank < size; ++rank) {
      rows.push_back(ScatteredRows(count, rank, size).size());
    }
  }
  return batch;
}

Call CallOf(Verb verb, int64_t count, int rank, int size) {
  const int64_t own = ScatteredRows(count, rank, size).size();
  const int64_t out = verb == Verb::kAllgather       ? count * size
                      : verb == Verb::kAlltoall      ? own * size
                      : verb == Verb::kReducescatter ? own
                                                     : count;
  return Call(Filled(count, static_cast<float>(rank + 1)), out);
}

void ExpectNumbers(Verb verb, int64_t count, int size, Call* call) {
  const auto out_count = static_cast<int64_t>(call->out().size());
  switch (verb) {
    case Verb::kAllreduce:
    case Verb::kReducescatter:
      EXPECT_TRUE(call->out() ==
                  Filled(out_count, static_cast<float>(size * (size + 1) / 2)));
      EXPECT_TRUE(verb == Verb::kReducescatter || out_count == count);
      return;
    case Verb::kBroadcast:
      EXPECT_TRUE(call->out() == Filled(count, 1.0f));
      return;
    case Verb::kAllgather:
    case Verb::kAlltoall:
      for (int rank = 0; rank < size; ++rank) {
        const int64_t share = out_count / size;
        const auto part = call->out().begin() + rank * share;
        EXPECT_EQ(std::count(part, part + share, static_cast<float>(rank + 1)),
                  share);
      }
      return;
    case Verb::kBarrier:
    case Verb::kSparseAllreduce:  // see sparse_call.h
      return;
  }
}

void ExpectCause(const Status& status, CauseKind kind, int rank) {
  ASSERT_TRUE(status.cause() != nullptr);
  EXPECT_EQ(status.cause()->kind, kind);
  EXPECT_EQ(status.cause()->rank, rank);
}

// The last rank cancels after some steps. It is told at once and its memory is
// its own again. The others have the right numbers or that rank's name.
void CheckCancel(ContractRank* self, Transport* transport, Verb verb,
                 int64_t count, int steps) {
  const int last = self->size() - 1;
  Call call = CallOf(verb, count, self->rank(), self->size());
  call.Start(transport, BatchOf(verb, count, self->size()));
  for (int i = 0; i < steps; ++i) transport->Progress();
  const bool cancels = self->rank() == last && !call.done();
  if (cancels) {
    transport->Cancel(call.id(), Cancelled("the step was aborted"));
    EXPECT_TRUE(call.done());
    EXPECT_EQ(call.status().message(), "the step was aborted");
    std::fill(call.out().begin(), call.out().end(), 77.0f);
    std::vector<float>().swap(call.in());
  }
  Drive(transport, [&] { return transport->in_flight() == 0; });
  if (cancels) {
    EXPECT_TRUE(call.out() ==
                Filled(static_cast<int64_t>(call.out().size()), 77.0f));
  } else if (call.status().ok()) {
    ExpectNumbers(verb, count, self->size(), &call);
  } else {
    EXPECT_EQ(call.status().code(), StatusCode::kPeerLost);
    EXPECT_TRUE(Contains(call.status().message(),
                         "rank " + std::to_string(last) + " "));
    ExpectCause(call.status(), CauseKind::kStepAborted, last);
  }
}

void CancelledInFlight(ContractRank* self) {
  auto transport = self->NewTransport();
  for (Verb verb : kVerbs) {
    for (int64_t count : {int64_t{5}, self->Elements(12)}) {
      for (int steps : {0, 1, 2, 5, 20}) {
        if (count == 5 && steps > 2) break;  // it is over by then
        CheckCancel(self, transport.get(), verb, count, steps);
        CheckSetIsWell(transport.get(), 3000);
      }
    }
  }
}

void CancelOfWhatIsOver(ContractRank* self) {
  auto transport = self->NewTransport();
  Call call = Ones(10);
  call.Start(transport.get(), {});
  Drive(transport.get(), [&] { return call.done(); });
  EXPECT_TRUE(call.status().ok());
  transport->Cancel(call.id(), Cancelled("too late"));  // done is not called
  transport->Cancel(call.id() + 1000, Cancelled("never started"));
  CheckSetIsWell(transport.get());
}

void CheckLocalError(ContractRank* self, Transport* transport, Verb verb,
                     int64_t count) {
  const int failing = self->size() / 2;
  Call call = CallOf(verb, count, self->rank(), self->size());
  Batch batch = BatchOf(verb, count, self->size());
  if (self->rank() == failing) {
    batch.local_error = ResourceExhausted("no memory here");
    batch.segments = {{nullptr, nullptr, count}};
    batch.segments[0].rows = count;
  }
  call.Start(transport, batch);
  Drive(transport, [&] { return transport->in_flight() == 0; });
  if (self->rank() == failing) {
    EXPECT_EQ(call.status().message(), "no memory here");
    EXPECT_EQ(std::count(call.out().begin(), call.out().end(), -1.0f),
              call.out().size());
    return;
  }
  if (verb == Verb::kBroadcast && failing != 0) {
    EXPECT_EQ(call.status().message(), "");
    return ExpectNumbers(verb, count, self->size(), &call);
  }
  EXPECT_EQ(call.status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Contains(call.status().message(),
                       "rank " + std::to_string(failing) + " "));
  ExpectCause(call.status(), CauseKind::kCallFailed, failing);
}

void LocalErrorFailsAllRanks(ContractRank* self) {
  auto transport = self->NewTransport();
  for (Verb verb : kVerbs) {
    if (verb == Verb::kBroadcast && self->size() > 1) continue;
    for (int64_t count : {int64_t{0}, int64_t{3}, self->Elements(9)}) {
      CheckLocalError(self, transport.get(), verb, count);
      CheckSetIsWell(transport.get());
    }
  }
}

// A rank that only receives a broadcast does not keep it from the others.
void ReceiverOfABroadcastFailsAlone(ContractRank* self) {
  auto transport = self->NewTransport();
  for (int64_t count : {int64_t{0}, int64_t{3}, self->Elements(9)}) {
    CheckLocalError(self, transport.get(), Verb::kBroadcast, count);
    CheckSetIsWell(transport.get());
  }
}

void SenselessBatchFailsAlone(ContractRank* self) {
  auto transport = self->NewTransport();
  Batch of_bool;
  of_bool.dtype = of_bool.wire_dtype = DataType::kBool;
  Batch no_such_root;
  no_such_root.verb = Verb::kBroadcast;
  no_such_root.root = self->size();
  Batch compressed_integer;
  compressed_integer.dtype = DataType::kInt32;
  compressed_integer.wire_dtype = DataType::kFloat16;
  for (const Batch& batch : {of_bool, no_such_root, compressed_integer}) {
    Call call = Ones(4);
    call.Start(transport.get(), batch);
    Drive(transport.get(), [&] { return call.done(); });
    EXPECT_EQ(call.status().code(), StatusCode::kInvalidArgument);
    CheckSetIsWell(transport.get());
  }
}

// --- Sets and ends ---

// Messages name ranks of the job, not of the set.
void SetOfSomeRanks(ContractRank* self) {
  std::vector<int> ranks;
  for (int rank = self->size() % 2; rank < self->size(); rank += 2) {
    ranks.push_back(rank);
  }
  auto all = self->NewTransport();
  if (!std::binary_search(ranks.begin(), ranks.end(), self->rank())) {
    self->SkipTransport();
    return CheckSetIsWell(all.get());
  }
  auto transport = self->NewTransport(ranks);
  EXPECT_EQ(transport->size(), ranks.size());
  EXPECT_EQ(ranks[transport->rank()], self->rank());
  CheckSetIsWell(transport.get(), 4000);
  Call call = Ones(10);
  Batch batch;
  if (self->rank() == ranks.back()) batch.local_error = Internal("mine");
  call.Start(transport.get(), batch);
  Drive(transport.get(), [&] { return transport->in_flight() == 0; });
  EXPECT_TRUE(self->rank() == ranks.back() ||
              Contains(call.status().message(),
                       "rank " + std::to_string(ranks.back()) + " "));
  CheckSetIsWell(all.get());
}

// By the id that users know it by, which may be another number than its slot.
void SetWithoutThisRank(ContractRank* self) {
  constexpr int kSlot = 1, kId = 7;
  std::vector<int> others;
  for (int rank = 0; rank < self->size(); ++rank) {
    if (rank != self->rank()) others.push_back(rank);
  }
  const auto transport =
      self->backend().NewTransport(kSlot, SetOf(others, self->rank(), kId));
  EXPECT_FALSE(transport.ok());
  EXPECT_EQ(transport.status().message(),
            "rank " + std::to_string(self->rank()) + " is not in process set " +
                std::to_string(kId) + ".");
}

void DestroyedWithBatchesInFlight(ContractRank* self) {
  auto other = self->NewTransport();
  auto transport = self->NewTransport();
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 5; ++i) {
    const int64_t count = self->Elements(1 + 3 * i);
    calls.push_back(std::make_unique<Call>(Filled(count, 1.0f), count));
    calls.back()->Start(transport.get(), {});
  }
  for (int i = 0; i < self->rank(); ++i) transport->Progress();
  transport.reset();
  calls.clear();
  CheckSetIsWell(other.get(), self->Elements(3));
}

void MessagesArriveInOrder(ContractRank* self) {
  constexpr int kMessages = 40;
  Channel& channel = self->backend().channel();
  const int size = self->size();
  // Number n has n * n * 97 bytes: from none to some that no wire takes in one.
  for (int n = 0; n < kMessages; ++n) {
    for (int peer = 0; peer < size; ++peer) {
      channel.Send(peer,
                   Share(std::string(n * n * 97, static_cast<char>('a' + n))));
    }
  }
  std::vector<int> received(size, 0);
  int missing = kMessages * size;
  auto transport = self->NewTransport();
  Drive(transport.get(), [&] {
    int peer = -1;
    std::string message;
    while (channel.Receive(&peer, &message)) {
      const int n = received[peer]++;
      EXPECT_TRUE(message ==
                  std::string(n * n * 97, static_cast<char>('a' + n)));
      --missing;
    }
    return !channel.Flush() && missing == 0;
  });
  CheckSetIsWell(transport.get());
  EXPECT_EQ(received, std::vector<int>(size, kMessages));
}

}  // namespace

std::vector<ContractCase> LifeCases() {
  return {{"HundredsOfBatchesInFlight", HundredsOfBatchesInFlight},
          {"SetsStartedInOppositeOrder", SetsStartedInOppositeOrder},
          {"FrozenSetStopsNoOther", FrozenSetStopsNoOther},
          {"DoneMayStartAndCancel", DoneMayStartAndCancel},
          {"CancelledInFlight", CancelledInFlight},
          {"CancelOfWhatIsOver", CancelOfWhatIsOver},
          {"LocalErrorFailsAllRanks", LocalErrorFailsAllRanks},
          {"ReceiverOfABroadcastFailsAlone", ReceiverOfABroadcastFailsAlone},
          {"SenselessBatchFailsAlone", SenselessBatchFailsAlone},
          {"SetOfSomeRanks", SetOfSomeRanks},
          {"SetWithoutThisRank", SetWithoutThisRank},
          {"DestroyedWithBatchesInFlight", DestroyedWithBatchesInFlight},
          {"MessagesArriveInOrder", MessagesArriveInOrder}};
}

}  // namespace hvd
