// Encoding speed on ordinary and hostile text of 10 MB, beside the floor that any encoder pays: one
// pass of strict UTF-8 decoding over the same bytes. Needs the real model (tools/fetch_model).
#include <benchmark/benchmark.h>

#include <iterator>
#include <string>

#include "router/text/detokenizer.h"
#include "router/text/utf8.h"
#include "tests/router/text/golden_text.h"

namespace kvern {
namespace {

constexpr size_t kBytes = 10'000'000;

// What the families of text repeat.
constexpr const char* kUnits[] = {
    "The quick brown fox can't jump over 12 lazy dogs; it'll try.\n",
    "a",
    " ",
    "7",
    "!",
    "\xE6\xBC\xA2",
    "\xCC\x81",
    "<|im_start|>",
};

std::string MakeText(size_t family) {
  std::string text;
  while (text.size() < kBytes) text += kUnits[family];
  return text;
}

void BM_Utf8Floor(benchmark::State& state) {
  const std::string text = MakeText(static_cast<size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(CheckUtf8(text).ok());
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void BM_Encode(benchmark::State& state) {
  const std::string text = MakeText(static_cast<size_t>(state.range(0)));
  EncodeStats stats;
  size_t ids = 0;
  for (auto _ : state) {
    stats = EncodeStats();
    ids = GoldenTokenizer().Encode(text, {.parse_special = true}, &stats)->size();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
  state.counters["steps_per_byte"] =
      static_cast<double>(stats.steps) / static_cast<double>(text.size());
  state.counters["bytes_per_id"] = static_cast<double>(text.size()) / static_cast<double>(ids);
}

void BM_StreamDecode(benchmark::State& state) {
  const auto ids = GoldenTokenizer().Encode(MakeText(0).substr(0, kBytes / 10), {});
  for (auto _ : state) {
    StreamDecoder decoder(&GoldenTokenizer(), true);
    for (uint32_t id : *ids) benchmark::DoNotOptimize(decoder.Append(id));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(ids->size()));
}

constexpr int64_t kFamilies = static_cast<int64_t>(std::size(kUnits));
BENCHMARK(BM_Utf8Floor)->DenseRange(0, kFamilies - 1)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Encode)->DenseRange(0, kFamilies - 1)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK(BM_StreamDecode)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvern

BENCHMARK_MAIN();
