#include "tools/lib/request_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvern {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<GenerateRequest> Parse(const char* text, bool service_fields = true) {
  RequestJsonRules rules;
  rules.service_fields = service_fields;
  rules.own_fields = {"id"};
  return ParseRequestJson(json::parse(text), rules);
}

TEST(RequestJson, ReadsEveryField) {
  auto request = Parse(R"({"id": "x", "prompt_token_ids": [1, 2, 4294967295], "max_tokens": 5,
    "temperature": 0.5, "top_k": 3, "top_p": 0.25, "min_p": 0.125, "repetition_penalty": 1.5,
    "presence_penalty": -1, "frequency_penalty": 2, "logit_bias": {"7": -100, "8": 0.5},
    "seed": 18446744073709551615, "n": 2, "stop": ["a", "b"], "stop_token_ids": [9],
    "ignore_eos": true, "min_tokens": 1, "logprobs": 0, "prompt_logprobs": 4, "class": "batch",
    "priority": -3, "ttft_deadline_ms": 10, "deadline_ms": 20, "detach_ms": 30,
    "request_id": "000102030405060708090a0b0c0d0e0f", "model": "m"})");
  ASSERT_TRUE(request.ok()) << request.status();
  GenerateRequest expected;
  expected.prompt_token_ids = {1, 2, 4294967295u};
  expected.max_tokens = 5;
  SamplingParams& sampling = expected.sampling;
  sampling.temperature = 0.5f;
  sampling.top_k = 3;
  sampling.top_p = 0.25f;
  sampling.min_p = 0.125f;
  sampling.repetition_penalty = 1.5f;
  sampling.presence_penalty = -1;
  sampling.frequency_penalty = 2;
  sampling.logit_bias = {{7, -100.0f}, {8, 0.5f}};
  expected.seed = 18446744073709551615u;
  expected.n = 2;
  expected.stop = {"a", "b"};
  sampling.stop_token_ids = {9};
  sampling.ignore_eos = true;
  sampling.min_tokens = 1;
  sampling.logprobs = 0;
  sampling.prompt_logprobs = 4;
  expected.service_class = ServiceClass::kBatch;
  expected.priority = -3;
  expected.ttft_deadline_ms = 10;
  expected.deadline_ms = 20;
  expected.detach_ms = 30;
  expected.request_id = {0x0001020304050607u, 0x08090a0b0c0d0e0fu};
  expected.model = "m";
  EXPECT_EQ(*request, expected);
}

TEST(RequestJson, ReadsText) {
  auto request = Parse(R"({"prompt": "hi"})");
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->prompt, "hi");
  request = Parse(R"({"messages": [{"role": "user", "content": "hi"}]})");
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->messages, (std::vector<ChatMessage>{{"user", "hi"}}));
}

TEST(RequestJson, NullIsAbsent) {
  auto request = Parse(R"({"prompt": null, "logprobs": null, "temperature": null, "seed": null})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(*request, GenerateRequest());
}

struct Wrong {
  const char* text;
  const char* error;
};

TEST(RequestJson, NamesWhatIsWrong) {
  const Wrong kCases[] = {
      {R"([])", "[], allowed is a JSON object"},
      {R"({"promt": "x"})", "unknown field \"promt\", allowed: id, prompt, "},
      {R"({"prompt": 5})", "prompt: 5, allowed is a string"},
      {R"({"prompt_token_ids": [1, -2]})", "prompt_token_ids: [1]: -2, allowed is a whole number"},
      {R"({"prompt_token_ids": [4294967296]})", "[0]: 4294967296, allowed"},
      {R"({"prompt_token_ids": [1.5]})", "[0]: 1.5, allowed"},
      {R"({"prompt_token_ids": {}})", "prompt_token_ids: {}, allowed is a list"},
      {R"({"max_tokens": "5"})", "max_tokens: \"5\", allowed is a whole number"},
      {R"({"max_tokens": -1})", "max_tokens: -1"},
      {R"({"max_tokens": 0})", "max_tokens: 0, allowed is a whole number from 1 to 4294967295"},
      {R"({"n": 0})", "n: 0, allowed is a whole number from 1 to 4294967295"},
      {R"({"temperature": true})", "temperature: true, allowed is a number"},
      {R"({"temperature": 1e300})", "temperature: 1e+300, allowed is a number"},
      {R"({"seed": 18446744073709551616})", "seed: 1.8446744073709552e+19"},
      {R"({"ignore_eos": 1})", "ignore_eos: 1, allowed is true or false"},
      {R"({"stop": "a"})", "stop: \"a\", allowed is a list"},
      {R"({"stop": ["a", 5]})", "stop: [1]: 5, allowed is a string"},
      {R"({"logit_bias": {"x": 1}})", "logit_bias: \"x\", allowed is a token id"},
      {R"({"logit_bias": {"4294967296": 1}})", "allowed is a token id"},
      {R"({"logit_bias": {"5": "y"}})", "logit_bias: [5]: \"y\", allowed is a number"},
      {R"({"logit_bias": [1]})", "logit_bias: [1], allowed is an object"},
      {R"({"class": "fast"})", "class: \"fast\", allowed is \"guaranteed\" or \"standard\""},
      {R"({"priority": 2147483648})", "priority: 2147483648"},
      {R"({"request_id": "12"})", "request_id: "},
      {R"({"messages": [{"role": "user"}]})", "messages: [0]: content: missing"},
      {R"({"messages": "hi"})", "messages: string, allowed is a list"},
      {R"({"logit_bias": {"01": 1}})", "logit_bias: \"01\", allowed is a token id"},
  };
  for (const Wrong& wrong : kCases) {
    absl::Status status = Parse(wrong.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.error)) << wrong.text;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("messages: messages"))) << wrong.text;
  }
}

TEST(RequestJson, RefusesTheServicesFieldsByName) {
  for (const char* name : {"class", "priority", "ttft_deadline_ms", "deadline_ms", "detach_ms",
                           "request_id", "model"}) {
    std::string text = std::string("{\"") + name + "\": null}";
    absl::Status status = Parse(text.c_str(), /*service_fields=*/false).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    EXPECT_TRUE(Parse(text.c_str()).ok()) << name;
  }
}

TEST(RequestJson, ShowsLongAndIllFormedValuesShort) {
  EXPECT_LT(ShowJson(json(std::string(1000, 'x'))).size(), 70u);
  EXPECT_THAT(ShowJson(json("\xff")), HasSubstr("ufffd"));
}

}  // namespace
}  // namespace kvern
