#include "worker/device/cpu/cpu_device.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/rows.h"
#include "kernels/reference/sampling.h"
#include "tests/worker/device/attention_fixture.h"
#include "worker/device/cpu/memory.h"

namespace kvern {
namespace {

using testing::HasSubstr;

std::span<const std::byte> AsBytes(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

std::unique_ptr<Matrix> F32Matrix(Device& device, WeightFormat format,
                                  const std::vector<float>& dense, int64_t rows, int64_t cols) {
  auto matrix = device.NewMatrix(format, rows, cols);
  KVERN_CHECK(matrix.ok());
  KVERN_CHECK((*matrix)->SetRows(0, rows, FileDtype::kF32, AsBytes(dense)).ok());
  return std::move(matrix).value();
}

TEST(CpuDeviceTest, NamesWhatIsWrongWithTheConfiguration) {
  EXPECT_THAT(NewCpuDevice({.threads = 0}).status().message(), HasSubstr("threads: 0"));
  EXPECT_THAT(NewCpuDevice({.threads = 5000}).status().message(), HasSubstr("threads: 5000"));
  EXPECT_THAT(NewCpuDevice({.threads = 1, .isa = "sse"}).status().message(), HasSubstr("'sse'"));
  EXPECT_EQ(MakeCpuDevice(2, "plain")->description(), "plain, 2 threads");
  EXPECT_EQ(MakeCpuDevice(1, "plain")->name(), "cpu");
}

TEST(MemoryArenaTest, PiecesAreZeroAlignedApartAndOutliveTheArena) {
  // Some share a mapping, some begin the next one, the last has its own.
  constexpr size_t kSizes[] = {1,
                               100,
                               size_t{15} << 20,
                               size_t{14} << 20,
                               size_t{13} << 20,
                               size_t{12} << 20,
                               size_t{16} << 20,
                               64,
                               size_t{40} << 20};
  std::vector<AlignedMemory> pieces;
  {
    MemoryArena arena;
    for (size_t bytes : kSizes) pieces.push_back(arena.Allocate(bytes).value());
    EXPECT_THAT(arena.Allocate(size_t{1} << 62).status().message(), HasSubstr("bytes of memory"));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].bytes(), kSizes[i]);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces[i].data()) % 64, 0u);
    EXPECT_EQ(pieces[i].data()[0], 0);
    EXPECT_EQ(pieces[i].data()[kSizes[i] - 1], 0);
    std::memset(pieces[i].data(), static_cast<int>(i + 1), kSizes[i]);
  }
  pieces.erase(pieces.begin());  // Its neighbours stay.
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].data()[0], static_cast<char>(i + 2));
    EXPECT_EQ(pieces[i].data()[pieces[i].bytes() - 1], static_cast<char>(i + 2));
  }
}

TEST(CpuDeviceTest, MemoryIsZeroAlignedAndRefusedByName) {
  const auto device = MakeCpuDevice(2);
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{4097}, size_t{5} << 20}) {
    auto buffer = device->Allocate(bytes);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ((*buffer)->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*buffer)->data()) % 64, 0u);
    const char* data = static_cast<const char*>((*buffer)->data());
    EXPECT_TRUE(std::all_of(data, data + bytes, [](char c) { return c == 0; }));
  }
  for (size_t bytes : {size_t{1} << 60, std::numeric_limits<size_t>::max()}) {
    const absl::Status status = device->Allocate(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(bytes)));
  }
  const absl::Status cache =
      device->NewKvCache({int64_t{1} << 40, 30, 3, 64, DType::kBf16}).status();
  EXPECT_EQ(cache.code(), absl::StatusCode::kResourceExhausted);
  // Address space for this there is; memory there is not: 64 TiB.
  absl::Status promised = device->NewKvCache({int64_t{1} << 24, 32, 32, 64, DType::kBf16}).status();
  EXPECT_EQ(promised.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(promised.message()),
      testing::ContainsRegex("16777216 blocks is 64.0 TiB; of the memory .* are available"));
  EXPECT_EQ(device->NewKvCache({1, 1, 1, 63, DType::kBf16}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CpuDeviceTest, MatrixRefusesWhatItCannotKeep) {
  const auto device = MakeCpuDevice(1);
  EXPECT_FALSE(device->NewMatrix(WeightFormat::kInt8, 4, 33).ok());
  EXPECT_FALSE(device->NewMatrix(WeightFormat::kF32, 0, 32).ok());
  EXPECT_EQ(
      device->NewMatrix(WeightFormat::kF32, int64_t{1} << 35, int64_t{1} << 35).status().code(),
      absl::StatusCode::kResourceExhausted);
  auto int8 = device->NewMatrix(WeightFormat::kInt8, 4, 32);
  ASSERT_TRUE(int8.ok());
  const absl::Status status = (*int8)->SetRow(0, FileDtype::kF32, AsBytes(std::vector<float>(32)));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("int8"));
}

TEST(CpuDeviceTest, MatMulIsTheSameForAnyNumberOfThreads) {
  Rng rng(1);
  constexpr int64_t kRows = 203;
  constexpr int64_t kCols = 190;
  const std::vector<float> dense = RandomFloats(rng, kRows * kCols);
  // Threads share out the rows of the last, in several blocks.
  for (int64_t m : {1, 5, 40, 750}) {
    std::vector<float> x = RandomFloats(rng, static_cast<size_t>(m * kCols));
    const auto want = reference::MatMul(x, dense, {}, static_cast<size_t>(m), kRows, kCols);
    for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
      const double tolerance = format == WeightFormat::kF32 ? 1e-4 : 0.2;
      std::vector<uint32_t> first;
      for (int threads : {1, 2, 3}) {
        const auto device = MakeCpuDevice(threads);
        const auto w = F32Matrix(*device, format, dense, kRows, kCols);
        std::vector<float> out(static_cast<size_t>(m * kRows));
        device->ops().MatMul(View(x, m, kCols), *w, nullptr, View(out, m, kRows));
        for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], want[i], tolerance);
        if (threads == 1) first = Bits(out);
        EXPECT_EQ(Bits(out), first) << threads << " threads";
      }
    }
  }
}

TEST(CpuDeviceTest, MatMulWritesColumnsOfAWiderTensor) {
  Rng rng(2);
  const std::vector<float> dense = RandomFloats(rng, 20 * 8);
  const auto device = MakeCpuDevice(1);
  const auto w = F32Matrix(*device, WeightFormat::kF32, dense, 20, 8);
  std::vector<float> x = RandomFloats(rng, 3 * 10);
  std::vector<float> out(3 * 50, 9.0f);
  device->ops().MatMul(View(x, 3, 10).Columns(1, 8), *w, nullptr, View(out, 3, 50).Columns(7, 20));
  for (size_t r = 0; r < 3; ++r) {
    for (size_t c = 0; c < 50; ++c) {
      double want = 9;
      if (c >= 7 && c < 27) {
        want = 0;
        for (size_t k = 0; k < 8; ++k) {
          want +=
              static_cast<double>(x[r * 10 + 1 + k]) * static_cast<double>(dense[(c - 7) * 8 + k]);
        }
      }
      ASSERT_NEAR(out[r * 50 + c], want, 1e-5);
    }
  }
}

TEST(CpuDeviceTest, EmbedGivesZerosOutsideTheShard) {
  Rng rng(3);
  const std::vector<float> dense = RandomFloats(rng, 10 * 6);
  const auto device = MakeCpuDevice(2);
  const auto table = F32Matrix(*device, WeightFormat::kF32, dense, 10, 6);
  BatchLayout layout;
  layout.token_ids = {105, 99, 100, 109, 110, 4000000000u};
  const auto batch = *device->NewBatch({1, 1, 1, 1, 1, 2});
  ASSERT_TRUE(batch->Load(layout, 0).ok());
  std::vector<float> out(6 * 6, 5.0f);
  device->ops().Embed(*batch, *table, 100, View(out, 6, 6));
  const int rows[] = {5, -1, 0, 9, -1, -1};
  for (size_t t = 0; t < 6; ++t) {
    for (size_t c = 0; c < 6; ++c) {
      EXPECT_EQ(out[t * 6 + c], rows[t] < 0 ? 0 : dense[static_cast<size_t>(rows[t]) * 6 + c]);
    }
  }
}

TEST(CpuDeviceTest, RopeTurnsQueriesAndKeysAndStoresKeysAndValues) {
  Rng rng(4);
  constexpr int64_t kDim = 6;
  const KvCacheShape shape{4, 2, 2, kDim, DType::kF32};
  const auto device = MakeCpuDevice(1);
  auto cache = device->NewKvCache(shape);
  ASSERT_TRUE(cache.ok());
  const std::vector<uint32_t> table = {2, 1};
  BatchLayout layout;
  layout.sequences.push_back({0, 15, 2, table});  // Crosses from one block to the next.
  layout.token_ids = {0, 0};
  layout.positions = {15, 16};
  const auto batch = *device->NewBatch({1, 1, 1, 1, 1, 2});
  ASSERT_TRUE(batch->Load(layout, 0).ok());
  std::vector<float> cos;
  std::vector<float> sin;
  for (int position = 0; position < 17; ++position) {
    for (int i = 0; i < 3; ++i) {
      cos.push_back(std::cos(static_cast<float>(position * (i + 1))));
      sin.push_back(std::sin(static_cast<float>(position * (i + 1))));
    }
  }
  // Three query heads, two key heads, two value heads.
  const std::vector<float> before = RandomFloats(rng, 2 * 7 * kDim);
  std::vector<float> qkv = before;
  const Tensor view = View(qkv, 2, 7 * kDim);
  device->ops().RopeAndStoreKv(view, {cos.data(), sin.data()}, *batch, 1, **cache,
                               view.Columns(0, 3 * kDim));
  const float* data = static_cast<const float*>((*cache)->data());
  for (int64_t t = 0; t < 2; ++t) {
    const auto c = cos.begin() + (15 + t) * 3;
    const auto s = sin.begin() + (15 + t) * 3;
    for (int64_t head = 0; head < 7; ++head) {
      const auto in = before.begin() + (t * 7 + head) * kDim;
      std::vector<double> want(in, in + kDim);
      if (head < 5) want = reference::Rope(want, {c, c + 3}, {s, s + 3});
      for (int64_t d = 0; d < kDim; ++d) {
        const float got = qkv[static_cast<size_t>((t * 7 + head) * kDim + d)];
        ASSERT_NEAR(got, want[static_cast<size_t>(d)], 1e-6);
        if (head < 3) continue;
        // [block][layer][K|V][kv_head][token][head_dim]
        const int64_t block = t == 0 ? 2 : 1;
        const int64_t token = t == 0 ? 15 : 0;
        const int64_t kind = (head - 3) / 2;
        const int64_t at =
            ((((block * 2 + 1) * 2 + kind) * 2 + (head - 3) % 2) * 16 + token) * kDim;
        ASSERT_EQ(data[at + d], got) << "head " << head;
      }
    }
  }
}

TEST(CpuDeviceTest, CopyBlocksCopiesAllLayers) {
  const auto device = MakeCpuDevice(1);
  const KvCacheShape shape{5, 3, 2, 4, DType::kBf16};
  auto cache = device->NewKvCache(shape);
  ASSERT_TRUE(cache.ok());
  auto* data = static_cast<uint8_t*>((*cache)->data());
  const size_t block = shape.BlockBytes();
  for (size_t i = 0; i < 5 * block; ++i) data[i] = static_cast<uint8_t>(i / block * 10 + i % 7);
  const std::vector<uint8_t> before(data, data + 5 * block);
  const std::pair<uint32_t, uint32_t> pairs[] = {{0, 3}, {4, 1}, {2, 2}};
  device->ops().CopyBlocks(pairs, **cache);
  const size_t sources[] = {0, 4, 2, 0, 4};
  for (size_t b = 0; b < 5; ++b) {
    EXPECT_EQ(std::memcmp(data + b * block, before.data() + sources[b] * block, block), 0) << b;
  }
}

TEST(CpuDeviceTest, RowOperationsWorkOnManyRowsAndThreads) {
  Rng rng(5);
  constexpr int64_t kRows = 70;
  constexpr int64_t kCols = 1000;
  const std::vector<float> start = RandomFloats(rng, kRows * kCols);
  const std::vector<float> weight = RandomFloats(rng, kCols);
  std::vector<uint32_t> first[3];
  for (int threads : {1, 2, 3}) {
    const auto device = MakeCpuDevice(threads);
    std::vector<float> x = start;
    std::vector<float> delta(start.rbegin(), start.rend());
    std::vector<float> norm(x.size());
    std::vector<float> glu(x.size() / 2);
    const Tensor x_view = View(x, kRows, kCols);
    device->ops().RmsNorm(x_view, weight.data(), 1e-5f, View(norm, kRows, kCols));
    device->ops().SwiGlu(x_view, View(glu, kRows, kCols / 2));
    device->ops().AddRmsNorm(View(delta, kRows, kCols), x_view, weight.data(), 1e-5f,
                             View(delta, kRows, kCols));
    const std::vector<float>* results[] = {&norm, &glu, &delta};
    for (size_t i = 0; i < 3; ++i) {
      if (threads == 1) first[i] = Bits(*results[i]);
      EXPECT_EQ(Bits(*results[i]), first[i]);
    }
    EXPECT_NEAR(x[3], start[3] + start[start.size() - 4], 1e-6);
  }
}

TEST(CpuDeviceTest, GatherTakesTheWantedRows) {
  const auto device = MakeCpuDevice(1);
  BatchLayout layout;
  layout.logit_rows = {1, 3};
  const auto batch = *device->NewBatch({1, 1, 1, 1, 1, 2});
  ASSERT_TRUE(batch->Load(layout, 0).ok());
  std::vector<float> x = {0, 1, 10, 11, 20, 21, 30, 31};
  std::vector<float> out(4);
  device->ops().GatherLogitRows(*batch, View(x, 4, 2), View(out, 2, 2));
  EXPECT_THAT(out, testing::ElementsAre(10, 11, 30, 31));
}

TEST(CpuDeviceTest, SamplingIsTheSameForAnyNumberOfThreads) {
  Rng rng(6);
  std::vector<float> logits = RandomFloats(rng, 3 * 5000, 8);
  const std::vector<float> row(logits.begin() + 5000, logits.begin() + 10000);
  const auto one = MakeCpuDevice(1);
  for (int threads : {2, 3, 5}) {
    const auto device = MakeCpuDevice(threads);
    const Tensor view = View(logits, 3, 5000);
    using Kind = LogitQuery::Kind;
    std::vector<LogitAnswer> answers;
    std::vector<LogitAnswer> same;
    std::vector<LogitQuery> queries = {
        {.row = 1, .k = 40}, {.kind = Kind::kLogSumExp, .row = 1, .inverse_temperature = 0.7f}};
    for (uint64_t key = 0; key < 30; ++key) {
      queries.push_back(
          {.kind = Kind::kGumbelMax, .row = 1, .inverse_temperature = 0.7f, .key = key});
    }
    device->ops().AskLogits(view, 300, queries, answers);
    one->ops().AskLogits(view, 300, queries, same);
    const std::vector<Candidate>& top = answers[0].candidates;
    const std::vector<uint32_t> want = reference::Top(row, 40);
    ASSERT_EQ(top.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(top[i].index, want[i]);
    EXPECT_EQ(answers[1].sum.max, top[0].value);
    EXPECT_EQ(answers[1].sum.sum, same[1].sum.sum);
    for (size_t i = 2; i < queries.size(); ++i) {
      EXPECT_EQ(answers[i].candidates[0].index, same[i].candidates[0].index);
      EXPECT_EQ(answers[i].candidates[0].value, same[i].candidates[0].value);
    }
  }
}

}  // namespace
}  // namespace kvern
