// What --kv-memory means where it is not said.
#include "worker/engine/rank_options.h"

#include <gtest/gtest.h>

#include "cluster/base/machine.h"
#include "worker/comm/nccl/load_backend.h"

namespace kvern {
namespace {

uint64_t KvMemoryOn(const std::string& device, int64_t ranks, uint64_t said = 0) {
  RankOptions options;
  options.model = "m";
  options.device = device;
  options.kv_memory_bytes = said;
  auto config = ToRankConfig(options, ranks);
  EXPECT_TRUE(config.ok()) << config.status();
  return config->kv_memory_bytes;
}

TEST(RankOptions, RanksShareTheMemoryOfTheirHost) {
  EXPECT_EQ(KvMemoryOn("cpu", 6), DefaultKvMemory(6));
  EXPECT_EQ(KvMemoryOn("emulated", 6), DefaultKvMemory(6));
  EXPECT_EQ(KvMemoryOn("cpu", 6, 1000), 1000u);
  // 0: what the GPU has free, which is no matter of the host's memory.
  EXPECT_EQ(KvMemoryOn("auto", 6), CudaBackendIfUsable() == nullptr ? DefaultKvMemory(6) : 0);
}

}  // namespace
}  // namespace kvern
