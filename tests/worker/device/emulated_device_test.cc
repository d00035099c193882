// A GPU as a device, emulated: memory, weights, recorded steps, and faults.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/simt/runtime/enqueue.h"
#include "worker/comm/nccl/gpu_backend.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/cuda_matrix.h"
#include "worker/device/ops.h"

namespace kvern {
namespace {

std::unique_ptr<Device> Open() {
  auto device = EmulatedBackend().NewDevice({.index = 0, .host_threads = 2});
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

// An environment variable while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

float F32(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

TEST(EmulatedDevice, SaysWhatItIs) {
  auto device = Open();
  EXPECT_EQ(device->name(), "emulated");
  EXPECT_EQ(device->activation_dtype(), DType::kBf16);
  EXPECT_FALSE(device->host_memory());
  auto beyond = EmulatedBackend().NewDevice({.index = 8});
  EXPECT_EQ(beyond.status().message(), "GPU 8, this machine has 8");
  const Variable none("KVERN_EMULATED_DEVICES", "0");
  auto missing = EmulatedBackend().NewDevice({});
  EXPECT_TRUE(absl::IsFailedPrecondition(missing.status()));
  EXPECT_EQ(missing.status().message(),
            "no usable GPU on this machine (CUDA: no CUDA-capable device is detected)");
}

TEST(EmulatedDevice, TellsAMissingDriverFromAMissingGpu) {
  EXPECT_EQ(CudaContext::NoGpu(cudaErrorInsufficientDriver).message(),
            "no NVIDIA driver, or too old a one, on this machine (CUDA: CUDA driver version is "
            "insufficient for CUDA runtime version)");
  EXPECT_EQ(CudaContext::NoGpu(cudaErrorNoDevice).message(),
            "no usable GPU on this machine (CUDA: no CUDA-capable device is detected)");
}

TEST(EmulatedDevice, AMachineThatIsNotDescribedByNumbersIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* variable : {"KVERN_EMULATED_DEVICES", "KVERN_EMULATED_MEMORY"}) {
    for (const char* text : {"junk", "8GiB", "-1", "99999999999999999999"}) {
      EXPECT_EXIT(
          {
            const Variable wrong(variable, text);
            (void)(*EmulatedBackend().NewDevice({}))->Allocate(1);
          },
          testing::ExitedWithCode(2),
          std::string(variable) + " is '" + text + "', allowed: a whole number")
          << text;
    }
  }
}

TEST(EmulatedDevice, BuffersAreZeroAndMemoryRunsOut) {
  auto device = Open();
  auto buffer = device->Allocate(1000);
  ASSERT_TRUE(buffer.ok());
  std::vector<char> content(1000, 'x');
  ASSERT_TRUE(device->CopyToHost(content.data(), (*buffer)->data(), 1000).ok());
  EXPECT_EQ(content, std::vector<char>(1000, 0));

  const Variable small("KVERN_EMULATED_MEMORY", "100000000");
  KvCacheShape shape;
  shape.num_blocks = 100000;
  shape.num_layers = 2;
  shape.kv_heads = 2;
  shape.head_dim = 64;
  auto cache = device->NewKvCache(shape);
  EXPECT_TRUE(absl::IsResourceExhausted(cache.status())) << cache.status();
  EXPECT_NE(cache.status().message().find("KV cache of 100000 blocks is 1.5 GiB; "),
            absl::string_view::npos)
      << cache.status();
  EXPECT_NE(cache.status().message().find("'s 95.4 MiB are free beside"), absl::string_view::npos);
  EXPECT_TRUE(absl::IsResourceExhausted(device->Allocate(size_t{200} << 20).status()));
  EXPECT_TRUE(device->Synchronize().ok());  // nothing broke
  EXPECT_TRUE(device->Allocate(1000).ok());
}

TEST(EmulatedDevice, ALayoutIsOneAllocationOfWhatItsPiecesSay) {
  auto device = Open();
  const simt::MallocTotals before = simt::MallocsOf(0);
  auto free_before = device->OwnMemory();
  device->BeginLayout();
  auto odd = device->Allocate(1001);
  auto matrix = device->NewMatrix(WeightFormat::kF32, 3, 8);
  auto batch = device->NewBatch({4, 4, 16, 2, 1, 16});
  auto free_before_kv = device->OwnMemory();
  auto cache = device->NewKvCache({5, 2, 1, 16, DType::kBf16});
  ASSERT_TRUE(odd.ok() && matrix.ok() && batch.ok() && free_before_kv.ok() && cache.ok());
  EXPECT_EQ(simt::MallocsOf(0).calls, before.calls);
  auto free_laid_out = device->OwnMemory();
  ASSERT_TRUE(device->Commit().ok());
  auto free_after = device->OwnMemory();
  ASSERT_TRUE(free_before.ok() && free_laid_out.ok() && free_after.ok());

  const size_t blocks = free_before_kv->free_bytes - free_laid_out->free_bytes;
  EXPECT_EQ(blocks, 5 * (*cache)->shape().BlockBytes() + kGuardBytes);
  const size_t pieces = (*odd)->bytes() + (*matrix)->bytes() + (*batch)->bytes() + blocks;
  EXPECT_EQ(simt::MallocsOf(0).calls, before.calls + 1);
  EXPECT_EQ(simt::MallocsOf(0).bytes - before.bytes, pieces + device->own_bytes());
  EXPECT_EQ(free_before->free_bytes - free_laid_out->free_bytes, pieces);
  EXPECT_EQ(free_after->free_bytes, free_laid_out->free_bytes);

  std::vector<char> content(1001, 'x');
  ASSERT_TRUE(device->CopyToHost(content.data(), (*odd)->data(), 1001).ok());
  EXPECT_EQ(content, std::vector<char>(1001, 0));
}

TEST(EmulatedDevice, ALayoutThatDoesNotFitIsLost) {
  auto device = Open();
  device->BeginLayout();
  const Variable small("KVERN_EMULATED_MEMORY", "100000000");
  auto large = device->Allocate(size_t{200} << 20);
  ASSERT_TRUE(large.ok()) << large.status();
  // Nothing is left beside what is laid out.
  EXPECT_TRUE(absl::IsResourceExhausted(device->NewKvCache({1, 1, 1, 16, DType::kBf16}).status()));
  const absl::Status committed = device->Commit();
  EXPECT_TRUE(absl::IsResourceExhausted(committed));
  EXPECT_NE(committed.message().find("of 100000000 are free"), absl::string_view::npos)
      << committed;
}

// A matrix of 20 MiB takes 20 MiB, not a chunk of 32 of which the rest is lost.
TEST(EmulatedDevice, LargePiecesLieCloseTogether) {
  auto device = Open();
  auto before = device->OwnMemory();
  ASSERT_TRUE(before.ok()) << before.status();
  constexpr size_t kPieces = 4;
  constexpr size_t kBytes = 20 << 20;
  std::vector<std::unique_ptr<Buffer>> pieces;
  for (size_t i = 0; i < kPieces; ++i) {
    auto piece = device->Allocate(kBytes);
    ASSERT_TRUE(piece.ok()) << piece.status();
    pieces.push_back(*std::move(piece));
  }
  auto after = device->OwnMemory();
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(before->free_bytes - after->free_bytes, kPieces * (kBytes + kGuardBytes));
  EXPECT_EQ(before->total_bytes, after->total_bytes);
}

// Two pieces side by side in one allocation, both of a size that needs no padding, and a matrix.
class EmulatedOverruns : public testing::Test {
 protected:
  static constexpr size_t kFloats = 128;
  static constexpr int64_t kRows = 16;
  static constexpr int64_t kColumns = 8;

  void SetUp() override {
    if (kGuardBytes == 0) GTEST_SKIP() << "only AddressSanitizer sees them";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    device_ = Open();
    device_->BeginLayout();
    auto first = device_->Allocate(kFloats * sizeof(float));
    auto second = device_->Allocate(3 * kFloats * sizeof(float));
    auto matrix = device_->NewMatrix(WeightFormat::kBf16, kRows, kColumns);
    ASSERT_TRUE(first.ok() && second.ok() && matrix.ok() && device_->Commit().ok());
    first_ = *std::move(first);
    second_ = *std::move(second);
    matrix_ = *std::move(matrix);
  }

  // Reads `count` floats, writes as many halves of them, and waits.
  void Round(Buffer& in, Buffer& out, size_t count) {
    const gpu::ToBf16Args args = {static_cast<const float*>(in.data()),
                                  static_cast<gpu::Bf16*>(out.data()), static_cast<int64_t>(count)};
    EXPECT_EQ(gpu::LaunchToBf16(args, static_cast<CudaDevice&>(*device_).context().stream()),
              cudaSuccess);
    EXPECT_TRUE(device_->Synchronize().ok());
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Buffer> first_;
  std::unique_ptr<Buffer> second_;
  std::unique_ptr<Matrix> matrix_;
};

constexpr char kOverrun[] = "AddressSanitizer: use-after-poison";

TEST_F(EmulatedOverruns, OfAKernelByOneElementAreSeen) {
  Round(*first_, *second_, kFloats);
  Round(*second_, *first_, 2 * kFloats);
  EXPECT_DEATH(Round(*first_, *second_, kFloats + 1), kOverrun);      // reads one too many
  EXPECT_DEATH(Round(*second_, *first_, 2 * kFloats + 1), kOverrun);  // and writes one
}

TEST_F(EmulatedOverruns, OfACopyByOneByteAreSeen) {
  std::vector<char> host(kFloats * sizeof(float) + 1);
  const auto write = [&](size_t bytes) {
    EXPECT_TRUE(device_->CopyToDevice(first_->data(), host.data(), bytes).ok());
    EXPECT_TRUE(device_->Synchronize().ok());  // the copy may be under way still
  };
  write(host.size() - 1);
  EXPECT_DEATH(write(host.size()), kOverrun);
  EXPECT_DEATH((void)device_->CopyToHost(host.data(), first_->data(), host.size()), kOverrun);
}

// The room for a matrix's bias is not the matrix: it is closed until there is one.
TEST_F(EmulatedOverruns, OfAMatrixIntoItsBiasAreSeen) {
  const auto& matrix = static_cast<CudaMatrix&>(*matrix_);
  std::vector<uint16_t> host(kRows * (kColumns + 1) + 1);
  const auto read = [&](int64_t values) {
    return device_->CopyToHost(host.data(), matrix.data(), static_cast<size_t>(values) * 2);
  };
  EXPECT_TRUE(read(kRows * kColumns).ok());
  EXPECT_DEATH((void)read(kRows * kColumns + 1), kOverrun);
  const auto* bias = static_cast<const float*>(first_->data());
  cudaStream_t stream = static_cast<CudaDevice&>(*device_).context().stream();
  EXPECT_TRUE(matrix.RoundedBias(bias, stream).ok());
  EXPECT_TRUE(read(kRows * (kColumns + 1)).ok());
  EXPECT_DEATH((void)read(kRows * (kColumns + 1) + 1), kOverrun);
}

TEST(EmulatedDevice, WeightsOfAllTypesAreRoundedToBf16) {
  auto device = Open();
  auto matrix = device->NewMatrix(WeightFormat::kF32, 3, 8);
  ASSERT_TRUE(matrix.ok());
  EXPECT_EQ((*matrix)->format(), WeightFormat::kBf16);
  std::vector<float> row(8, 1.00390625f);  // halfway between two bf16 values: to the even one
  row[1] = 1.01171875f;
  row[2] = -3.14159f;
  ASSERT_TRUE((*matrix)->SetRow(0, FileDtype::kF32, std::as_bytes(std::span(row))).ok());
  std::vector<uint16_t> half(8, 0x3c00);  // 1
  half[1] = 0x0001;                       // the smallest denormal, 2^-24
  half[2] = 0xfbff;                       // -65504
  ASSERT_TRUE((*matrix)->SetRow(1, FileDtype::kF16, std::as_bytes(std::span(half))).ok());
  std::vector<std::byte> quantised(34);
  EXPECT_TRUE(absl::IsInvalidArgument((*matrix)->SetRow(2, FileDtype::kQ8_0, quantised)));

  // Read back as an embedding: the table's rows as float32.
  auto batch = device->NewBatch({4, 4, 16, 2, 1, 16});
  ASSERT_TRUE(batch.ok()) << batch.status();
  BatchLayout layout;
  layout.token_ids = {0, 1};
  layout.positions = {0, 1};
  const std::vector<uint32_t> blocks = {0};
  layout.sequences = {{0, 0, 2, blocks}};
  ASSERT_TRUE((*batch)->Load(layout, 0).ok());
  auto out = device->Allocate(2 * 8 * sizeof(float));
  ASSERT_TRUE(out.ok());
  device->ops().Embed(**batch, **matrix, 0, {(*out)->data(), DType::kF32, 2, 8, 8});
  float values[16] = {};
  ASSERT_TRUE(device->CopyToHost(values, (*out)->data(), sizeof(values)).ok());
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 1.015625f);
  EXPECT_EQ(values[2], F32(0xc049));
  EXPECT_EQ(values[8], 1.0f);
  EXPECT_EQ(values[9], 5.9604645e-8f);
  EXPECT_EQ(values[10], -65536.0f);
}

TEST(EmulatedDevice, RefusesWhatItHasNoKernelFor) {
  auto device = Open();
  auto batch = device->NewBatch({4, 4, 16, 2, 1, 80});
  EXPECT_TRUE(absl::IsInvalidArgument(batch.status()));
  EXPECT_NE(batch.status().message().find("80"), absl::string_view::npos) << batch.status();
  EXPECT_TRUE(absl::IsInvalidArgument(device->NewMatrix(WeightFormat::kBf16, 4, 12).status()));
  // 65,536 tokens of sequences of a million: options may say so.
  auto tables = device->NewBatch({65536, 4, int64_t{65536} * 65536, 2, 1, 16});
  EXPECT_TRUE(absl::IsInvalidArgument(tables.status())) << tables.status();
  EXPECT_NE(tables.status().message().find("4294967296 entries"), absl::string_view::npos);
}

// Which of a device's streams, if any, works as late as it may: the first computes, the second
// copies.
class EmulatedStreams : public testing::TestWithParam<int> {
 protected:
  static std::unique_ptr<Device> OpenWithLateStream(int nth) {
    simt::MakeStreamLate(0, nth);
    return Open();
  }

  const std::unique_ptr<Device> device_ = OpenWithLateStream(GetParam());
};

// Steps of one token each: step i embeds token i, whose embedding is i + 1.
class EmulatedSteps : public EmulatedStreams {
 protected:
  static constexpr uint32_t kSteps = 7;
  static constexpr int64_t kColumns = 8;

  void SetUp() override {
    auto table = device_->NewMatrix(WeightFormat::kF32, kSteps, kColumns);
    auto batch = device_->NewBatch({4, 4, 16, 2, 1, 16});
    auto out = device_->Allocate(kSteps * kColumns * sizeof(float));
    ASSERT_TRUE(table.ok() && batch.ok() && out.ok());
    table_ = *std::move(table);
    batch_ = *std::move(batch);
    out_ = *std::move(out);
    for (uint32_t row = 0; row < kSteps; ++row) {
      const std::vector<float> values(kColumns, static_cast<float>(row + 1));
      ASSERT_TRUE(table_->SetRow(row, FileDtype::kF32, std::as_bytes(std::span(values))).ok());
    }
  }

  static BatchLayout OneToken(uint32_t id) {
    static const std::vector<uint32_t> blocks = {0};
    BatchLayout layout;
    layout.token_ids = {id};
    layout.positions = {0};
    layout.sequences = {{0, 0, 1, blocks}};
    return layout;
  }

  float* Row(uint32_t step) { return static_cast<float*>(out_->data()) + step * kColumns; }
  void Embed(uint32_t step) {
    device_->ops().Embed(*batch_, *table_, 0, {Row(step), DType::kF32, 1, kColumns, kColumns});
  }
  void ExpectAllRows() {
    std::vector<float> values(kSteps * kColumns);
    ASSERT_TRUE(device_->CopyToHost(values.data(), Row(0), values.size() * sizeof(float)).ok());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], static_cast<float>(i / kColumns + 1)) << "step " << i / kColumns;
    }
  }

  std::unique_ptr<Matrix> table_;
  std::unique_ptr<Batch> batch_;
  std::unique_ptr<Buffer> out_;
};

TEST_P(EmulatedSteps, ThatFollowEachOtherReadTheirOwnTables) {
  for (uint32_t step = 0; step < kSteps; ++step) {  // nobody waits for one
    ASSERT_TRUE(batch_->Load(OneToken(step), 0).ok());
    Embed(step);
  }
  ExpectAllRows();
}

// A step's tables are sent, and its token ids once more, while the step before has not been
// computed: a stream that works as late as it may does so only when somebody waits for it.
TEST_P(EmulatedSteps, ArePreparedWhileTheOneBeforeIsNotComputed) {
  ASSERT_TRUE(device_->Synchronize().ok());
  for (uint32_t step = 0; step < kSteps; ++step) {
    BatchLayout layout = OneToken(0);
    ASSERT_TRUE(batch_->Load(layout, 0).ok());
    layout.token_ids[0] = step;
    ASSERT_TRUE(batch_->SetTokenIds(layout).ok());
    // The memory of an emulated GPU is the host's; a late stream does not touch it meanwhile.
    if (GetParam() == 0 && step > 0) {
      EXPECT_NE(*Row(step - 1), static_cast<float>(step)) << "step " << step;
    }
    Embed(step);
  }
  ExpectAllRows();
}

TEST_P(EmulatedStreams, CopiesAreInOrderWithWhatIsComputed) {
  constexpr int64_t kColumns = 8;
  auto source = device_->Allocate(kColumns * sizeof(float));
  auto weight = device_->Allocate(kColumns * sizeof(float));
  auto target = device_->Allocate(3 * kColumns * sizeof(uint16_t));
  ASSERT_TRUE(source.ok() && weight.ok() && target.ok());
  const Tensor x = {(*source)->data(), DType::kF32, 1, kColumns, kColumns};
  auto* out = static_cast<uint16_t*>((*target)->data());
  for (int i = 0; i < 3; ++i) {  // what is normed is 1, so the result is the weight
    const std::vector<float> ones(kColumns, 1.0f);
    const std::vector<float> weights(kColumns, static_cast<float>(i + 1));
    ASSERT_TRUE(device_->CopyToDevice(x.data, ones.data(), kColumns * 4).ok());
    ASSERT_TRUE(device_->CopyToDevice((*weight)->data(), weights.data(), kColumns * 4).ok());
    device_->ops().RmsNorm(x, static_cast<const float*>((*weight)->data()), 0.0f,
                           {out + i * kColumns, DType::kBf16, 1, kColumns, kColumns});
  }
  std::vector<uint16_t> values(3 * kColumns);
  ASSERT_TRUE(device_->CopyToHost(values.data(), out, values.size() * sizeof(uint16_t)).ok());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(F32(values[i]), static_cast<float>(i / kColumns + 1));
  }
}

// More than the staging memory has slots for, with an end that fills none.
TEST_P(EmulatedStreams, LargeCopiesGoThroughInPieces) {
  constexpr size_t kValues = (6 << 20) / sizeof(uint32_t) + 5;
  std::vector<uint32_t> sent(kValues);
  for (size_t i = 0; i < kValues; ++i) sent[i] = static_cast<uint32_t>(i * 2654435761u);
  auto buffer = device_->Allocate(kValues * sizeof(uint32_t));
  ASSERT_TRUE(buffer.ok());
  ASSERT_TRUE(device_->CopyToDevice((*buffer)->data(), sent.data(), kValues * 4).ok());
  std::vector<uint32_t> received(kValues);
  ASSERT_TRUE(device_->CopyToHost(received.data(), (*buffer)->data(), kValues * 4).ok());
  EXPECT_EQ(received, sent);
}

TEST_P(EmulatedStreams, QuestionsAreAnsweredForTheLogitsOfTheirTime) {
  constexpr int64_t kColumns = 64;
  auto buffer = device_->Allocate(kColumns * sizeof(float));
  ASSERT_TRUE(buffer.ok());
  const Tensor logits = {(*buffer)->data(), DType::kF32, 1, kColumns, kColumns};
  for (uint32_t best = 0; best < 3; ++best) {
    std::vector<float> values(kColumns, 0.0f);
    values[best] = 1.0f;
    ASSERT_TRUE(device_->CopyToDevice(logits.data, values.data(), kColumns * 4).ok());
    std::vector<LogitQuery> queries(2);
    queries[1].kind = LogitQuery::Kind::kLogSumExp;
    std::vector<LogitAnswer> answers;
    device_->ops().AskLogits(logits, 0, queries, answers);
    ASSERT_EQ(answers[0].candidates.size(), 1u);
    EXPECT_EQ(answers[0].candidates[0].index, best);
    EXPECT_EQ(answers[1].sum.max, 1.0f);
  }
}

TEST_P(EmulatedStreams, BlocksAreCopiedPairByPair) {
  const KvCacheShape shape = {40, 1, 1, 16, DType::kF32};
  auto cache = device_->NewKvCache(shape);
  ASSERT_TRUE(cache.ok());
  const size_t block = shape.BlockBytes();
  auto* data = static_cast<char*>((*cache)->data());
  const std::vector<char> first(block, 'a');
  ASSERT_TRUE(device_->CopyToDevice(data, first.data(), block).ok());
  for (uint32_t i = 0; i + 1 < 40; ++i) {  // each from the one before, nobody waits
    const std::pair<uint32_t, uint32_t> pair = {i, i + 1};
    device_->ops().CopyBlocks({&pair, 1}, **cache);
  }
  std::vector<char> last(block);
  ASSERT_TRUE(device_->CopyToHost(last.data(), data + 39 * block, block).ok());
  EXPECT_EQ(last, first);
}

std::string LateStreamName(const testing::TestParamInfo<int>& late) {
  return late.param < 0 ? "AsTheyCome" : late.param == 0 ? "ComputingLate" : "CopyingLate";
}

INSTANTIATE_TEST_SUITE_P(, EmulatedStreams, testing::Values(-1, 0, 1), LateStreamName);
INSTANTIATE_TEST_SUITE_P(, EmulatedSteps, testing::Values(-1, 0, 1), LateStreamName);

TEST(EmulatedDevice, ARecordedStepRunsWhenItIsLaunched) {
  auto device = Open();
  auto source = device->Allocate(64);
  auto target = device->Allocate(64);
  ASSERT_TRUE(source.ok() && target.ok());
  const Tensor x = {(*source)->data(), DType::kF32, 1, 8, 8};
  const Tensor out = {(*target)->data(), DType::kBf16, 1, 8, 8};
  const std::vector<float> ones(8, 1.0f);
  auto weight = device->Allocate(32);
  ASSERT_TRUE(weight.ok());
  ASSERT_TRUE(device->CopyToDevice((*weight)->data(), ones.data(), 32).ok());
  auto graph = device->graph_recorder()->Record([&] {
    device->ops().RmsNorm(x, static_cast<const float*>((*weight)->data()), 0.0f, out);
    return absl::OkStatus();
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_TRUE(device->CopyToDevice((*source)->data(), ones.data(), 32).ok());
  uint16_t normed[8] = {};
  ASSERT_TRUE(device->CopyToHost(normed, (*target)->data(), sizeof(normed)).ok());
  EXPECT_EQ(F32(normed[0]), 0.0f);
  ASSERT_TRUE((*graph)->Launch().ok());
  ASSERT_TRUE(device->CopyToHost(normed, (*target)->data(), sizeof(normed)).ok());
  EXPECT_EQ(F32(normed[0]), 1.0f);
}

TEST(EmulatedDevice, WaitingInsideARecordingFailsIt) {
  auto device = Open();
  auto graph = device->graph_recorder()->Record([&] { return device->Synchronize(); });
  EXPECT_FALSE(graph.ok());
}

TEST(EmulatedDevice, ARecordingThatFailsLeavesNothing) {
  auto device = Open();
  auto recorder = device->graph_recorder();
  // The graph of the first is complete, and nobody's.
  EXPECT_EQ(recorder->Record([] { return absl::CancelledError("no"); }).status(),
            absl::CancelledError("no"));
  EXPECT_TRUE(recorder->Record([] { return absl::OkStatus(); }).ok());
  EXPECT_TRUE(device->Synchronize().ok());
}

TEST(EmulatedDevice, AFaultIsToldByEveryLaterWait) {
  auto device = Open();
  auto buffer = device->Allocate(16);
  ASSERT_TRUE(buffer.ok());
  ASSERT_TRUE(device->Synchronize().ok());
  simt::BreakDevice(0, cudaErrorIllegalAddress);
  float value = 0;
  const absl::Status first = device->CopyToHost(&value, (*buffer)->data(), 4);
  EXPECT_FALSE(first.ok());
  EXPECT_NE(first.message().find("an illegal memory access was encountered"),
            absl::string_view::npos)
      << first;
  simt::BreakDevice(0, cudaSuccess);
  EXPECT_EQ(device->Synchronize(), first);  // what was computed since is void
}

}  // namespace
}  // namespace kvern
