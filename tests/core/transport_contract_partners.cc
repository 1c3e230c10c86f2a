// SPDX-License-Identifier: Apache-2.0
// Contract cases: an allreduce of some ranks of a set each, at the same time.
#include <utility>
#include <vector>

#include "harness.h"
#include "transport_contract.h"

namespace hvd {
namespace {

constexpr int kGroups = 2;

// Every other rank of the set.
std::vector<int> PartnersOf(int rank, int size) {
  std::vector<int> partners;
  for (int at = rank % kGroups; at < size; at += kGroups) {
    partners.push_back(at);
  }
  return partners;
}

float ValueOf(int rank, int64_t i) {
  return static_cast<float>(rank * 16 + i % 13);
}

float SumOf(const std::vector<int>& ranks, int64_t i) {
  float sum = 0;
  for (const int rank : ranks) sum += ValueOf(rank, i);
  return sum;
}

Call CallOf(int rank, int64_t count) {
  std::vector<float> in(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) in[i] = ValueOf(rank, i);
  return Call(std::move(in), count);
}

Batch BatchOf(const Transport& transport) {
  Batch batch;
  batch.partners = PartnersOf(transport.rank(), transport.size());
  return batch;
}

void CheckSums(Call* call, const Transport& transport) {
  EXPECT_EQ(call->status().message(), "");
  if (!call->status().ok()) return;
  const auto partners = PartnersOf(transport.rank(), transport.size());
  int wrong = 0;
  for (size_t i = 0; i < call->out().size(); ++i) {
    wrong += call->out()[i] != SumOf(partners, static_cast<int64_t>(i));
  }
  EXPECT_EQ(wrong, 0);
}

void PartnersReduceAmongThemselves(ContractRank* self) {
  auto transport = self->NewTransport();
  const int rank = transport->rank();
  // The groups' tensors have other sizes, and other numbers of chunks. Batches
  // of all ranks are under way with them.
  for (const int64_t count : {int64_t{0}, int64_t{7}, self->Elements(9) + 3}) {
    Call before = CallOf(rank, 20);
    Call among = CallOf(rank, count + rank % kGroups * self->Elements(2));
    Call behind = CallOf(rank, 3000);
    before.Start(transport.get(), {});
    among.Start(transport.get(), BatchOf(*transport));
    behind.Start(transport.get(), {});
    if (!Drive(transport.get(), [&] {
          return before.done() && among.done() && behind.done();
        })) {
      return;
    }
    CheckSums(&among, *transport);
    std::vector<int> all;
    for (int r = 0; r < transport->size(); ++r) all.push_back(r);
    EXPECT_EQ(before.status().message(), "");
    EXPECT_EQ(behind.status().message(), "");
    EXPECT_EQ(before.out()[19], SumOf(all, 19));
    EXPECT_EQ(behind.out()[2999], SumOf(all, 2999));
  }
}

// The error of the last rank, by Start or by Cancel.
void CheckFailure(ContractRank* self, bool by_cancel) {
  auto transport = self->NewTransport();
  const int rank = transport->rank(), last = transport->size() - 1;
  Call call = CallOf(rank, self->Elements(3));
  Batch batch = BatchOf(*transport);
  const Status why = ResourceExhausted("no room");
  if (rank == last && !by_cancel) batch.local_error = why;
  call.Start(transport.get(), std::move(batch));
  if (rank == last && by_cancel) transport->Cancel(call.id(), why);
  if (!Drive(transport.get(), [&] { return call.done(); })) return;
  if (rank == last) {
    EXPECT_EQ(call.status().message(), "no room");
  } else if (rank % kGroups == last % kGroups) {
    EXPECT_EQ(call.status().message(), "rank " + std::to_string(last) +
                                           " had no memory for the result.");
    ASSERT_TRUE(call.status().cause() != nullptr);
    EXPECT_EQ(call.status().cause()->rank, last);
  } else {
    CheckSums(&call, *transport);
  }
  CheckSetIsWell(transport.get(), 100);
}

void PartnersHearOfAnError(ContractRank* self) { CheckFailure(self, false); }
void PartnersHearOfACancel(ContractRank* self) { CheckFailure(self, true); }

}  // namespace

std::vector<ContractCase> PartnerCases() {
  return {{"PartnersReduceAmongThemselves", PartnersReduceAmongThemselves},
          {"PartnersHearOfAnError", PartnersHearOfAnError},
          {"PartnersHearOfACancel", PartnersHearOfACancel}};
}

}  // namespace hvd
