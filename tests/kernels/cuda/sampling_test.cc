// Sampling kernels against sorting, float64 sums and the CPU's choice.
#include "kernels/cpu/sampling.h"

#include <cmath>
#include <limits>

#include "kernels/cuda/launch.h"
#include "kernels/reference/sampling.h"
#include "tests/kernels/cuda/device_memory.h"

namespace kvern::gpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Rows of logits, `stride` apart, and requests for some of them.
struct Logits {
  Logits(const std::vector<std::vector<float>>& rows, const std::vector<SampleRow>& wanted)
      : columns(static_cast<int32_t>(rows[0].size())),
        stride(columns + 3),
        values(Spread(rows, static_cast<size_t>(columns + 3))),
        requests(wanted) {}

  static std::vector<float> Spread(const std::vector<std::vector<float>>& rows, size_t stride) {
    std::vector<float> all(rows.size() * stride, kInfinity);  // between rows: would win
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy(rows[i].begin(), rows[i].end(), all.begin() + static_cast<ptrdiff_t>(i * stride));
    }
    return all;
  }
  LogitsArgs args() const {
    return {values.get(), stride, columns, requests.get(), static_cast<int32_t>(requests.size())};
  }

  int32_t columns;
  int64_t stride;
  DeviceArray<float> values;
  DeviceArray<SampleRow> requests;
};

std::vector<ScoredColumn> Top(const Logits& logits, int32_t k) {
  const auto each = static_cast<size_t>(std::min(k, logits.columns));
  const DeviceArray<ScoredColumn> out(logits.requests.size() * each, ScoredColumn{7, 7});
  EXPECT_EQ(LaunchTopCandidates(logits.args(), k, out.get(), nullptr), cudaSuccess);
  return out.Read();
}

void CheckTop(const std::vector<float>& row, int32_t k) {
  const std::vector<ScoredColumn> got = Top(Logits({row}, {{0, 1, 0}}), k);
  std::vector<float> counted = row;
  for (float& x : counted) x = std::isnan(x) ? -kInfinity : x;
  const std::vector<uint32_t> expected = reference::Top(counted, static_cast<size_t>(k));
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].column, expected[i]) << "place " << i << " of " << k;
    ASSERT_EQ(got[i].value, counted[expected[i]]);
  }
}

TEST(CudaTopCandidates, AgreesWithSorting) {
  Rng rng(1);
  for (size_t columns : {1u, 2u, 31u, 1000u, 1024u, 5000u}) {
    const std::vector<float> row = RandomRow(rng, columns, 20);
    for (int32_t k : {1, 2, 5, 64, 1000, 1024}) CheckTop(row, k);
  }
}

TEST(CudaTopCandidates, TiesGoToTheLowerColumn) {
  Rng rng(2);
  std::vector<float> row(3000);
  for (float& x : row) x = -static_cast<float>(rng.Below(5));                        // five values
  for (size_t i = 0; i < 40; ++i) row[rng.Below(3000)] = i % 2 == 0 ? 0.0f : -0.0f;  // alike
  for (int32_t k : {1, 10, 700, 1024}) CheckTop(row, k);
  CheckTop(std::vector<float>(2500, 1.5f), 1023);
}

TEST(CudaTopCandidates, NanAndInfinityHaveTheirPlaces) {
  std::vector<float> row = {1, kNan, -kInfinity, 3, kNan, kInfinity, -1};
  for (int32_t k = 1; k <= 8; ++k) CheckTop(row, k);
  CheckTop(std::vector<float>(40, kNan), 5);
}

TEST(CudaTopCandidates, RowsDoNotMeet) {
  Rng rng(3);
  const std::vector<std::vector<float>> rows = {RandomRow(rng, 700, 1), RandomRow(rng, 700, 1),
                                                RandomRow(rng, 700, 1)};
  const std::vector<ScoredColumn> both = Top(Logits(rows, {{2, 1, 0}, {0, 1, 0}}), 50);
  const std::vector<ScoredColumn> second = Top(Logits(rows, {{0, 1, 0}}), 50);
  ASSERT_EQ(both.size(), 100u);
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(both[50 + i].column, second[i].column);
    EXPECT_EQ(both[i].value, rows[2][both[i].column]);
  }
}

TEST(CudaLogSumExp, AgreesWithFloat64) {
  Rng rng(4);
  for (size_t columns : {1u, 255u, 4096u, 4097u, 12000u}) {
    std::vector<float> row = RandomRow(rng, columns, 15);
    if (columns > 4096) std::fill(row.begin() + 4096, row.end(), -kInfinity);
    if (columns > 5000) row[11000] = 17;
    for (float inverse_temperature : {1.0f, 0.25f, 3.0f}) {
      const Logits logits({row}, {{0, inverse_temperature, 0}});
      const auto parts = static_cast<size_t>(SumParts(logits.columns));
      const DeviceArray<SumPart> out(parts, SumPart{kNan, 0});
      ASSERT_EQ(LaunchLogSumExp(logits.args(), out.get(), nullptr), cudaSuccess);
      const SumPart whole = FoldSums(out.Read(), inverse_temperature);
      EXPECT_EQ(whole.max, *std::max_element(row.begin(), row.end()));
      const double expected = reference::SumExp(row, static_cast<double>(inverse_temperature));
      EXPECT_NEAR(whole.sum, expected, expected * 1e-5) << columns;
    }
  }
}

TEST(CudaLogSumExp, ARowOfMinusInfinitySumsToNothing) {
  const Logits logits({std::vector<float>(5000, -kInfinity)}, {{0, 1, 0}});
  const DeviceArray<SumPart> out(2, SumPart{kNan, 1});
  ASSERT_EQ(LaunchLogSumExp(logits.args(), out.get(), nullptr), cudaSuccess);
  const SumPart whole = FoldSums(out.Read(), 1);
  EXPECT_EQ(whole.max, -kInfinity);
  EXPECT_EQ(whole.sum, 0);
}

TEST(CudaGumbelMax, ChoosesAsTheCpuDoes) {
  Rng rng(5);
  const cpu::SamplingKernels& kernels = cpu::SamplingFor(cpu::Isa::kPlain);
  std::vector<std::vector<float>> rows;
  std::vector<SampleRow> requests;
  for (int32_t i = 0; i < 12; ++i) {
    rows.push_back(RandomRow(rng, 1500, 3));
    requests.push_back({11 - i, 0.5f + static_cast<float>(i), rng.Next()});
  }
  rows[3].assign(1500, -kInfinity);
  rows[4].assign(1500, kNan);
  rows[5][700] = kNan;
  rows[6].assign(1500, -kInfinity);
  rows[6][0] = kNan;  // not even then the choice
  const Logits logits(rows, requests);
  const uint64_t first_id = 128256;
  const DeviceArray<uint64_t> best(requests.size(), ~uint64_t{0});
  ASSERT_EQ(LaunchGumbelMax(logits.args(), first_id, best.get(), nullptr), cudaSuccess);
  const std::vector<uint64_t> got = best.Read();
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<float>& row = rows[static_cast<size_t>(requests[i].row)];
    const cpu::ScoredColumn expected = kernels.gumbel_max(
        row.data(), 1500, requests[i].inverse_temperature, requests[i].key, first_id);
    const ScoredColumn chosen = ChosenColumn(got[i]);
    EXPECT_EQ(chosen.column, expected.column) << i;
    EXPECT_EQ(chosen.value, expected.value) << i;
  }
}

TEST(CudaSampling, ShapesThatCommentsExcludeAreRefusedAndNoRequestsAreNothing) {
  LogitsArgs args = {nullptr, 8, 8, nullptr, 0};
  EXPECT_EQ(LaunchTopCandidates(args, kMaxCandidates, nullptr, nullptr), cudaSuccess);
  EXPECT_EQ(LaunchTopCandidates(args, kMaxCandidates + 1, nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchTopCandidates(args, 0, nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchLogSumExp(args, nullptr, nullptr), cudaSuccess);
  EXPECT_EQ(LaunchGumbelMax(args, 0, nullptr, nullptr), cudaSuccess);
  args.stride = 7;
  EXPECT_EQ(LaunchLogSumExp(args, nullptr, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace kvern::gpu
