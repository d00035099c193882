#include "worker/model/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "tests/schemas/files/sized_model.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/device/ops.h"
#include "worker/model/matrix_loader.h"

namespace kvern {
namespace {

constexpr char kGguf[] = "tests/golden/tiny/llama_gqa_gguf/tiny-";
constexpr char kNineHeads[] = "tests/golden/tiny/llama_9h_3kv";

std::unique_ptr<Device> NewDevice() {
  auto device = NewCpuDevice({.threads = 2});
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

std::unique_ptr<ModelWeights> Load(const std::string& path, WeightChoice choice, int rank,
                                   int world, Device& device) {
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  if (!checkpoint.ok()) return nullptr;
  auto weights = LoadWeights(**checkpoint, choice, rank, world, 64, device);
  EXPECT_TRUE(weights.ok()) << weights.status();
  return weights.ok() ? *std::move(weights) : nullptr;
}

// The matrix's values, by multiplying the unit vectors: [rows][cols].
std::vector<std::vector<float>> ValuesOf(const Matrix& matrix, Device& device) {
  int64_t rows = matrix.rows();
  int64_t cols = matrix.cols();
  std::vector<float> unit(static_cast<size_t>(cols * cols));
  for (int64_t k = 0; k < cols; ++k) unit[static_cast<size_t>(k * cols + k)] = 1;
  std::vector<float> out(static_cast<size_t>(cols * rows));
  device.ops().MatMul({unit.data(), DType::kF32, cols, cols, cols}, matrix, nullptr,
                      {out.data(), DType::kF32, cols, rows, rows});
  std::vector<std::vector<float>> values(static_cast<size_t>(rows));
  for (size_t r = 0; r < values.size(); ++r) {
    for (int64_t k = 0; k < cols; ++k) {
      values[r].push_back(out[static_cast<size_t>(k * rows) + r]);
    }
  }
  return values;
}

// Side by side, as columns of one matrix.
std::vector<std::vector<float>> Beside(std::vector<std::vector<float>> left,
                                       const std::vector<std::vector<float>>& right) {
  for (size_t r = 0; r < left.size(); ++r) {
    left[r].insert(left[r].end(), right[r].begin(), right[r].end());
  }
  return left;
}

TEST(WeightsTest, ShardsTogetherAreTheWholeMatrix) {
  auto device = NewDevice();
  for (const char* type : {"f32", "bf16", "q8_0", "q4_0", "q4_1"}) {
    std::string path = std::string(kGguf) + type + ".gguf";
    auto whole = Load(path, WeightChoice::kAuto, 0, 1, *device);
    auto first = Load(path, WeightChoice::kAuto, 0, 2, *device);
    auto second = Load(path, WeightChoice::kAuto, 1, 2, *device);
    ASSERT_TRUE(whole && first && second);
    for (size_t layer = 0; layer < whole->layers.size(); ++layer) {
      const LayerWeights& w = whole->layers[layer];
      const LayerWeights& a = first->layers[layer];
      const LayerWeights& b = second->layers[layer];
      EXPECT_EQ(ValuesOf(*w.down, *device),
                Beside(ValuesOf(*a.down, *device), ValuesOf(*b.down, *device)));
      EXPECT_EQ(ValuesOf(*w.out, *device),
                Beside(ValuesOf(*a.out, *device), ValuesOf(*b.out, *device)));
      // Rows of q, k and v of both ranks, in the order of the whole.
      auto all = ValuesOf(*w.qkv, *device);
      auto qkv_a = ValuesOf(*a.qkv, *device);
      auto qkv_b = ValuesOf(*b.qkv, *device);
      size_t q = qkv_a.size() * 4 / 6;  // 4 query heads, then 1 key and 1 value head
      size_t kv = qkv_a.size() / 6;
      ASSERT_EQ(all.size(), qkv_a.size() + qkv_b.size());
      for (size_t r = 0; r < q; ++r) {
        EXPECT_EQ(all[r], qkv_a[r]);
        EXPECT_EQ(all[q + r], qkv_b[r]);
      }
      for (size_t r = 0; r < 2 * kv; ++r) {
        size_t row = 2 * q + (r < kv ? r : kv + r);
        EXPECT_EQ(all[row], qkv_a[q + r]);
        EXPECT_EQ(all[row + kv], qkv_b[q + r]);
      }
    }
  }
}

TEST(WeightsTest, FormatsFollowTheChoice) {
  auto device = NewDevice();
  struct Row {
    const char* type;
    WeightChoice choice;
    WeightFormat layers;
    WeightFormat output;
  };
  const Row rows[] = {
      {"f16", WeightChoice::kAuto, WeightFormat::kF32, WeightFormat::kF32},
      {"bf16", WeightChoice::kAuto, WeightFormat::kBf16, WeightFormat::kBf16},
      {"q8_0", WeightChoice::kAuto, WeightFormat::kInt8, WeightFormat::kInt8},
      {"q4_0", WeightChoice::kAuto, WeightFormat::kInt4, WeightFormat::kInt4},
      {"q4_1", WeightChoice::kF32, WeightFormat::kF32, WeightFormat::kF32},
      {"q4_1", WeightChoice::kBf16, WeightFormat::kBf16, WeightFormat::kBf16},
      {"f32", WeightChoice::kInt8, WeightFormat::kInt8, WeightFormat::kInt8},
      {"bf16", WeightChoice::kInt4, WeightFormat::kInt4, WeightFormat::kInt8},
      {"q4_1", WeightChoice::kInt4, WeightFormat::kInt4, WeightFormat::kInt4},
  };
  for (const Row& row : rows) {
    auto weights = Load(std::string(kGguf) + row.type + ".gguf", row.choice, 0, 1, *device);
    ASSERT_NE(weights, nullptr);
    EXPECT_EQ(weights->layers[0].qkv->format(), row.layers) << row.type;
    EXPECT_EQ(weights->layers[0].down->format(), row.layers) << row.type;
    EXPECT_EQ(weights->output_matrix().format(), row.output) << row.type;
    EXPECT_GT(weights->bytes(), 0u);
  }
}

TEST(WeightsTest, QuantisingAtLoadKeepsTheErrorOfItsStep) {
  auto device = NewDevice();
  std::string path = std::string(kGguf) + "f32.gguf";
  auto exact = Load(path, WeightChoice::kAuto, 0, 1, *device);
  auto int8 = Load(path, WeightChoice::kInt8, 0, 1, *device);
  auto int4 = Load(path, WeightChoice::kInt4, 0, 1, *device);
  ASSERT_TRUE(exact && int8 && int4);
  auto reference = ValuesOf(*exact->layers[0].down, *device);
  auto eight = ValuesOf(*int8->layers[0].down, *device);
  auto four = ValuesOf(*int4->layers[0].down, *device);
  for (size_t r = 0; r < reference.size(); ++r) {
    float largest = 0;
    for (float value : reference[r]) largest = std::max(largest, std::fabs(value));
    for (size_t k = 0; k < reference[r].size(); ++k) {
      EXPECT_LE(std::fabs(eight[r][k] - reference[r][k]), largest / 127);
      EXPECT_LE(std::fabs(four[r][k] - reference[r][k]), 2 * largest / 15);
    }
  }
}

TEST(WeightsTest, CutsInsideAGroupStayFloat32) {
  auto device = NewDevice();
  // Three heads of 16 columns per rank: 48 is no multiple of 32.
  auto weights = Load(kNineHeads, WeightChoice::kInt8, 1, 3, *device);
  ASSERT_NE(weights, nullptr);
  EXPECT_EQ(weights->layers[0].out->format(), WeightFormat::kF32);
  EXPECT_EQ(weights->layers[0].down->format(), WeightFormat::kInt8);
}

// 3 KV heads over 2 ranks: what the device keeps of layers and tables evens out, in whichever
// formats they are; one vocabulary row is the grain.
TEST(WeightsTest, BytesEvenOutWhereFormatsDiffer) {
  auto device = NewDevice();
  const ModelSizes sizes{
      .heads = 6, .kv_heads = 3, .hidden = 256, .intermediate = 1024, .vocab = 4096, .layers = 4};
  auto checkpoint = OpenGguf(SizedGguf(sizes));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  // int4 layers under int8 tables, and one format.
  for (WeightChoice choice : {WeightChoice::kInt4, WeightChoice::kF32}) {
    size_t bytes[2] = {};
    for (int rank : {0, 1}) {
      auto weights = LoadWeights(**checkpoint, choice, rank, 2, 64, *device);
      ASSERT_TRUE(weights.ok()) << weights.status();
      bytes[rank] = (*weights)->bytes();
    }
    const size_t row = (*checkpoint)->config().hidden_size * sizeof(float);
    const size_t panels = 16 * row;  // rows are padded to whole panels
    EXPECT_NEAR(static_cast<double>(bytes[0]), static_cast<double>(bytes[1]),
                static_cast<double>(panels));
  }
}

// Counts what is read of the files of a folder in memory.
class CountingSource final : public ByteSource {
 public:
  CountingSource(std::shared_ptr<const ByteSource> source, std::atomic<uint64_t>& bytes)
      : ByteSource(source->name(), source->size()), source_(std::move(source)), bytes_(bytes) {}

 private:
  absl::Status DoRead(uint64_t offset, std::span<std::byte> out) const override {
    bytes_ += out.size();
    return source_->ReadAt(offset, out);
  }

  std::shared_ptr<const ByteSource> source_;
  std::atomic<uint64_t>& bytes_;
};

TEST(WeightsTest, ARankReadsItsRowsAndItsPartOfLongRows) {
  auto device = NewDevice();
  // A row of down_proj is 32 KiB: half of it is read alone. One of o_proj is 512 bytes: it is read
  // whole, as the system would read its page anyway.
  const ModelSizes sizes{.heads = 8, .kv_heads = 2, .intermediate = 8192, .vocab = 64};
  const ModelFolder files = SizedFolder(sizes).Folder();
  std::atomic<uint64_t> read = 0;
  const ModelFolder counted = {
      files.name,
      [&](const std::string& file) -> absl::StatusOr<std::shared_ptr<const ByteSource>> {
        KVERN_ASSIGN_OR_RETURN(auto source, files.open(file));
        return std::make_shared<CountingSource>(std::move(source), read);
      }};
  auto checkpoint = Checkpoint::FromFolder(counted);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (int rank : {0, 1}) {
    read = 0;
    auto weights = LoadWeights(**checkpoint, WeightChoice::kAuto, rank, 2, 64, *device);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const RankShard& shard = (*weights)->shard;
    const uint64_t dim = sizes.head_dim;
    const uint64_t hidden = sizes.hidden;
    const uint64_t rows = (shard.q_heads.size() + 2 * shard.kv_heads.size()) * dim +
                          2 * shard.intermediate.size() + shard.vocab.size();
    const uint64_t norms = 3 * hidden;
    const uint64_t out = hidden * sizes.heads * dim;
    const uint64_t down = hidden * shard.intermediate.size();
    EXPECT_EQ(read, (rows * hidden + norms + out + down) * sizeof(float));
    EXPECT_LT(shard.intermediate.size(), sizes.intermediate);
  }
}

TEST(WeightsTest, TiedModelsKeepOneTable) {
  auto device = NewDevice();
  auto tied = Load(kNineHeads, WeightChoice::kAuto, 0, 2, *device);
  ASSERT_NE(tied, nullptr);
  EXPECT_EQ(tied->output, nullptr);
  EXPECT_EQ(&tied->output_matrix(), tied->embedding.get());
  EXPECT_EQ(tied->embedding->rows(), static_cast<int64_t>(tied->shard.vocab.size()));
}

TEST(WeightsTest, RefusesWhatTheModelDoesNotAllow) {
  auto device = NewDevice();
  auto checkpoint = Checkpoint::Open(kNineHeads);
  ASSERT_TRUE(checkpoint.ok());
  auto load = [&](int world, uint32_t max_seq_len) {
    return LoadWeights(**checkpoint, WeightChoice::kAuto, 0, world, max_seq_len, *device).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(load(1, 0)));
  EXPECT_NE(load(1, 513).message().find("max_seq_len 513"), absl::string_view::npos);
  EXPECT_TRUE(absl::IsInvalidArgument(load(4, 64)));
}

}  // namespace
}  // namespace kvern
