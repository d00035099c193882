#include "tests/bench/gpu/rows_bench.h"

#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/bench/gpu/gpu_timer.h"

namespace kvern::gpu {
namespace {

struct Bench {
  const char* name;
  int32_t rows;
  double bytes;  // read and written by one call
};

absl::Status Measure(const Bench& bench, bool smoke, const DeviceLimits& limits, Report& report,
                     const std::function<cudaError_t(int)>& enqueue) {
  KVERN_ASSIGN_OR_RETURN(double seconds, SecondsPerCall(smoke ? Effort{0, 1} : Effort{}, enqueue));
  const double rate = bench.bytes / seconds;
  report.Add({bench.name,
              {{"rows", absl::StrCat(bench.rows)},
               {"us", Number(seconds * 1e6)},
               {"GB/s", Number(rate * 1e-9)},
               {"share_of_copy",
                Number(limits.bytes_per_second > 0 ? rate / limits.bytes_per_second : 0)}}});
  return absl::OkStatus();
}

absl::Status BenchNorm(int32_t rows, int32_t hidden, bool smoke, const DeviceLimits& limits,
                       Report& report) {
  const size_t values = static_cast<size_t>(rows) * static_cast<size_t>(hidden);
  KVERN_ASSIGN_OR_RETURN(DeviceMemory x, AllocateZero(values * 4));
  KVERN_ASSIGN_OR_RETURN(DeviceMemory delta, AllocateZero(values * 4));
  KVERN_ASSIGN_OR_RETURN(DeviceMemory weight, AllocateZero(static_cast<size_t>(hidden) * 4));
  KVERN_ASSIGN_OR_RETURN(DeviceMemory out, AllocateZero(values * 2));
  RmsNormArgs args;
  args.x = static_cast<float*>(x.get());
  args.delta = static_cast<const float*>(delta.get());
  args.weight = static_cast<const float*>(weight.get());
  args.eps = 1e-5f;
  args.rows = rows;
  args.cols = hidden;
  args.out = static_cast<Bf16*>(out.get());
  return Measure({"add_rms_norm", rows, static_cast<double>(values) * (4 + 4 + 4 + 2)}, smoke,
                 limits, report, [&](int) { return LaunchRmsNorm(args, nullptr); });
}

absl::Status BenchSwiGlu(int32_t rows, int32_t columns, bool smoke, const DeviceLimits& limits,
                         Report& report) {
  const size_t values = static_cast<size_t>(rows) * static_cast<size_t>(columns);
  KVERN_ASSIGN_OR_RETURN(DeviceMemory gate_up, AllocateZero(values * 4));
  KVERN_ASSIGN_OR_RETURN(DeviceMemory out, AllocateZero(values * 2));
  SwiGluArgs args;
  args.gate_up = static_cast<const Bf16*>(gate_up.get());
  args.out = static_cast<Bf16*>(out.get());
  args.rows = rows;
  args.columns = columns;
  return Measure({"swiglu", rows, static_cast<double>(values) * (4 + 2)}, smoke, limits, report,
                 [&](int) { return LaunchSwiGlu(args, nullptr); });
}

absl::Status BenchCandidates(int32_t rows, int32_t columns, bool smoke, const DeviceLimits& limits,
                             Report& report) {
  constexpr int32_t kCandidates = 64;
  const size_t values = static_cast<size_t>(rows) * static_cast<size_t>(columns);
  KVERN_ASSIGN_OR_RETURN(DeviceMemory logits, AllocateZero(values * 4));
  std::vector<SampleRow> requests(static_cast<size_t>(rows));
  for (int32_t i = 0; i < rows; ++i) requests[static_cast<size_t>(i)].row = i;
  KVERN_ASSIGN_OR_RETURN(DeviceMemory requested, CopyOf(requests));
  KVERN_ASSIGN_OR_RETURN(DeviceMemory out, AllocateZero(static_cast<size_t>(rows) * kCandidates *
                                                        sizeof(ScoredColumn)));
  LogitsArgs args;
  args.logits = static_cast<const float*>(logits.get());
  args.stride = columns;
  args.columns = columns;
  args.requests = static_cast<const SampleRow*>(requested.get());
  args.count = rows;
  return Measure({"top_candidates", rows, static_cast<double>(values) * 4}, smoke, limits, report,
                 [&](int) {
                   return LaunchTopCandidates(args, kCandidates,
                                              static_cast<ScoredColumn*>(out.get()), nullptr);
                 });
}

}  // namespace

void BenchRows(bool smoke, const DeviceLimits& limits, Report& report) {
  const auto note = [&](const char* bench, const absl::Status& status) {
    if (!status.ok()) report.Failed({bench, {}}, std::string(status.message()));
  };
  const std::vector<int32_t> row_counts =
      smoke ? std::vector<int32_t>{2} : std::vector<int32_t>{1, 64, 2048};
  for (int32_t rows : row_counts) {
    note("add_rms_norm", BenchNorm(rows, smoke ? 64 : 4096, smoke, limits, report));
    note("swiglu", BenchSwiGlu(rows, smoke ? 64 : 14336, smoke, limits, report));
  }
  for (int32_t rows : smoke ? std::vector<int32_t>{1} : std::vector<int32_t>{1, 64}) {
    note("top_candidates", BenchCandidates(rows, smoke ? 512 : 128256, smoke, limits, report));
  }
}

}  // namespace kvern::gpu
