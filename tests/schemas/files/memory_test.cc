// What refusing a hostile file may cost: less memory than the file's size plus 64 MiB. Counted, not
// sampled: this program replaces operator new.
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schemas/files/gguf.h"
#include "schemas/files/limits.h"
#include "tests/schemas/files/model_builder.h"

namespace {

std::atomic<int64_t> g_live_bytes{0};
std::atomic<int64_t> g_peak_bytes{0};

void* CountedNew(std::size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  int64_t live = g_live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  if (live > g_peak_bytes) g_peak_bytes = live;  // One thread allocates in these tests.
  return memory;
}

void CountedDelete(void* memory) {
  if (memory != nullptr) g_live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return CountedNew(size); }
void* operator new[](std::size_t size) { return CountedNew(size); }
void operator delete(void* memory) noexcept { CountedDelete(memory); }
void operator delete[](void* memory) noexcept { CountedDelete(memory); }
void operator delete(void* memory, std::size_t) noexcept { CountedDelete(memory); }
void operator delete[](void* memory, std::size_t) noexcept { CountedDelete(memory); }

namespace kvern {
namespace {

constexpr int64_t kAllowance = 64 << 20;

// Opens the file with `open`, expects a refusal, and compares the peak with the file's size.
template <typename Open>
void ExpectCheapRefusal(uint64_t file_bytes, const std::string& expected_words, Open open) {
  g_peak_bytes = g_live_bytes.load();
  int64_t before = g_live_bytes;
  std::string refusal = ErrorOf(open());
  int64_t cost = g_peak_bytes - before;
  EXPECT_THAT(refusal, ::testing::HasSubstr(expected_words));
  // The file itself lies in memory already in these tests, so the whole cost is on top of it.
  EXPECT_LT(cost, static_cast<int64_t>(file_bytes) + kAllowance) << refusal;
}

void ExpectCheapGguf(std::string bytes, const std::string& words) {
  uint64_t size = bytes.size();
  auto source = std::make_shared<MemorySource>("mem.gguf", std::move(bytes));
  ExpectCheapRefusal(size, words, [&] { return Checkpoint::FromGguf(source); });
}

void ExpectCheapFolder(const std::string& file, std::string bytes, const std::string& words) {
  MemoryFolder folder = TinyFolder();
  if (file != "config.json") folder.files.erase("model.safetensors");
  uint64_t size = bytes.size();
  folder.files[file] = std::move(bytes);
  ModelFolder opened = folder.Folder();
  // MemoryFolder copies a file whenever it is opened; disk files are not copied.
  ExpectCheapRefusal(2 * size, words, [&] { return Checkpoint::FromFolder(opened); });
}

TEST(Memory, TheCounterCounts) {
  g_peak_bytes = g_live_bytes.load();
  int64_t before = g_live_bytes;
  std::vector<char>(1 << 20).swap(*std::make_unique<std::vector<char>>());
  EXPECT_GE(g_peak_bytes - before, 1 << 20);
  EXPECT_EQ(g_live_bytes, before);
}

TEST(Memory, GgufWithAsManyTensorsAsAllowed) {
  GgufWriter gguf = TinyGguf();
  while (gguf.tensors.size() < kMaxTensors) {
    std::string name = absl::StrCat("some.tensor.with.a.long.name.", gguf.tensors.size());
    gguf.tensors.push_back({name, {1, 1, 1, 1}, 0, "", 0});
  }
  ExpectCheapGguf(gguf.Build(), "overlaps");
}

TEST(Memory, GgufWithAsManyKeysAsAllowed) {
  GgufWriter gguf = TinyGguf();
  gguf.Remove("llama.block_count");
  while (gguf.keys.size() < kMaxGgufKeys) {
    gguf.keys.push_back({absl::StrCat("k", gguf.keys.size()), 0, "x"});
  }
  ExpectCheapGguf(gguf.Build(), "'llama.block_count' is missing");
}

TEST(Memory, GgufWithMillionsOfEmptyStrings) {
  GgufWriter gguf = TinyGguf();
  uint64_t count = 4 << 20;
  gguf.Put("tokenizer.ggml.tokens", 9,
           Bytes(uint32_t{8}) + Bytes(count) + std::string(8 * count, '\0'));
  ExpectCheapGguf(gguf.Build(), "4194304 entries");
  gguf = TinyGguf();
  gguf.Put("tokenizer.ggml.merges", 9,
           Bytes(uint32_t{8}) + Bytes(count) + std::string(8 * count, '\0'));
  ExpectCheapGguf(gguf.Build(), "the limit is");
}

TEST(Memory, GgufWithAHugeString) {
  GgufWriter gguf = TinyGguf();
  gguf.Text("general.architecture", std::string(80 << 20, 'x'));
  ExpectCheapGguf(gguf.Build(), "the limit is 256");
  gguf = TinyGguf();
  gguf.Text("tokenizer.chat_template", std::string(80 << 20, 'x'));
  ExpectCheapGguf(gguf.Build(), "the limit is");
}

TEST(Memory, SafetensorsWithAsManyTensorsAsFit) {
  std::string header = "{";
  for (uint64_t i = 0; header.size() + 64 < (16u << 20); ++i) {
    absl::StrAppend(&header, i == 0 ? "" : ",", "\"", i,
                    "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}");
  }
  ExpectCheapFolder("model.safetensors", SafetensorsFile(header + "}", "x"), "one too many");
}

TEST(Memory, SafetensorsWithHugeStrings) {
  std::string text(15 << 20, 'x');
  ExpectCheapFolder("model.safetensors", SafetensorsFile("{\"" + text + "\":1}", ""), "string");
  ExpectCheapFolder("model.safetensors",
                    SafetensorsFile("{\"__metadata__\":{\"k\":\"" + text + "\"}}", ""), "string");
  ExpectCheapFolder("model.safetensors", SafetensorsFile("{\"a\":" + std::string(1 << 20, '1'), ""),
                    "token");
}

TEST(Memory, IndexWithManyTensors) {
  std::string map;
  for (uint64_t i = 0; i < 140'000; ++i) {
    absl::StrAppend(&map, i == 0 ? "" : ",", "\"", i, "\":\"x\"");
  }
  ExpectCheapFolder("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}", "values");
}

TEST(Memory, ConfigOfManyValues) {
  std::string list = "[";
  for (int i = 0; i < 500'000; ++i) list += i == 0 ? "1" : ",1";
  ExpectCheapFolder("config.json", TinyConfig("x", list + "]"), "values");
  ExpectCheapFolder("config.json", std::string(32 << 20, ' '), "the limit is 1048576");
}

TEST(Memory, SparseFileOfOneTerabyte) {
  std::string pattern = ::testing::TempDir() + "kvern_sparse_XXXXXX";
  std::string folder = mkdtemp(pattern.data());
  std::string path = folder + "/m.gguf";
  GgufWriter gguf = TinyGguf();
  gguf.Put("tokenizer.ggml.scores", 9, Bytes(uint32_t{8}) + Bytes(uint64_t{1} << 37));
  std::ofstream(path, std::ios::binary) << gguf.Build();
  ASSERT_EQ(truncate(path.c_str(), int64_t{1} << 40), 0);
  ExpectCheapRefusal(0, "'tokenizer.ggml.scores'", [&] { return Checkpoint::Open(path); });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvern
