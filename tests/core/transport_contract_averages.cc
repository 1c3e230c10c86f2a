// SPDX-License-Identifier: Apache-2.0
// Contract cases: averages keep their precision, whatever the ranks' hosts.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <vector>

#include "harness.h"
#include "transport_contract.h"
#include "typed_values.h"

namespace hvd {
namespace {

// Enough for several parts of several chunks.
constexpr int64_t kCount = 3000;

// The average of value(rank, i), as `batch` asks for it.
std::vector<double> Average(Transport* transport, Batch batch,
                            const std::function<double(int, int64_t)>& value) {
  const size_t bytes = SizeOf(batch.dtype);
  std::vector<char> in(kCount * bytes), out(kCount * bytes);
  for (int64_t i = 0; i < kCount; ++i) {
    PutValue(batch.dtype, in.data(), i, value(transport->rank(), i));
  }
  batch.reduce_op = ReduceOp::kAverage;
  batch.segments = {{in.data(), out.data(), kCount}};
  bool done = false;
  transport->Start(batch, [&](const Status& status) {
    EXPECT_EQ(status.message(), "");
    done = true;
  });
  Drive(transport, [&] { return done; });
  std::vector<double> results;
  for (int64_t i = 0; i < kCount; ++i) {
    results.push_back(GetValue(batch.dtype, out.data(), i));
  }
  return results;
}

// --- Half precision ---

struct Format {
  DataType dtype;
  int digits;           // of the significand
  int lowest_exponent;  // of the step between subnormal numbers
};
constexpr Format kFormats[] = {{DataType::kFloat16, 11, -24},
                               {DataType::kBfloat16, 8, -133}};

double Rounded(DataType dtype, double value) {
  char space[8];
  PutValue(dtype, space, 0, value);
  return GetValue(dtype, space, 0);
}

// Between the numbers around `value`.
double StepAt(const Format& format, double value) {
  const int exponent = std::ilogb(value) + 1 - format.digits;
  return std::ldexp(1.0, std::max(exponent, format.lowest_exponent));
}

// All elements are of about the same size, and so are the hosts' averages. Each
// of these is rounded by half a step at most, and so is their average.
void CheckHalves(Transport* transport, const Format& format, DataType dtype,
                 double size, double postscale) {
  // The values repeat.
  constexpr int64_t kPeriod = 101;
  std::vector<double> values;
  for (int64_t mix = 0; mix < kPeriod; ++mix) {
    values.push_back(Rounded(
        format.dtype, size * (1 - 0.1 * static_cast<double>(mix) / 100)));
  }
  const auto value = [&](int rank, int64_t i) {
    return values[(rank * 37 + i * 11) % kPeriod];
  };
  Batch batch;
  batch.dtype = dtype;
  batch.wire_dtype = format.dtype;
  batch.postscale = postscale;
  const std::vector<double> results = Average(transport, batch, value);
  double worst = 0;
  for (int64_t first = 0; first < kPeriod; ++first) {
    double sum = 0, largest = 0;
    for (int rank = 0; rank < transport->size(); ++rank) {
      sum += value(rank, first);
      largest = std::max(largest, value(rank, first));
    }
    const double allowed = (StepAt(format, largest) * postscale +
                            StepAt(format, largest * postscale)) /
                           2;
    for (int64_t i = first; i < kCount; i += kPeriod) {
      const double error =
          std::abs(results[i] - sum / transport->size() * postscale);
      worst = std::max(worst, error / allowed);
    }
  }
  // A little more for float32's own rounding.
  if (!EXPECT_TRUE(worst <= 1.01)) {
    std::printf("  %s as %s of about %g, scaled by %g: %.0f times too far\n",
                Name(dtype), Name(format.dtype), size, postscale, worst);
  }
}

void HalvesKeepTheirPrecision(ContractRank* self) {
  auto transport = self->NewTransport();
  for (const Format& format : kFormats) {
    for (DataType dtype : {format.dtype, DataType::kFloat32}) {
      for (double size :
           {1e-7, 2e-7, 3e-6, 1e-5, 1e-4, 0.03, 1.0, 700.0, 6e4}) {
        CheckHalves(transport.get(), format, dtype, size, 1.0);
        if (kElementsAreSlow) break;
      }
      CheckHalves(transport.get(), format, dtype, 1e-5, 1024.0);
      CheckHalves(transport.get(), format, dtype, 5e4, 1.0 / 1024);
    }
  }
}

// --- Integers ---

double Most(DataType dtype) {
  double most = 0;
  VisitType(dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_integral_v<T>) {
      most = static_cast<double>(std::numeric_limits<T>::max());
    }
  });
  return most;
}

double Least(DataType dtype) {
  const bool is_unsigned =
      dtype == DataType::kUint8 || dtype == DataType::kUint16;
  return is_unsigned ? 0 : -Most(dtype) - 1;
}

// Near the ends of the type, or alternately so.
double LongInteger(DataType dtype, int rank, int64_t i) {
  const auto step = static_cast<double>((rank * 5 + i) % 7);
  const bool is_low = i % 3 == 0 || (i % 3 == 1 && (rank + i) % 2 == 0);
  return is_low ? Least(dtype) + step : Most(dtype) - step;
}

double Scaled(DataType dtype, double value, double scale) {
  return std::min(std::max(std::trunc(value * scale), Least(dtype)),
                  Most(dtype));
}

void CheckIntegers(Transport* transport, DataType dtype, double prescale,
                   double postscale) {
  Batch batch;
  batch.dtype = batch.wire_dtype = dtype;
  batch.prescale = prescale;
  batch.postscale = postscale;
  const auto value = [&](int rank, int64_t i) {
    return LongInteger(dtype, rank, i);
  };
  const std::vector<double> results = Average(transport, batch, value);
  int64_t wrong = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    double sum = 0;
    for (int rank = 0; rank < transport->size(); ++rank) {
      sum += Scaled(dtype, value(rank, i), prescale);
    }
    const double average = std::trunc(sum / transport->size());
    wrong += results[i] != Scaled(dtype, average, postscale);
  }
  if (!EXPECT_EQ(wrong, 0)) {
    std::printf("  %s, scaled by %g and %g\n", Name(dtype), prescale,
                postscale);
  }
}

void IntegersDoNotWrapInAverages(ContractRank* self) {
  auto transport = self->NewTransport();
  for (DataType dtype : {DataType::kUint8, DataType::kInt8, DataType::kUint16,
                         DataType::kInt16, DataType::kInt32}) {
    CheckIntegers(transport.get(), dtype, 1.0, 1.0);
    CheckIntegers(transport.get(), dtype, 2.0, 0.5);
    CheckIntegers(transport.get(), dtype, 0.5, 3.0);
  }
}

}  // namespace

std::vector<ContractCase> AverageCases() {
  return {{"HalvesKeepTheirPrecision", HalvesKeepTheirPrecision},
          {"IntegersDoNotWrapInAverages", IntegersDoNotWrapInAverages}};
}

}  // namespace hvd
