// The matrix product of the CPU device. For one row: its bytes per second as a share of what
// reading memory reaches at that moment. For many rows: GFLOP/s.
#include <chrono>
#include <cstring>
#include <memory>

#include "benchmark/benchmark.h"
#include "cluster/base/check.h"
#include "tests/bench/bandwidth_probe.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/device/ops.h"

namespace kvern {
namespace {

constexpr int64_t kColumns = 1536;
constexpr int64_t kDramBytes = int64_t{256} << 20;  // Far beyond the caches.

FileDtype DtypeFor(WeightFormat format) {
  constexpr FileDtype kDtypes[] = {FileDtype::kF32, FileDtype::kBf16, FileDtype::kQ8_0,
                                   FileDtype::kQ4_1};
  return kDtypes[static_cast<size_t>(format)];
}

std::unique_ptr<Matrix> Filled(Device& device, WeightFormat format, int64_t rows, int64_t cols) {
  auto matrix = device.NewMatrix(format, rows, cols);
  KVERN_CHECK(matrix.ok());
  const FileDtype dtype = DtypeFor(format);
  const FileDtypeInfo info = Info(dtype);
  const size_t row_bytes = static_cast<size_t>(cols) / info.block_elements * info.block_bytes;
  // 0x2C2C is a small positive number in every encoding.
  const std::vector<std::byte> row(row_bytes * 16, std::byte{0x2C});
  device.ParallelFor(
      rows / 16, [&](int64_t i) { KVERN_CHECK((*matrix)->SetRows(i * 16, 16, dtype, row).ok()); });
  return std::move(matrix).value();
}

std::unique_ptr<Device> NewDevice(int64_t threads) {
  auto device = NewCpuDevice({.threads = static_cast<int>(threads), .isa = "auto"});
  KVERN_CHECK(device.ok());
  return std::move(device).value();
}

// x [rows, cols] and out [rows, outputs].
struct Operands {
  Operands(int64_t rows, int64_t cols, int64_t outputs)
      : x_data(static_cast<size_t>(rows * cols), 0.5f),
        out_data(static_cast<size_t>(rows * outputs)),
        x{x_data.data(), DType::kF32, rows, cols, cols},
        out{out_data.data(), DType::kF32, rows, outputs, outputs} {}
  std::vector<float> x_data;
  std::vector<float> out_data;
  Tensor x;
  Tensor out;
};

// Arguments: weight format, threads, rows of x. The matrix does not fit any cache.
void BM_DramMatMul(benchmark::State& state) {
  const auto format = static_cast<WeightFormat>(state.range(0));
  const auto device = NewDevice(state.range(1));
  const int64_t rows = state.range(2);
  constexpr double kBitsPerWeight[] = {32, 16, 8.5, 5};
  const double bits = kBitsPerWeight[state.range(0)];
  const auto outputs = static_cast<int64_t>(static_cast<double>(kDramBytes) * 8 / bits) / kColumns;
  const auto matrix = Filled(*device, format, outputs / 32 * 32, kColumns);
  Operands operands(rows, kColumns, matrix->rows());
  BandwidthProbe probe;
  double best_seconds = 1e9;
  double best_probe = 0;
  for (auto _ : state) {
    const double probed = probe.Measure(static_cast<int>(state.range(1)), 1);
    const auto start = std::chrono::steady_clock::now();
    device->ops().MatMul(operands.x, *matrix, nullptr, operands.out);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best_seconds = std::min(best_seconds, seconds.count());
    best_probe = std::max(best_probe, probed);
    state.SetIterationTime(seconds.count());
  }
  const double rate = static_cast<double>(matrix->bytes()) / best_seconds;
  state.counters["GB/s"] = rate * 1e-9;
  state.counters["probe_GB/s"] = best_probe * 1e-9;
  state.counters["best/probe"] = rate / best_probe;
  state.counters["best_ms"] = best_seconds * 1e3;
}

// Arguments: weight format, threads, rows, K, N. Best of the iterations.
void BM_Gemm(benchmark::State& state) {
  const auto format = static_cast<WeightFormat>(state.range(0));
  const auto device = NewDevice(state.range(1));
  const int64_t rows = state.range(2);
  const auto matrix = Filled(*device, format, state.range(4), state.range(3));
  Operands operands(rows, state.range(3), state.range(4));
  double best_seconds = 1e9;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    device->ops().MatMul(operands.x, *matrix, nullptr, operands.out);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best_seconds = std::min(best_seconds, seconds.count());
    state.SetIterationTime(seconds.count());
  }
  const auto flops = static_cast<double>(2 * rows * state.range(3) * state.range(4));
  state.counters["GFLOP/s"] = flops / best_seconds * 1e-9;
  state.counters["best_ms"] = best_seconds * 1e3;
}

void DramCases(benchmark::internal::Benchmark* bench) {
  for (int64_t format : {1, 2, 3, 0}) {
    for (int64_t threads : {1, 2}) {
      for (int64_t rows : {1, 8}) bench->Args({format, threads, rows});
    }
  }
  bench->ArgNames({"format", "threads", "rows"});
}

void GemmCases(benchmark::internal::Benchmark* bench) {
  for (int64_t format : {1, 0, 2, 3}) {
    for (int64_t threads : {1, 2}) bench->Args({format, threads, 512, 576, 3072});
    bench->Args({format, 2, 512, 2048, 2048});
  }
  bench->ArgNames({"format", "threads", "rows", "k", "n"});
}

// format: 0 f32, 1 bf16, 2 int8, 3 int4.
BENCHMARK(BM_DramMatMul)
    ->Apply(DramCases)
    ->UseManualTime()
    ->Iterations(8)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Gemm)->Apply(GemmCases)->UseManualTime()->Iterations(10)->Unit(
    benchmark::kMillisecond);

}  // namespace
}  // namespace kvern

BENCHMARK_MAIN();
