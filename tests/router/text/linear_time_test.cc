// Text that breaks other tokenizers: work per byte is counted and bounded, and so is the stack.
#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>
#include <string>
#include <vector>

#include "router/text/tokenizer.h"
#include "tests/router/text/small_vocab.h"

namespace kvern {
namespace {

// Per byte: the pre-tokenizer looks at most 3 times, a merge costs at most 9 (bpe.h), and the
// search for special tokens as many bytes as their longest common prefix with the text, here at
// most 13.
constexpr uint64_t kMaxStepsPerByte = 3 + 9 + 13;

constexpr size_t kLong = 30'000;
constexpr size_t kHuge = 10'000'000;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kStackBytes = 512 << 10;  // Instrumented frames are several times larger.
#else
constexpr size_t kStackBytes = 64 << 10;
#endif

void* CallFunction(void* function) {
  (*static_cast<std::function<void()>*>(function))();
  return nullptr;
}

// Overflowing the small stack ends the test program by a signal.
void RunOnSmallStack(std::function<void()> function) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kStackBytes), 0);
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, CallFunction, &function), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

std::string Repeat(std::string_view unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

void ExpectLinear(const Tokenizer& tokenizer, const std::string& text) {
  const EncodeOptions parse{.parse_special = true, .add_special = false};
  absl::StatusOr<std::vector<uint32_t>> ids;
  EncodeStats stats;
  RunOnSmallStack([&] { ids = tokenizer.Encode(text, parse, &stats); });
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_LE(stats.steps, kMaxStepsPerByte * text.size());
  EXPECT_GE(stats.steps, text.size()) << "the counter counts";
  std::string bytes;
  for (uint32_t id : *ids) bytes += tokenizer.TokenBytes(id);
  EXPECT_TRUE(bytes == text);
}

class LinearTime : public ::testing::TestWithParam<const char*> {};

TEST_P(LinearTime, LongTextsOfOneKind) {
  for (const char* pre_tokenizer : {"gpt-2", "smollm"}) {
    const Tokenizer tokenizer = *Tokenizer::Create(SmallVocab(pre_tokenizer));
    ExpectLinear(tokenizer, Repeat(GetParam(), kLong));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LinearTime,
                         ::testing::Values("a", "7", " ", "\n", "!", "'", "\xC3\xA9",
                                           "\xE6\xBC\xA2", "\xF0\x9F\x98\x80", "\xCC\x81", " a",
                                           "  \n", "'s", "in", "<|im_en", "<|im_start|>", "<",
                                           "\xE3\x80\x80", "1 "));

TEST(LinearTimeHuge, TenMegabytesOfOneClass) {
  const Tokenizer tokenizer = *Tokenizer::Create(SmallVocab("smollm"));
  ExpectLinear(tokenizer, Repeat("a", kHuge));
}

TEST(LinearTimeHuge, TenMegabytesOfSpaces) {
  const Tokenizer tokenizer = *Tokenizer::Create(SmallVocab("smollm"));
  ExpectLinear(tokenizer, Repeat(" ", kHuge));
}

// Merging costs the same per byte however long the part is: quadratic work would show here.
TEST(LinearTimeHuge, StepsPerByteDoNotGrow) {
  const Tokenizer tokenizer = *Tokenizer::Create(SmallVocab("gpt-2"));
  EncodeStats small;
  EncodeStats large;
  ASSERT_TRUE(tokenizer.Encode(std::string(kLong, 'a'), {}, &small).ok());
  ASSERT_TRUE(tokenizer.Encode(std::string(kLong * 64, 'a'), {}, &large).ok());
  EXPECT_LE(large.steps, small.steps * 64 + 64 * 16) << "16: the ends of the part";
}

}  // namespace
}  // namespace kvern
