// A GPU as a device, emulated: memory, weights, recorded steps, and faults.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/simt/runtime/enqueue.h"
#include "worker/comm/nccl/gpu_backend.h"
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
  EXPECT_EQ(missing.status().message(), "no usable GPU: no CUDA-capable device is detected");
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
  EXPECT_NE(cache.status().message().find("are free"), absl::string_view::npos);
  EXPECT_TRUE(device->Synchronize().ok());  // nothing broke
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
  EXPECT_EQ(before->free_bytes - after->free_bytes, kPieces * kBytes);
  EXPECT_EQ(before->total_bytes, after->total_bytes);
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
