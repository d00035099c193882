#include "worker/engine/worker_place.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

struct Completed {
  WorkerPlace place;
  std::string error;
};

Completed Complete(const Variables& variables, WorkerPlace place = {}) {
  absl::Status status = CompletePlace(
      [&](const char* name) -> const char* {
        auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      place);
  return {place, std::string(status.message())};
}

Completed CompleteAt(const Variables& variables, int64_t rank = -1, int64_t world = -1) {
  return Complete(variables, {"tcp://127.0.0.1:1", rank, world});
}

TEST(WorkerPlaceTest, AloneWhenNothingIsSaid) {
  WorkerPlace place = CompleteAt({}).place;
  EXPECT_EQ(place.rank, 0);
  EXPECT_EQ(place.world, 1);
}

TEST(WorkerPlaceTest, TheFirstSourceCounts) {
  // Each is beaten by the one before it.
  const std::vector<std::pair<std::string, std::string>> sources = {
      {"RANK", "WORLD_SIZE"},
      {"LWS_WORKER_INDEX", "LWS_GROUP_SIZE"},
      {"SLURM_PROCID", "SLURM_NTASKS"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"}};
  Variables variables;
  for (size_t i = sources.size(); i-- > 0;) {
    variables[sources[i].first] = std::to_string(i + 1);
    variables[sources[i].second] = std::to_string(i + 10);
    WorkerPlace place = CompleteAt(variables).place;
    EXPECT_EQ(place.rank, static_cast<int64_t>(i + 1)) << sources[i].first;
    EXPECT_EQ(place.world, static_cast<int64_t>(i + 10)) << sources[i].second;
  }
  WorkerPlace said = CompleteAt(variables, 7, 8).place;
  EXPECT_EQ(said.rank, 7);
  EXPECT_EQ(said.world, 8);
}

TEST(WorkerPlaceTest, TheOnlyGpuThatIsShownIsNumberZero) {
  Variables variables = {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "3"}};
  EXPECT_EQ(CompleteAt(variables).place.gpu_index, 3);
  variables["CUDA_VISIBLE_DEVICES"] = "2";
  EXPECT_EQ(CompleteAt(variables).place.gpu_index, 0);
  variables["CUDA_VISIBLE_DEVICES"] = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";
  EXPECT_EQ(CompleteAt(variables).place.gpu_index, 0);
  variables["CUDA_VISIBLE_DEVICES"] = "0,1,2,3";
  EXPECT_EQ(CompleteAt(variables).place.gpu_index, 3);
  EXPECT_EQ(
      Complete({{"CUDA_VISIBLE_DEVICES", "2"}}, {"tcp://127.0.0.1:1", 1, 2, 1}).place.gpu_index,
      1);  // as it was said
}

TEST(WorkerPlaceTest, AnEmptyVariableIsNone) {
  EXPECT_EQ(CompleteAt({{"RANK", ""}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}).place.rank, 1);
}

TEST(WorkerPlaceTest, TheRouterIsAtTheMasterAddress) {
  Variables master = {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "5571"}};
  EXPECT_EQ(Complete(master).place.router, "tcp://127.0.0.1:5571");
  EXPECT_EQ(CompleteAt(master).place.router, "tcp://127.0.0.1:1");
  master["MASTER_ADDR"] = "::1";
  EXPECT_EQ(Complete(master).place.router, "tcp://[::1]:5571");
}

TEST(WorkerPlaceTest, RefusalsNameTheVariable) {
  EXPECT_THAT(Complete({{"MASTER_ADDR", "127.0.0.1"}}).error, HasSubstr("--router: needed"));
  EXPECT_EQ(Complete({{"MASTER_ADDR", "h"}, {"MASTER_PORT", "0"}}).error,
            "MASTER_PORT: '0' is not a whole number from 1 to 65535");
  EXPECT_EQ(CompleteAt({{"RANK", "one"}}).error, "RANK: 'one' is not a whole number from 0 to 63");
  EXPECT_EQ(CompleteAt({{"SLURM_NTASKS", "0"}}).error,
            "SLURM_NTASKS: '0' is not a whole number from 1 to 64");
  EXPECT_EQ(CompleteAt({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).error,
            "RANK: 2, allowed: 0 to 1 (WORLD_SIZE is 2)");
  EXPECT_EQ(CompleteAt({{"SLURM_PROCID", "2"}}, -1, 2).error,
            "SLURM_PROCID: 2, allowed: 0 to 1 (--world is 2)");
  EXPECT_EQ(CompleteAt({{"SLURM_NTASKS", "2"}}, 3).error,
            "--rank: 3, allowed: 0 to 1 (SLURM_NTASKS is 2)");
}

}  // namespace
}  // namespace kvern
