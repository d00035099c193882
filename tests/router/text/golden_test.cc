// What two independent tokenizers say of the real model: every case of tests/golden/smollm2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "router/text/chat_template.h"
#include "router/text/detokenizer.h"
#include "router/text/message_json.h"
#include "tests/router/text/golden_text.h"

namespace kvern {
namespace {

using Ids = std::vector<uint32_t>;
using nlohmann::json;
using ::testing::HasSubstr;

std::string BytesOf(const Ids& ids) {
  std::string bytes;
  for (uint32_t id : ids) bytes += GoldenTokenizer().TokenBytes(id);
  return bytes;
}

TEST(GoldenText, Encode) {
  for (const json& line : GoldenLines("tokenizer_encode.jsonl", 386)) {
    SCOPED_TRACE(line["name"].get<std::string>());
    const std::string text = line["text"];
    const auto ids = GoldenTokenizer().Encode(text, {.parse_special = line["parse_special"]});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, line["ids"].get<Ids>());
    EXPECT_EQ(BytesOf(*ids) == text, line["roundtrip"].get<bool>());
  }
}

TEST(GoldenText, EncodeLong) {
  for (const json& line : GoldenLines("tokenizer_long.jsonl", 18)) {
    SCOPED_TRACE(line["name"].get<std::string>());
    std::string text;
    const std::string unit = line["repeat_unit"];
    for (int i = line["repeat_count"]; i > 0; --i) text += unit;
    ASSERT_EQ(Sha256Hex(text), line["text_sha256"].get<std::string>());
    const auto ids = GoldenTokenizer().Encode(text, {.parse_special = line["parse_special"]});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(ids->size(), line["n_ids"].get<size_t>());
    EXPECT_EQ(Sha256Hex(IdBytes(*ids)), line["ids_sha256"].get<std::string>());
    EXPECT_EQ(BytesOf(*ids) == text, line["roundtrip"].get<bool>());
  }
}

TEST(GoldenText, EncodeBytes) {
  for (const json& line : GoldenLines("tokenizer_bytes.jsonl", 16)) {
    SCOPED_TRACE(line["name"].get<std::string>());
    const auto ids = GoldenTokenizer().Encode(FromBase64(line["bytes_b64"].get<std::string>()), {});
    if (line["valid_utf8"]) {
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, line["ids_of_replaced_text"].get<Ids>());
    } else {
      EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(ids.status().message()), HasSubstr("ill-formed UTF-8 at byte "));
    }
    const auto replaced = GoldenTokenizer().Encode(line["replaced_text"].get<std::string>(), {});
    ASSERT_TRUE(replaced.ok());
    EXPECT_EQ(*replaced, line["ids_of_replaced_text"].get<Ids>());
  }
}

TEST(GoldenText, Decode) {
  for (const json& line : GoldenLines("tokenizer_decode.jsonl", 128)) {
    SCOPED_TRACE(line["name"].get<std::string>());
    const bool skip_special = line["skip_special"];
    StreamDecoder decoder(&GoldenTokenizer(), skip_special);
    std::string text;
    std::string bytes;
    std::vector<std::string> steps;
    for (uint32_t id : line["ids"].get<Ids>()) {
      steps.push_back(decoder.Append(id));
      text += steps.back();
      if (!skip_special || !GoldenTokenizer().IsControl(id)) {
        bytes += GoldenTokenizer().TokenBytes(id);
      }
    }
    EXPECT_EQ(steps, line["steps"].get<std::vector<std::string>>());
    const std::string flush = decoder.Flush();
    EXPECT_EQ(flush, line["flush"].get<std::string>());
    EXPECT_EQ(text + flush, line["text"].get<std::string>());
    EXPECT_EQ(bytes, FromBase64(line["bytes_b64"].get<std::string>()));
  }
}

TEST(GoldenText, ChatTemplate) {
  const auto chat_template = ChatTemplate::ByText(GoldenTokenizer().chat_template());
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  size_t errors = 0;
  for (const json& line : GoldenLines("chat_template.jsonl", 46)) {
    SCOPED_TRACE(line["name"].get<std::string>());
    const auto messages = ParseMessages(line["messages"], ContentForm::kText);
    if (line.value("error", false)) {
      EXPECT_EQ(messages.status().code(), absl::StatusCode::kInvalidArgument);
      ++errors;
      continue;
    }
    ASSERT_TRUE(messages.ok()) << messages.status();
    const auto pieces = chat_template->Render(*messages, line["add_generation_prompt"]);
    ASSERT_TRUE(pieces.ok()) << pieces.status();
    const std::string prompt = JoinPieces(*pieces);
    EXPECT_EQ(prompt, line["prompt"].get<std::string>());
    const char* own_only = "ids_user_specials_as_text";
    const auto ids = GoldenTokenizer().EncodePieces(*pieces, false);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, line[line.contains(own_only) ? own_only : "ids"].get<Ids>());
    // The reference's own reading, in which a message can forge a turn.
    const auto parsed = GoldenTokenizer().Encode(prompt, {.parse_special = true});
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, line["ids"].get<Ids>());
  }
  EXPECT_EQ(errors, 4u);
}

TEST(GoldenText, PromptsOfTheLogits) {
  for (const json& line : GoldenLines("logits.jsonl", 12)) {
    const auto ids =
        GoldenTokenizer().Encode(line["prompt"].get<std::string>(), {.parse_special = true});
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, line["ids"].get<Ids>());
    StreamDecoder decoder(&GoldenTokenizer(), false);
    std::string text;
    for (const json& step : line["greedy"]) text += decoder.Append(step["id"]);
    EXPECT_EQ(text + decoder.Flush(), line["greedy_text"].get<std::string>());
  }
}

}  // namespace
}  // namespace kvern
