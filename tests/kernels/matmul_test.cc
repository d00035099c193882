#include "kernels/cpu/matmul.h"

#include <cmath>
#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/matmul.h"
#include "tests/kernels/random_data.h"

namespace kvern {
namespace {

using cpu::Packing;
using cpu::Source;

constexpr size_t kAlign = 64;

// A packed matrix that owns its memory, and the values it stands for.
struct TestMatrix {
  cpu::PackedMatrix packed;
  std::vector<char> memory;
  std::vector<float> dense;  // [n, k]
};

Source SourceFor(Packing packing) {
  switch (packing) {
    case Packing::kF32:
      return Source::kF32;
    case Packing::kBf16:
      return Source::kBf16;
    case Packing::kInt8:
      return Source::kQ8_0;
    case Packing::kInt4:
      return Source::kQ4_1;
  }
  return Source::kF32;
}

// A float16 between 2^-8 and 2^-5: scales as quantised models have them.
uint16_t RandomScale(Rng& rng) {
  return static_cast<uint16_t>((7 + rng.Below(3)) << 10 | rng.Below(1024));
}

std::vector<char> RandomRow(Rng& rng, Packing packing, size_t k) {
  std::vector<char> row;
  const auto put = [&](auto value) {
    const char* bytes = reinterpret_cast<const char*>(&value);
    row.insert(row.end(), bytes, bytes + sizeof(value));
  };
  if (packing == Packing::kF32) {
    for (size_t i = 0; i < k; ++i) put(RandomFloat(rng));
  } else if (packing == Packing::kBf16) {
    for (size_t i = 0; i < k; ++i) put(cpu::ToBf16(RandomFloat(rng)));
  } else {
    for (size_t g = 0; g < k / 32; ++g) {
      put(RandomScale(rng));
      if (packing == Packing::kInt4) put(static_cast<uint16_t>(RandomScale(rng) | 0x8000u));
      const size_t bytes = packing == Packing::kInt4 ? 16 : 32;
      for (size_t i = 0; i < bytes; ++i) put(static_cast<uint8_t>(rng.Below(256)));
    }
  }
  return row;
}

TestMatrix MakeMatrix(Rng& rng, Packing packing, size_t n, size_t k) {
  TestMatrix m;
  m.packed.packing = packing;
  m.packed.n = static_cast<int64_t>(n);
  m.packed.k = static_cast<int64_t>(k);
  m.packed.panel_bytes = cpu::PanelBytes(packing, m.packed.k);
  const size_t bytes = static_cast<size_t>(cpu::NumPanels(m.packed.n)) * m.packed.panel_bytes;
  m.memory.resize(bytes + kAlign);
  const size_t misaligned = reinterpret_cast<uintptr_t>(m.memory.data()) % kAlign;
  m.packed.data = m.memory.data() + (kAlign - misaligned) % kAlign;
  for (size_t row = 0; row < n; ++row) {
    const std::vector<char> source = RandomRow(rng, packing, k);
    EXPECT_TRUE(
        cpu::PackRows(m.packed, static_cast<int64_t>(row), 1, SourceFor(packing), source.data()));
  }
  m.dense.resize(n * k);
  for (size_t row = 0; row < n; ++row) {
    cpu::UnpackRow(m.packed, static_cast<int64_t>(row), m.dense.data() + row * k);
  }
  return m;
}

// x [rows, k] with row stride `stride`.
std::vector<float> Multiply(cpu::Isa isa, const TestMatrix& w, const std::vector<float>& x,
                            size_t rows, const std::vector<float>& bias) {
  const cpu::MatMulKernels& kernels = cpu::MatMulFor(isa);
  const auto m = static_cast<int64_t>(rows);
  const int64_t k = w.packed.k;
  cpu::PackedRows packed;
  packed.rows = m;
  packed.tile_rows = kernels.tile_rows(m);
  const int64_t tiles = cpu::NumTiles(m, packed.tile_rows);
  std::vector<float> values(static_cast<size_t>(tiles * packed.tile_rows * k));
  std::vector<float> sums(static_cast<size_t>(tiles * packed.tile_rows * (k / 32)));
  for (int64_t tile = 0; tile < tiles; ++tile) {
    kernels.pack_tile(w.packed.packing, x.data(), k, m, k, packed.tile_rows, tile, values.data());
    if (w.packed.packing == Packing::kInt8 || w.packed.packing == Packing::kInt4) {
      kernels.sum_groups(x.data(), k, m, k, packed.tile_rows, tile, sums.data());
    }
  }
  packed.values = values.data();
  packed.group_sums = sums.data();
  const size_t scratch_floats = kernels.weight_scratch(w.packed.packing, k);
  std::vector<char> scratch(scratch_floats * sizeof(float) + kAlign);
  const size_t misaligned = reinterpret_cast<uintptr_t>(scratch.data()) % kAlign;
  std::vector<float> outs[2];
  for (bool with_scratch : {false, true}) {
    if (with_scratch && scratch_floats == 0) continue;
    void* memory = scratch.data() + (kAlign - misaligned) % kAlign;
    std::vector<float>& out = outs[with_scratch];
    out.assign(rows * static_cast<size_t>(w.packed.n), 777.0f);
    kernels.multiply(w.packed, packed, bias.empty() ? nullptr : bias.data(), out.data(), w.packed.n,
                     0, cpu::NumPanels(w.packed.n),
                     with_scratch ? static_cast<float*>(memory) : nullptr);
  }
  EXPECT_EQ(Bits(outs[0]), Bits(outs[scratch_floats > 0 ? 1 : 0])) << rows << " rows";
  return outs[0];
}

struct Shape {
  size_t n;
  size_t k;
};

class MatMulTest : public testing::TestWithParam<Packing> {};

TEST_P(MatMulTest, AgreesWithFloat64OnEveryTarget) {
  Rng rng(11);
  const bool quantised = GetParam() == Packing::kInt8 || GetParam() == Packing::kInt4;
  for (Shape shape : {Shape{1, 1}, Shape{16, 33}, Shape{17, 64}, Shape{50, 95}, Shape{100, 320}}) {
    if (quantised) shape.k = (shape.k + 31) / 32 * 32;
    const TestMatrix w = MakeMatrix(rng, GetParam(), shape.n, shape.k);
    for (size_t m : std::initializer_list<size_t>{1, 2, 3, 5, 7, 8, 12, 13, 33}) {
      const std::vector<float> x = RandomFloats(rng, m * shape.k);
      const std::vector<float> bias =
          m % 2 == 0 ? std::vector<float>() : RandomFloats(rng, shape.n);
      const auto want = reference::MatMul(x, w.dense, bias, m, shape.n, shape.k);
      for (cpu::Isa isa : SupportedIsas()) {
        const std::vector<float> got = Multiply(isa, w, x, m, bias);
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(got[i], want[i], 3e-5 * std::sqrt(static_cast<double>(shape.k)))
              << cpu::IsaName(isa) << " n=" << shape.n << " k=" << shape.k << " m=" << m << " at "
              << i;
        }
      }
    }
  }
}

TEST_P(MatMulTest, ARowIsTheSameAloneAndInAnyBatch) {
  Rng rng(12);
  constexpr size_t kN = 90;
  constexpr size_t kK = 160;
  const TestMatrix w = MakeMatrix(rng, GetParam(), kN, kK);
  const std::vector<float> x = RandomFloats(rng, 64 * kK);
  for (cpu::Isa isa : SupportedIsas()) {
    std::vector<float> alone;
    for (size_t row = 0; row < 64; ++row) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(row * kK);
      const std::vector<float> one(begin, begin + static_cast<std::ptrdiff_t>(kK));
      for (float value : Multiply(isa, w, one, 1, {})) alone.push_back(value);
    }
    for (size_t m : std::initializer_list<size_t>{2, 3, 4, 7, 8, 9, 12, 13, 24, 32, 33, 64}) {
      const std::vector<float> batch = Multiply(isa, w, x, m, {});
      const std::vector<float> want(alone.begin(),
                                    alone.begin() + static_cast<std::ptrdiff_t>(m * kN));
      ASSERT_EQ(Bits(batch), Bits(want)) << cpu::IsaName(isa) << " batch " << m;
    }
  }
}

using WideMatMulTest = testing::TestWithParam<std::tuple<cpu::Isa, Packing>>;

TEST_P(WideMatMulTest, BitEqualToAvx2) {
  const auto [wide, packing] = GetParam();
  Rng rng(13);
  const TestMatrix w = MakeMatrix(rng, packing, 75, 352);
  for (size_t m : std::initializer_list<size_t>{1, 5, 33}) {
    const std::vector<float> x = RandomFloats(rng, m * 352);
    EXPECT_EQ(Bits(Multiply(cpu::Isa::kAvx2, w, x, m, {})), Bits(Multiply(wide, w, x, m, {})));
  }
}

std::string PackingName(const testing::TestParamInfo<Packing>& test) {
  constexpr const char* kNames[] = {"F32", "Bf16", "Int8", "Int4"};
  return kNames[static_cast<size_t>(test.param)];
}

INSTANTIATE_TEST_SUITE_P(Packings, MatMulTest,
                         testing::Values(Packing::kF32, Packing::kBf16, Packing::kInt8,
                                         Packing::kInt4),
                         PackingName);
// None on a machine that ends with AVX2.
INSTANTIATE_TEST_SUITE_P(Wider, WideMatMulTest,
                         testing::Combine(testing::ValuesIn(IsasBeyondAvx2()),
                                          testing::Values(Packing::kF32, Packing::kBf16,
                                                          Packing::kInt8, Packing::kInt4)));

}  // namespace
}  // namespace kvern
