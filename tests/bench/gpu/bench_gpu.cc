// The kernels on a GPU, beside what the GPU itself reaches: copies of memory for what is bound by
// bandwidth, a large product for what is bound by arithmetic.
//   bench_gpu [--smoke] [--json FILE]
// FILE: a JSON object a line. --smoke: tiny shapes, each once, to see that everything runs (on the
// emulated device too).
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/bench/gpu/attention_bench.h"
#include "tests/bench/gpu/device_limits.h"
#include "tests/bench/gpu/gpu_timer.h"
#include "tests/bench/gpu/report.h"
#include "tests/bench/gpu/rows_bench.h"

namespace kvern::gpu {
namespace {

absl::Status DescribeDevice(Report& report) {
  int count = 0;
  KVERN_RETURN_IF_ERROR(Checked(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  if (count == 0) return Unavailable("no GPU");
  cudaDeviceProp device{};
  KVERN_RETURN_IF_ERROR(Checked(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties"));
  report.Add({"device",
              {{"name", Text(device.name)},
               {"compute_capability", Text(absl::StrCat(device.major, ".", device.minor))},
               {"multiprocessors", absl::StrCat(device.multiProcessorCount)},
               {"memory_bytes", absl::StrCat(device.totalGlobalMem)}}});
  return absl::OkStatus();
}

int Run(bool smoke, const std::string& json_path) {
  Report report(json_path);
  absl::Status described = DescribeDevice(report);
  if (!described.ok()) {
    report.Failed({"device", {}}, std::string(described.message()));
  } else {
    const DeviceLimits limits = MeasureLimits(smoke, report);
    BenchAttention(smoke, limits, report);
    BenchRows(smoke, limits, report);
  }
  return report.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvern::gpu

int main(int argc, char** argv) {
  bool smoke = false;
  std::string json_path;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--smoke") == 0) {
      smoke = true;
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json_path = argv[++i];
    } else {
      std::fprintf(stderr, "bench_gpu: '%s', allowed: --smoke, --json FILE\n", argv[i]);
      return 2;
    }
  }
  return kvern::gpu::Run(smoke, json_path);
}
