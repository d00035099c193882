// The roofline against values computed by hand.
#include "cluster/capacity/step_cost.h"

#include <gtest/gtest.h>

namespace kvern {
namespace {

// Round numbers: 1 GB/s is one byte per nanosecond.
DeviceCost Slow() { return {1'000'000'000, 1'000'000'000'000, 1000}; }
ModelCost Tiny() { return {100, 200, 10, 2, 4, 8}; }

TEST(StepWork, CountsTheTokensBeforeEach) {
  StepWork work;
  work.Add(0, 4);    // 0 + 1 + 2 + 3 tokens before
  work.Add(10, 1);   // a decode with 10 before it
  work.Add(100, 3);  // 100 + 101 + 102
  EXPECT_EQ(work.tokens, 8u);
  EXPECT_EQ(work.context_pairs, 6u + 10 + 303);
  EXPECT_EQ(work.kv_tokens, 4u + 11 + 103);
}

TEST(StepWork, NoTokensAreNoWork) {
  StepWork work;
  work.Add(0, 0);
  EXPECT_EQ(work.tokens + work.context_pairs + work.kv_tokens, 0u);
}

TEST(StepTime, IsBoundByMemoryWhenFewTokensAreComputed) {
  StepWork work;
  work.Add(9, 1);
  // 200 bytes of weights and 10 tokens of 10 bytes at one byte per nanosecond.
  EXPECT_EQ(StepTime(Tiny(), Slow(), work), 1000 + 200 + 100);
}

TEST(StepTime, IsBoundByArithmeticWhenManyAre) {
  StepWork work;
  work.Add(0, 2000);
  // 2 * 100 * 2000 FLOPs in the layers, 4 * 2 * 4 * 8 * (2000 * 1999 / 2) in attention, at 1000 per
  // nanosecond, rounded up.
  uint64_t flops = 400'000 + 256ull * 1'999'000;
  EXPECT_EQ(StepTime(Tiny(), Slow(), work), static_cast<Duration>(1000 + (flops + 999) / 1000));
}

TEST(StepTime, OfAnEmptyStepIsTheWeights) {
  EXPECT_EQ(StepTime(Tiny(), Slow(), StepWork()), 1000 + 200);
}

TEST(StepTime, DoesNotOverflow) {
  StepWork work;
  for (int i = 0; i < 4096; ++i) work.Add(1'000'000, 1);
  Duration expected_bytes = 16'060'000'000ll + 4096ll * 1'000'001 * 131'072;
  // At 2.68e12 bytes per second: 2.68 bytes per picosecond.
  auto nanoseconds = static_cast<Duration>(static_cast<double>(expected_bytes) / 2680.0);
  EXPECT_NEAR(static_cast<double>(StepTime(Llama3Of8B(), H100(1), work)),
              static_cast<double>(3 * kMillisecond + nanoseconds), 2);
}

TEST(StepTime, OfTheComparisonsSetUp) {
  EXPECT_EQ(Llama3Of8B().kv_bytes_per_token, 131'072u);
  // One decode at context 1,000: 16.06 GB and 1,001 tokens of KV at 2.68 TB/s, and 3 ms.
  StepWork decode;
  decode.Add(1000, 1);
  EXPECT_NEAR(static_cast<double>(StepTime(Llama3Of8B(), H100(1), decode)), 9'041'493, 2);
  // 1,024 tokens of a prompt: 1.6445e13 FLOPs in the layers and 2.746e11 in attention at 494.5
  // TFLOP/s, and 3 ms.
  StepWork chunk;
  chunk.Add(0, 1024);
  EXPECT_NEAR(static_cast<double>(StepTime(Llama3Of8B(), H100(1), chunk)), 36'812'250, 2000);
  // Four ranks are a GPU four times as fast, with the same overhead.
  Duration one = StepTime(Llama3Of8B(), H100(1), chunk) - 3 * kMillisecond;
  EXPECT_NEAR(static_cast<double>(StepTime(Llama3Of8B(), H100(4), chunk) - 3 * kMillisecond),
              static_cast<double>(one) / 4, 1);
}

}  // namespace
}  // namespace kvern
