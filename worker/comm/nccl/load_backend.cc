#include "worker/comm/nccl/load_backend.h"

#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "cluster/base/log.h"

namespace kvern {
namespace {

constexpr char kPlugin[] = "libkvern_cuda.so";
constexpr char kDriver[] = "libcuda.so.1";

absl::StatusOr<std::string> FindPlugin() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path folder = program.parent_path();
  const std::string in_lib = folder.parent_path() / "lib" / kPlugin;
  const std::string beside = folder / kPlugin;
  for (const std::string& path : {in_lib, beside}) {
    if (std::filesystem::exists(path, error)) return path;
  }
  return FailedPrecondition("no CUDA backend: there is neither ", in_lib, " nor ", beside,
                            "; tools/build release kvern_cuda builds the first where there is a "
                            "CUDA toolkit");
}

absl::StatusOr<const GpuBackend*> FindAndLoad() {
  KVERN_ASSIGN_OR_RETURN(const std::string path, FindPlugin());
  return LoadBackend(path);
}

// A function of the plugin, which takes nothing; null when it has none of that name.
template <typename Result>
auto Function(void* plugin, const char* name) {
  return reinterpret_cast<Result (*)()>(dlsym(plugin, name));
}

}  // namespace

absl::StatusOr<const GpuBackend*> LoadBackend(const std::string& path) {
  // Never closed: its libraries keep threads and exit handlers.
  void* plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) return FailedPrecondition("no CUDA backend: ", dlerror());
  const auto build = Function<const char*>(plugin, "KvernGpuBuild");
  const auto backend = Function<const GpuBackend*>(plugin, "KvernGpuBackend");
  const std::string_view its = build == nullptr ? "(says none)" : build();
  if (its != KVERN_PLUGIN_BUILD || backend == nullptr) {
    return FailedPrecondition("no CUDA backend: ", path, " is of another build: ", ToAbsl(its),
                              ", this program: " KVERN_PLUGIN_BUILD);
  }
  KVERN_RETURN_IF_ERROR(backend()->CountGpus().status());
  return backend();
}

absl::StatusOr<const GpuBackend*> CudaBackend() {
  static const absl::StatusOr<const GpuBackend*> loaded = FindAndLoad();
  return loaded;
}

const GpuBackend* CudaBackendIfUsable() {
  void* driver = dlopen(kDriver, RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return nullptr;
  dlclose(driver);
  absl::StatusOr<const GpuBackend*> backend = CudaBackend();
  if (backend.ok()) return *backend;
  // Nobody rents a GPU to compute beside it.
  Log(LogLevel::kWarning, "gpu_not_used", {{"reason", ToStd(backend.status().message())}});
  return nullptr;
}

}  // namespace kvern
