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

// Eight are emulated unless KVERN_EMULATED_DEVICES says otherwise.
TEST(RankOptions, EachRankHasAGpuOfItsOwn) {
  RankConfig config;
  EXPECT_TRUE(CheckTp(config, 64).ok());  // on the CPU
  EXPECT_TRUE(CheckGpuIndex(config, 64, 65).ok());
  config.gpu = &EmulatedBackend();
  EXPECT_TRUE(CheckTp(config, 8).ok());
  EXPECT_EQ(CheckTp(config, 9).message(),
            "--tp: 9, allowed: 1 to 8 (with --device emulated each rank has a GPU, and this "
            "machine has 8)");
  EXPECT_TRUE(CheckGpuIndex(config, 7, 9).ok());
  EXPECT_EQ(CheckGpuIndex(config, 8, 9).message(),
            "--gpu-index: 8, allowed: 0 to 7 (with --device emulated each rank has a GPU, and "
            "this machine has 8; ranks on it, --tp times --replicas of kvern-launch: 9)");
}

}  // namespace
}  // namespace kvern
