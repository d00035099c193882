// kvern-run on the real model that tools/fetch_model fetches: text in, text out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/run/run_program.h"

namespace kvern {
namespace {

using nlohmann::json;

constexpr const char* kModel = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

class RunText : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(std::filesystem::exists(kModel)) << kModel << " is missing: run tools/fetch_model";
  }

  static std::vector<json> Run(const std::vector<json>& lines) {
    RunOutcome outcome =
        RunLines({"--model", kModel, "--tp", "2", "--threads", "1", "--kv-blocks", "100"}, lines);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
    EXPECT_EQ(outcome.results.size(), lines.size());
    return outcome.results;
  }
};

json Greedy(const std::string& id, json more) {
  json request = {{"id", id}, {"temperature", 0}, {"max_tokens", 8}};
  request.update(more);
  return request;
}

TEST_F(RunText, PromptsAndMessages) {
  json message = {{"role", "user"}, {"content", "What is the capital of France?"}};
  std::vector<json> results = Run(
      {Greedy("prompt", {{"prompt", "The capital of France is"}, {"echo_prompt_token_ids", true}}),
       Greedy("messages", {{"messages", {message}}, {"max_tokens", 16}})});
  EXPECT_THAT(results[0]["choices"][0]["text"].get<std::string>(), ::testing::HasSubstr("Paris"));
  EXPECT_EQ(results[0]["prompt_token_ids"].size(), results[0]["usage"]["prompt_tokens"]);
  EXPECT_THAT(results[1]["choices"][0]["text"].get<std::string>(), ::testing::HasSubstr("Paris"));
}

// The tokens of a stop string stay in token_ids, its text does not; an EOS shows no text.
TEST_F(RunText, StopStringsAndTheEnd) {
  std::vector<json> results =
      Run({Greedy("whole", {{"prompt", "One, two, three, four,"}, {"max_tokens", 12}}),
           Greedy("stopped",
                  {{"prompt", "One, two, three, four,"}, {"max_tokens", 12}, {"stop", {" six"}}}),
           Greedy("long", {{"messages", {{{"role", "user"}, {"content", "Say hi."}}}},
                           {"max_tokens", 200}})});
  std::string whole = results[0]["choices"][0]["text"];
  size_t six = whole.find(" six");
  ASSERT_NE(six, std::string::npos) << whole;
  const json& stopped = results[1]["choices"][0];
  EXPECT_EQ(stopped["text"], whole.substr(0, six));
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["stop_reason"], " six");
  EXPECT_LT(stopped["token_ids"].size(), results[0]["choices"][0]["token_ids"].size());
  const json& ended = results[2]["choices"][0];
  ASSERT_EQ(ended["finish_reason"], "stop") << results[2];
  EXPECT_TRUE(ended["stop_reason"].is_null());
  EXPECT_EQ(ended["token_ids"].back(), 2);  // <|im_end|>
  EXPECT_EQ(ended["text"].get<std::string>().find("<|im_end|>"), std::string::npos);
}

TEST_F(RunText, ALongReadAheadOfText) {
  std::vector<json> lines;
  for (int i = 0; i < 40; ++i) {
    lines.push_back(Greedy(std::to_string(i), {{"prompt", "Hello"}, {"max_tokens", 2}}));
  }
  std::vector<json> results = Run(lines);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i]["id"], std::to_string(i));
    EXPECT_EQ(results[i]["choices"][0]["text"], results[0]["choices"][0]["text"]);
  }
}

}  // namespace
}  // namespace kvern
