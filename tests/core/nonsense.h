// SPDX-License-Identifier: Apache-2.0
// Messages that parse and make no sense, and how much memory they cost.
//
// Whoever is handed one may give up the job. It must not crash, lose an answer,
// or allocate what the message says. To be included by one file of a program,
// because it replaces operator new.
#ifndef HVD_TESTS_CORE_NONSENSE_H_
#define HVD_TESTS_CORE_NONSENSE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <new>
#include <random>
#include <string>

#include "core/coding.h"
#include "core/options.h"
#include "core/request.h"
#include "core/types.h"

// The largest piece of memory that was asked for at once.
static size_t largest_bytes = 0;

void* operator new(size_t bytes) {
  largest_bytes = std::max(largest_bytes, bytes);
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace hvd {

inline constexpr int kRanks = 3;
inline constexpr int kRounds = 30000;
inline constexpr size_t kMostBytes = 1 << 20;

inline Options SmallCache() {
  Options options = Options::Defaults();
  options.cache_entries = 4;
  return options;
}

// One call of each verb, two of them in a loop.
inline Request CallOf(int number) {
  const auto verb = static_cast<Verb>(number % kVerbCount);
  Request request;
  request.key.name = std::string(1, static_cast<char>('a' + number));
  request.key.instance = number < 2 ? 1 : 0;
  request.signature.verb = verb;
  request.signature.shapes = {{3, 2}, {4}};
  if (verb == Verb::kSparseAllreduce) {
    request.signature.table_rows = {9, -1};
  }
  request.step = number % 2;
  return request;
}
inline constexpr int kCalls = kVerbCount;

// Changes some bytes. Numbers become others that are often wrong.
inline std::string Damaged(std::string bytes, size_t keep,
                           std::mt19937* random) {
  constexpr uint64_t kNumbers[] = {0,
                                   1,
                                   2,
                                   3,
                                   5,
                                   63,
                                   64,
                                   uint64_t{1} << 31,
                                   uint64_t{1} << 40,
                                   uint64_t{1} << 41,
                                   (uint64_t{1} << 62) - 1,
                                   uint64_t{1} << 62,
                                   ~uint64_t{0}};
  for (int hits = 1 + static_cast<int>((*random)() % 2); hits > 0; --hits) {
    const size_t at = keep + (*random)() % (bytes.size() - keep);
    Writer writer;
    writer.Unsigned(kNumbers[(*random)() % std::size(kNumbers)]);
    const bool is_number = (*random)() % 2 == 0;
    bytes.replace(at, 1,
                  is_number ? writer.Take()
                            : std::string(1, static_cast<char>((*random)())));
  }
  return bytes;
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_NONSENSE_H_
