// The CUDA plugin on a machine that may have no GPU, no toolkit, or both.
#include "worker/comm/nccl/load_backend.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvern {
namespace {

TEST(LoadBackendTest, SaysWhyThereIsNone) {
  absl::StatusOr<const GpuBackend*> backend = CudaBackend();
  if (backend.ok()) {
    EXPECT_STREQ((*backend)->name(), "cuda");
    EXPECT_EQ(CudaBackendIfUsable(), *backend);
    return;
  }
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
#ifdef KVERN_TEST_HAS_PLUGIN
  // It links and loads with the real libraries; only the GPU is missing.
  const char* why = " on this machine (CUDA: ";
#else
  // Both places, and what puts it into the first.
  const char* why =
      "/bin/libkvern_cuda.so; tools/build release kvern_cuda builds the first where there is a "
      "CUDA toolkit";
  EXPECT_THAT(std::string(backend.status().message()),
              testing::HasSubstr("/lib/libkvern_cuda.so nor /"));
#endif
  EXPECT_THAT(std::string(backend.status().message()), testing::HasSubstr(why));
  EXPECT_EQ(CudaBackendIfUsable(), nullptr);
  EXPECT_EQ(CudaBackend().status(), backend.status());
}

// One that says another build, one from before there was anything to say.
TEST(LoadBackendTest, APluginOfAnotherBuildIsRefused) {
  for (const auto& [name, says] :
       {std::pair("other", "0.0.9 headers 0123456789ab"), std::pair("mute", "(says none)")}) {
    const std::string path = absl::StrCat(KVERN_TEST_PLUGINS "/libload_backend_", name, ".so");
    const absl::Status status = LoadBackend(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr(absl::StrCat(path, " is of another build: ", says,
                                                ", this program: " KVERN_VERSION " headers ")));
  }
}

TEST(LoadBackendTest, TheEmulatedKindIsAlwaysUsable) {
  EXPECT_STREQ(EmulatedBackend().name(), "emulated");
  EXPECT_EQ(EmulatedBackend().CountGpus(), absl::StatusOr<int>(8));
}

}  // namespace
}  // namespace kvern
