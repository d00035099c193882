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
  const char* why = "no usable GPU: ";
#else
  const char* why = "libkvern_cuda.so does not exist";
#endif
  EXPECT_THAT(std::string(backend.status().message()), testing::HasSubstr(why));
  EXPECT_EQ(CudaBackendIfUsable(), nullptr);
  EXPECT_EQ(CudaBackend().status(), backend.status());
}

TEST(LoadBackendTest, TheEmulatedKindIsAlwaysUsable) {
  EXPECT_STREQ(EmulatedBackend().name(), "emulated");
  EXPECT_EQ(EmulatedBackend().Usable(), absl::OkStatus());
}

}  // namespace
}  // namespace kvern
