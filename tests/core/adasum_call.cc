// SPDX-License-Identifier: Apache-2.0
// Makes the values of an AdasumCall, and checks what comes out.
#include "adasum_call.h"

#include <algorithm>
#include <utility>

#include "harness.h"
#include "transport_contract.h"
#include "typed_values.h"

namespace hvd {
namespace {

constexpr char kTaken = 77;

// From -1 to 1, at random but always the same.
double Noise(uint64_t tensor, uint64_t rank, uint64_t k) {
  uint64_t x = (tensor * 1000003 + rank) * 1000003 + k;
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185ull;
  x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44dull;
  return static_cast<double>((x ^ (x >> 33)) >> 11) / (1ull << 52) - 1.0;
}

// `value`, as the type holds it.
double Rounded(DataType dtype, double value) {
  char space[8];
  PutValue(dtype, space, 0, value);
  return GetValue(dtype, space, 0);
}

}  // namespace

AdasumCall::AdasumCall(const Transport& transport, Batch head,
                       std::vector<int64_t> counts, Likeness likeness,
                       int first_tensor)
    : rank_(transport.rank()),
      size_(transport.size()),
      counts_(std::move(counts)),
      likeness_(likeness),
      first_tensor_(first_tensor),
      batch_(std::move(head)) {
  batch_.reduce_op = ReduceOp::kAdasum;
  const size_t bytes = SizeOf(batch_.dtype);
  for (size_t i = 0; i < counts_.size(); ++i) {
    names_.push_back("tensor " + std::to_string(i));
    in_.emplace_back(static_cast<size_t>(counts_[i]) * bytes);
    out_.emplace_back(in_[i].size(), 1);
    for (int64_t k = 0; k < counts_[i]; ++k) Put(i, k, Input(i, rank_, k));
  }
  for (size_t i = 0; i < counts_.size(); ++i) {
    batch_.segments.push_back(
        {in_[i].data(), out_[i].data(), counts_[i], &names_[i]});
  }
}

double AdasumCall::Input(size_t tensor, int rank, int64_t k) const {
  const uint64_t number = tensor + static_cast<uint64_t>(first_tensor_);
  const double common = Noise(number, 1000, static_cast<uint64_t>(k));
  const double own = Noise(number, rank, static_cast<uint64_t>(k));
  switch (likeness_) {
    case Likeness::kSome:
      return Rounded(batch_.dtype, common + own);
    case Likeness::kEqual:
      return Rounded(batch_.dtype, common);
    case Likeness::kOpposite:
      return (rank % 2 == 0 ? 1 : -1) * Rounded(batch_.dtype, common);
    case Likeness::kOrthogonal:
      return k % size_ == rank ? Rounded(batch_.dtype, own) : 0.0;
    case Likeness::kSomeZero:
      return rank % 3 == 0 ? 0.0 : Rounded(batch_.dtype, common + own);
  }
  return 0.0;
}

void AdasumCall::Put(size_t tensor, int64_t k, double value) {
  PutValue(batch_.dtype, in_[tensor].data(), k, value);
}

void AdasumCall::Start(Transport* transport) {
  id_ = transport->Start(batch_, [this](const Status& status) {
    EXPECT_FALSE(done_);
    done_ = true;
    status_ = status;
  });
}

void AdasumCall::Run(Transport* transport) {
  Start(transport);
  Drive(transport, [&] { return transport->in_flight() == 0; });
}

Vector AdasumCall::Expected(size_t tensor) const {
  std::vector<Vector> vectors(static_cast<size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    for (int64_t k = 0; k < counts_[tensor]; ++k) {
      vectors[rank].push_back(Rounded(
          batch_.wire_dtype,
          Rounded(batch_.dtype, Input(tensor, rank, k) * batch_.prescale)));
    }
  }
  Vector sum = ExpectedAdasum(std::move(vectors));
  for (double& value : sum) value *= batch_.postscale;
  return sum;
}

double AdasumCall::Result(size_t tensor, int64_t at) const {
  return GetValue(batch_.dtype, out_[tensor].data(), at);
}

void AdasumCall::ExpectNumbers(Transport* transport) const {
  EXPECT_EQ(status_.message(), "");
  const double epsilon =
      std::max(Epsilon(batch_.dtype), Epsilon(batch_.wire_dtype));
  for (size_t i = 0; i < counts_.size(); ++i) {
    // All ranks have the same bits, so that one of them may look at each.
    if (static_cast<int>(i) % size_ != rank_) continue;
    const Vector expected = Expected(i);
    for (int64_t k = 0; k < counts_[i]; ++k) {
      // Sums of float64 differ by their order.
      const double tolerance =
          (epsilon + 1e-14) * 2.0 * std::max(std::abs(expected[k]), 1.0);
      if (!EXPECT_NEAR(Result(i, k), expected[k], tolerance)) {
        std::printf("  tensor %zu of %lld %s, at %lld\n", i,
                    static_cast<long long>(counts_[i]), Name(batch_.dtype),
                    static_cast<long long>(k));
        break;
      }
    }
  }
  ExpectSameBits(transport);
}

void AdasumCall::ExpectSameBits(Transport* transport) const {
  Batch copy;
  copy.verb = Verb::kBroadcast;
  copy.dtype = copy.wire_dtype = DataType::kUint8;
  std::vector<std::vector<char>> first = out_;
  for (std::vector<char>& bytes : first) {
    copy.segments.push_back(
        {bytes.data(), bytes.data(), static_cast<int64_t>(bytes.size())});
  }
  Status status = Internal("not done");
  transport->Start(copy, [&](const Status& result) { status = result; });
  Drive(transport, [&] { return transport->in_flight() == 0; });
  EXPECT_EQ(status.message(), "");
  EXPECT_TRUE(first == out_);
}

void AdasumCall::TakeMemory() {
  for (size_t i = 0; i < counts_.size(); ++i) {
    std::vector<char>().swap(in_[i]);
    std::fill(out_[i].begin(), out_[i].end(), kTaken);
  }
}

bool AdasumCall::memory_untouched() const {
  return std::all_of(out_.begin(), out_.end(),
                     [](const std::vector<char>& bytes) {
                       return std::count(bytes.begin(), bytes.end(), kTaken) ==
                              static_cast<std::ptrdiff_t>(bytes.size());
                     });
}

}  // namespace hvd
