#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/device/attention_fixture.h"

namespace kvern {
namespace {

std::vector<std::string> IsaNames(const std::vector<cpu::Isa>& isas) {
  std::vector<std::string> names;
  constexpr const char* kNames[] = {"plain", "avx2", "avx512"};
  for (cpu::Isa isa : isas) names.emplace_back(kNames[static_cast<size_t>(isa)]);
  return names;
}

// Every head of some positions of every sequence, the last ones and those around page and split
// edges.
void ExpectNear(const AttentionCase& data, const AttentionShape& shape,
                const std::vector<float>& got) {
  for (size_t s = 0; s < shape.lengths.size(); ++s) {
    for (int64_t position : {0, 1, 14, 15, 16, 17, 31, 255, 256, 257, 300}) {
      if (position >= shape.lengths[s]) position = shape.lengths[s] - 1;
      for (int64_t head = 0; head < data.q_heads(); ++head) {
        const std::vector<double> want = data.Want(s, position, head);
        const float* row = got.data() + (data.first_row(s) + position) * data.out_columns() +
                           head * shape.head_dim;
        for (size_t d = 0; d < want.size(); ++d) {
          ASSERT_NEAR(row[d], want[d], 1e-5)
              << "sequence " << s << " position " << position << " head " << head << " dim " << d;
        }
      }
    }
  }
}

TEST(CpuAttentionTest, AgreesWithFloat64OnEveryTarget) {
  const AttentionShape shapes[] = {
      {1, 1, 64, DType::kF32, {5}},         {3, 3, 64, DType::kBf16, {1, 16, 17, 300}},
      {1, 16, 80, DType::kBf16, {33, 2}},   {2, 2, 128, DType::kF32, {270, 15}},
      {2, 5, 6, DType::kF32, {40, 31, 32}}, {1, 7, 18, DType::kBf16, {290}},
      {1, 2, 256, DType::kBf16, {20}},      {2, 1, 2, DType::kBf16, {259}},
  };
  uint64_t seed = 100;
  for (const AttentionShape& shape : shapes) {
    AttentionCase data(shape, ++seed);
    for (const std::string& isa : IsaNames(SupportedIsas())) {
      SCOPED_TRACE(isa + ", head_dim " + std::to_string(shape.head_dim));
      const auto device = MakeCpuDevice(1, isa);
      ExpectNear(data, shape, data.Run(*device, 1000));
    }
  }
}

TEST(CpuAttentionTest, ChunksAndThreadsDoNotChangeABit) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    const AttentionShape shape{3, 3, 64, dtype, {290, 1, 77, 256, 257}};
    AttentionCase data(shape, 7);
    for (const std::string& isa : IsaNames(SupportedIsas())) {
      const auto one = MakeCpuDevice(1, isa);
      const std::vector<uint32_t> whole = Bits(data.Run(*one, 1000));
      for (int threads : {1, 2, 3}) {
        const auto device = MakeCpuDevice(threads, isa);
        for (int64_t chunk : {1, 7, 64, 1000}) {
          if (isa == "plain" && chunk == 1) continue;  // Slow, and no code of its own.
          EXPECT_TRUE(Bits(data.Run(*device, chunk)) == whole)
              << isa << ", chunk " << chunk << ", threads " << threads;
        }
      }
    }
  }
}

// 12 parts of which 11 are computed in one round: the last item goes on in the next.
TEST(CpuAttentionTest, ManyPartsInRoundsDoNotChangeABit) {
  AttentionCase data({6, 30, 256, DType::kBf16, {258}}, 11);
  const auto one = MakeCpuDevice(1);
  const auto two = MakeCpuDevice(2);
  EXPECT_TRUE(Bits(data.Run(*two, 3)) == Bits(data.Run(*one, 3)));
}

TEST(CpuAttentionTest, OneLongSequenceIsTheSameAloneAndAmongOthers) {
  AttentionCase together({2, 4, 32, DType::kBf16, {700, 3, 50}}, 9);
  const auto device = MakeCpuDevice(2);
  const std::vector<float> batch = together.Run(*device, 48);
  // The same seed draws the same rows, as long as the first sequence comes first.
  AttentionCase alone({2, 4, 32, DType::kBf16, {700}}, 9);
  const std::vector<float> single = alone.Run(*device, 48);
  const std::vector<float> head(batch.begin(),
                                batch.begin() + static_cast<std::ptrdiff_t>(single.size()));
  EXPECT_TRUE(Bits(head) == Bits(single));
}

using WideCpuAttentionTest = testing::TestWithParam<std::string>;

TEST_P(WideCpuAttentionTest, BitEqualToAvx2) {
  AttentionCase data({2, 3, 72, DType::kBf16, {300, 20}}, 10);
  const auto narrow = MakeCpuDevice(1, "avx2");
  const auto wide = MakeCpuDevice(1, GetParam());
  EXPECT_TRUE(Bits(data.Run(*narrow, 64)) == Bits(data.Run(*wide, 64)));
}

// None on a machine that ends with AVX2.
INSTANTIATE_TEST_SUITE_P(Wider, WideCpuAttentionTest,
                         testing::ValuesIn(IsaNames(IsasBeyondAvx2())));

}  // namespace
}  // namespace kvern
