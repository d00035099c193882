// The swizzle of tiles in shared memory. The emulator has no banks, so it is said here.
#include "kernels/cuda/tile_ring.cuh"

#include <set>

#include "gtest/gtest.h"

namespace kvern::gpu {
namespace {

// Of 4 banks, 16 bytes, each.
constexpr int kBankGroups = 8;

template <int kDim>
void CheckSwizzle() {
  SCOPED_TRACE(kDim);
  constexpr int kChunks = kDim / 8;
  // ldmatrix reads one chunk of 8 rows at once.
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    for (int first = 0; first < kTileKeys; first += 8) {
      std::set<int> groups;
      for (int row = first; row < first + 8; ++row) {
        groups.insert(ChunkIndex<kDim>(row, chunk) % kBankGroups);
      }
      EXPECT_EQ(groups.size(), 8u) << "chunk " << chunk << " of rows from " << first;
    }
  }
  // 8 lanes copy 8 consecutive chunks at once; each chunk has a place of its own in the tile.
  std::set<int> places;
  for (int first = 0; first < kTileKeys * kChunks; first += 8) {
    std::set<int> groups;
    for (int i = first; i < first + 8; ++i) {
      const int place = ChunkIndex<kDim>(i / kChunks, i % kChunks);
      groups.insert(place % kBankGroups);
      places.insert(place);
    }
    EXPECT_EQ(groups.size(), 8u) << "copies from chunk " << first;
  }
  EXPECT_EQ(places.size(), static_cast<size_t>(kTileKeys * kChunks));
  EXPECT_EQ(*places.begin(), 0);
  EXPECT_EQ(*places.rbegin(), kTileKeys * kChunks - 1);
}

TEST(TileRing, NoAccessHasABankConflict) {
  CheckSwizzle<16>();
  CheckSwizzle<32>();
  CheckSwizzle<64>();
  CheckSwizzle<128>();
}

}  // namespace
}  // namespace kvern::gpu
