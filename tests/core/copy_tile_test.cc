// SPDX-License-Identifier: Apache-2.0
// What the copy kernels of a GPU do, run on the host thread by thread: every
// element arrives, at any alignment, and nothing beside it is touched.
#include "transport/device/copy_tile.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/elementwise.h"
#include "harness.h"
#include "transport/device/copy_table.h"
#include "typed_values.h"

namespace hvd {
namespace {

constexpr int kThreads = 7;  // of a tile; does not divide anything
constexpr unsigned char kPoison = 0xa5;

// Calls visit(table, tile, thread) as a GPU would start its threads, but last
// ones first.
template <typename Visit>
void ForEachThread(const std::vector<CopyTable>& tables, Visit visit) {
  for (const CopyTable& table : tables) {
    for (uint32_t tile = table.tile_count(); tile-- > 0;) {
      for (int64_t thread = kThreads; thread-- > 0;) {
        visit(table, tile, TileThread{thread, kThreads});
      }
    }
  }
}

// Memory with a tensor at some distance from a boundary of 64 bytes.
class Place {
 public:
  Place(int64_t bytes, int64_t offset)
      : bytes_(static_cast<size_t>(bytes) + 128 + 64, kPoison), size_(bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(bytes_.data()) + 64;
    at_ = bytes_.data() + 64 + (64 - begin % 64) % 64 + offset;
  }
  unsigned char* data() { return at_; }
  // Whether all around the tensor is as it was.
  bool is_intact() const {
    const unsigned char* const end = bytes_.data() + bytes_.size();
    for (const unsigned char* at = bytes_.data(); at < end; ++at) {
      if ((at < at_ || at >= at_ + size_) && *at != kPoison) return false;
    }
    return true;
  }

 private:
  std::vector<unsigned char> bytes_;
  int64_t size_;
  unsigned char* at_;
};

void FillWithNoise(std::mt19937* random, unsigned char* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<unsigned char>((*random)());
  }
}

template <typename Table>
void CheckCover(const std::vector<int>& numbers_of_segments) {
  std::mt19937 random(1);
  for (const int segments : numbers_of_segments) {
    for (const int64_t tile_elements : {int64_t{1}, int64_t{5}, int64_t{64}}) {
      std::vector<std::vector<unsigned char>> to;
      std::vector<CopySegment> copies;
      for (int i = 0; i < segments; ++i) {
        // Some are empty, some are one tile to the element.
        const int64_t count = static_cast<int64_t>(random() % 130);
        to.emplace_back(static_cast<size_t>(count), 0);
        copies.push_back({nullptr, to.back().data(), count});
      }
      const auto tables = MakeTileTables<Table>(copies, tile_elements);
      for (const Table& table : tables) {
        for (uint32_t tile = 0; tile < table.tile_count(); ++tile) {
          const CopySegment part = TileOf(table, tile, 1, 1);
          EXPECT_TRUE(part.count >= 1 && part.count <= tile_elements);
          for (int64_t i = 0; i < part.count; ++i) {
            ++static_cast<unsigned char*>(part.to)[i];
          }
        }
      }
      for (const auto& each : to) {
        EXPECT_TRUE(each == std::vector<unsigned char>(each.size(), 1));
      }
    }
  }
}

TEST(tiles_cover_each_segment_once) {
  CheckCover<CopyTable>({0, 1, 2, 139, 140, 141, 1000});
  CheckCover<LargeCopyTable>({0, 1, 141, 1159, 1160, 1161, 3000});
}

TEST(both_ends_of_a_tile_move_by_the_size_of_their_elements) {
  const auto from = reinterpret_cast<const void*>(uintptr_t{1000});
  const auto to = reinterpret_cast<void*>(uintptr_t{5000});
  const auto tables = MakeTileTables<CopyTable>({{from, to, 25}}, 10);
  ASSERT_EQ(tables.size(), 1u);
  EXPECT_EQ(tables[0].tile_count(), 3u);
  const CopySegment last = TileOf(tables[0], 2, 4, 2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(last.from), 1080u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(last.to), 5040u);
  EXPECT_EQ(last.count, 5);
}

TEST(a_huge_tensor_has_tiles_that_count_in_sixty_four_bits) {
  const int64_t count = int64_t{1} << 40;
  const auto tables =
      MakeTileTables<CopyTable>({{nullptr, nullptr, count}}, 1 << 13);
  ASSERT_EQ(tables.size(), 1u);
  const uint32_t last = tables[0].tile_count() - 1;
  EXPECT_EQ(last, (uint32_t{1} << 27) - 1);
  const CopySegment part = TileOf(tables[0], last, 8, 8);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(part.from),
            static_cast<uintptr_t>(count - (1 << 13)) * 8);
}

TEST(more_tiles_than_a_grid_has_are_two_launches) {
  const int64_t count =
      (int64_t{1} << 31) - 2;  // one tile less than a grid has
  const auto tables = MakeTileTables<CopyTable>(
      {{nullptr, nullptr, count}, {nullptr, nullptr, 2}}, 1);
  ASSERT_EQ(tables.size(), 2u);
  EXPECT_EQ(tables[0].segment_count, 1);
  EXPECT_EQ(tables[1].tile_count(), 2u);
}

TEST(bytes_move_at_any_alignment) {
  std::mt19937 random(2);
  std::vector<int64_t> lengths = {1, 2, 7, 15, 16, 17, 31, 33, 100, 1000};
  for (const int64_t bytes : lengths) {
    for (int64_t from_offset = 0; from_offset < 17; ++from_offset) {
      for (int64_t to_offset = 0; to_offset < 17; ++to_offset) {
        Place from(bytes, from_offset), to(bytes, to_offset);
        FillWithNoise(&random, from.data(), bytes);
        const auto tables =
            MakeTileTables<CopyTable>({{from.data(), to.data(), bytes}}, 300);
        ForEachThread(tables, [&](const CopyTable& table, uint32_t tile,
                                  TileThread thread) {
          const CopySegment part = TileOf(table, tile, 1, 1);
          MoveTile(part.from, part.to, part.count, thread);
        });
        EXPECT_EQ(
            std::memcmp(from.data(), to.data(), static_cast<size_t>(bytes)), 0);
        EXPECT_TRUE(to.is_intact() && from.is_intact());
      }
    }
  }
}

// Any bits, NaN and subnormals too. The host's Pack gives the same ones.
template <typename From, typename To>
void CheckConversion(DataType from_type, DataType to_type, double scale,
                     std::mt19937* random) {
  constexpr int64_t kFrom = sizeof(From), kTo = sizeof(To);
  for (const int64_t count : {1, 3, 8, 9, 64, 333}) {
    for (int64_t shift = 0; shift < 8; ++shift) {
      Place from(count * kFrom, shift * kFrom);
      Place to(count * kTo, (shift * 3 % 8) * kTo);
      FillWithNoise(random, from.data(), count * kFrom);
      const auto tables =
          MakeTileTables<CopyTable>({{from.data(), to.data(), count}}, 100);
      ForEachThread(tables, [&](const CopyTable& table, uint32_t tile,
                                TileThread thread) {
        const CopySegment part = TileOf(table, tile, kFrom, kTo);
        ConvertTile(static_cast<const From*>(part.from),
                    static_cast<To*>(part.to), part.count, scale, thread);
      });
      std::vector<To> expected(static_cast<size_t>(count));
      Pack(from_type, to_type, from.data(), expected.data(), count, scale);
      std::vector<To> found(expected.size());
      std::memcpy(found.data(), to.data(), expected.size() * sizeof(To));
      for (size_t i = 0; i < found.size(); ++i) {
        const auto one = ConvertFloat<double>(found[i]);
        const auto other = ConvertFloat<double>(expected[i]);
        // Which NaN it is does not matter.
        EXPECT_TRUE(std::memcmp(&found[i], &expected[i], sizeof(To)) == 0 ||
                    (one != one && other != other));
      }
      EXPECT_TRUE(to.is_intact());
    }
  }
}

TEST(conversions_have_the_bits_of_the_hosts) {
  std::mt19937 random(3);
  VisitFloatingPairs(
      [&](DataType from_type, DataType to_type, auto from, auto to) {
        for (const double scale : {1.0, 0.5, 1.0 / 3, 1e-3}) {
          CheckConversion<decltype(from), decltype(to)>(from_type, to_type,
                                                        scale, &random);
        }
      });
}

}  // namespace
}  // namespace hvd
