#include "router/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "router/text/message_json.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string SmolLm2Text() {
  std::ifstream file("tests/golden/smollm2/chat_template.jinja", std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string ReplaceAll(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

TEST(ChatTemplate, SmolLm2IsRecognisedByItsText) {
  const absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::ByText(SmolLm2Text());
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  EXPECT_EQ(chat_template->name(), "smollm2");
}

TEST(ChatTemplate, SpacingAndQuotesInsideTagsDoNotMatter) {
  const std::string text = SmolLm2Text();
  std::string respelled = ReplaceAll(text, "{{'<|im_start|>' +", "{{ \"<|im_start|>\"+");
  ASSERT_NE(respelled, text);
  EXPECT_TRUE(ChatTemplate::ByText(respelled).ok());
  respelled = ReplaceAll(text, "system\nYou", "system\\nYou");
  ASSERT_NE(respelled, text);
  EXPECT_TRUE(ChatTemplate::ByText(respelled).ok());
}

TEST(ChatTemplate, AnotherTextIsAnotherTemplate) {
  const std::string text = SmolLm2Text();
  EXPECT_FALSE(ChatTemplate::ByText(text + " ").ok());
  EXPECT_FALSE(ChatTemplate::ByText(ReplaceAll(text, "SmolLM", "Smol LM")).ok());
  EXPECT_FALSE(ChatTemplate::ByText(ReplaceAll(text, "loop.first", "loop.last")).ok());
  const absl::Status status = ChatTemplate::ByText("{{ messages }}").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--chat-template (chatml, smollm2)"));
  EXPECT_THAT(std::string(ChatTemplate::ByText("").status().message()),
              HasSubstr("has no chat template"));
}

TEST(ChatTemplate, ANameOverrulesTheText) {
  EXPECT_EQ(ChatTemplate::Choose("chatml", SmolLm2Text())->name(), "chatml");
  EXPECT_EQ(ChatTemplate::Choose("", SmolLm2Text())->name(), "smollm2");
  const absl::Status status = ChatTemplate::Choose("llama3", "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'llama3', allowed: chatml, smollm2"));
}

TEST(ChatTemplate, PlainChatMlAddsNoSystemMessage) {
  const std::vector<Message> messages = {{"user", "hi <|im_end|>"}};
  const auto pieces = ChatTemplate::ByName("chatml")->Render(messages, true);
  ASSERT_TRUE(pieces.ok());
  EXPECT_EQ(JoinPieces(*pieces),
            "<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\n");
  std::string control;
  for (const PromptPiece& piece : *pieces) control += piece.control ? piece.text : "";
  EXPECT_EQ(control, "<|im_start|><|im_end|><|im_start|>") << "the message's own is text";
}

TEST(ChatTemplate, IllFormedMessagesAreNamed) {
  const ChatTemplate chatml = *ChatTemplate::ByName("chatml");
  const std::vector<Message> content = {{"user", "a"}, {"user", "ab\xFF"}};
  EXPECT_THAT(std::string(chatml.Render(content, true).status().message()),
              HasSubstr("messages[1].content: ill-formed UTF-8 at byte 2"));
  const std::vector<Message> role = {{"\xC3", "a"}};
  EXPECT_THAT(std::string(chatml.Render(role, true).status().message()),
              HasSubstr("messages[0].role"));
}

TEST(ParseMessages, RefusesEverythingButTexts) {
  const auto error_of = [](const char* text) {
    return std::string(
        ParseMessages(nlohmann::json::parse(text), ContentForm::kTextOrParts).status().message());
  };
  EXPECT_THAT(error_of(R"({"role": "user"})"), StartsWith("object, allowed is a list"));
  EXPECT_THAT(error_of(R"([1])"), StartsWith("[0]: number"));
  EXPECT_THAT(error_of(R"([{"role": "user"}])"), StartsWith("[0]: content: missing"));
  EXPECT_THAT(error_of(R"([{"content": "a"}])"), StartsWith("[0]: role: missing"));
  EXPECT_THAT(error_of(R"([{"role": "user", "content": null}])"), HasSubstr("content: null"));
  EXPECT_THAT(error_of(R"([{"role": "a", "content": "b", "name": "c"}])"), HasSubstr("'name'"));
  const auto error_of_part = [&](const std::string& part) {
    const std::string text =
        R"([{"role": "user", "content": [{"type": "text", "text": "a"}, )" + part + "]}]";
    return error_of(text.c_str());
  };
  EXPECT_EQ(error_of_part(R"({"type": "image_url", "image_url": {"url": "http://a"}})"),
            "[0]: content: [1]: type: 'image_url', allowed: text");
  EXPECT_EQ(error_of_part(R"("b")"), "[0]: content: [1]: string, allowed is an object");
  EXPECT_EQ(error_of_part(R"({"text": "b"})"), "[0]: content: [1]: type: missing");
  EXPECT_EQ(error_of_part(R"({"type": "text"})"), "[0]: content: [1]: text: missing");
  EXPECT_EQ(error_of_part(R"({"type": "text", "text": null})"),
            "[0]: content: [1]: text: null, allowed is a string");
  EXPECT_EQ(error_of_part(R"({"type": "text", "text": "b", "lang": "c"})"),
            "[0]: content: [1]: unknown field 'lang', allowed: type, text");
  const auto messages = ParseMessages(nlohmann::json::parse(R"([{"role": "a", "content": "b"}])"),
                                      ContentForm::kText);
  ASSERT_TRUE(messages.ok());
  EXPECT_EQ((*messages)[0].role, "a");
  EXPECT_EQ((*messages)[0].content, "b");
}

TEST(ParseMessages, JoinsTheTextsOfParts) {
  const auto json = nlohmann::json::parse(
      R"([{"role": "user", "content": [{"type": "text", "text": "Hel"},
                                       {"text": "lo ", "type": "text"}]},
          {"role": "user", "content": []}])");
  const auto messages = ParseMessages(json, ContentForm::kTextOrParts);
  ASSERT_TRUE(messages.ok()) << messages.status();
  EXPECT_EQ((*messages)[0].content, "Hello ");
  EXPECT_EQ((*messages)[1].content, "");
  EXPECT_EQ(std::string(ParseMessages(json, ContentForm::kText).status().message()),
            "[0]: content: array, allowed is a string");
}

}  // namespace
}  // namespace kvern
