// kvern-run on tiny models, which have no tokenizer.
#include "tests/tools/run/run_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <utility>

namespace kvern {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::vector<std::string> Arguments(std::vector<std::string> more = {},
                                   const char* kv_blocks = "100") {
  std::vector<std::string> arguments = {"--model",     "tests/golden/tiny/llama_9h_3kv",
                                        "--kv-dtype",  "f32",
                                        "--kv-blocks", kv_blocks,
                                        "--threads",   "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

json Request(const std::string& id, size_t prompt_tokens, json more = json::object()) {
  json request = {{"id", id}, {"prompt_token_ids", json::array()}, {"max_tokens", 10}, {"seed", 3}};
  for (size_t i = 0; i < prompt_tokens; ++i) {
    request["prompt_token_ids"].push_back((i * 29 + id.size() * 7 + 3) % 300);
  }
  request.update(more);
  return request;
}

// What must not depend on the batch: everything but the times.
json WithoutTimes(json result) {
  if (result.contains("usage")) {
    for (const char* name : {"queue_ms", "ttft_ms", "tpot_ms", "itl_ms_max"}) {
      EXPECT_TRUE(result["usage"][name].is_number()) << name;
      result["usage"].erase(name);
    }
  }
  return result;
}

TEST(RunProgram, FollowsTheReference) {
  std::ifstream in("tests/golden/tiny/llama_9h_3kv/golden.json");
  json golden = json::parse(in);
  std::vector<json> lines;
  for (const json& each : golden["cases"]) {
    lines.push_back({{"id", std::to_string(lines.size())},
                     {"prompt_token_ids", each["ids"]},
                     {"max_tokens", each["greedy"].size()},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"logprobs", 0}});
  }
  for (const char* tp : {"1", "2", "3"}) {
    RunOutcome outcome = RunLines(Arguments({"--tp", tp}), lines);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
    ASSERT_EQ(outcome.results.size(), lines.size()) << outcome.errors;
    for (size_t i = 0; i < lines.size(); ++i) {
      ASSERT_EQ(outcome.results[i]["id"], lines[i]["id"]);
      const json& choice = outcome.results[i]["choices"].at(0);
      const json& greedy = golden["cases"][i]["greedy"];
      for (size_t step = 0; step < greedy.size() && greedy[step]["gap"] >= 1e-2; ++step) {
        ASSERT_EQ(choice["token_ids"][step], greedy[step]["id"]) << "case " << i << ", tp " << tp;
        EXPECT_NEAR(choice["logprobs"][step]["logprob"].get<double>(),
                    greedy[step]["logprob"].get<double>(), 1e-3);
      }
    }
  }
}

TEST(RunProgram, SaysAllThatTheFormatPromises) {
  RunOutcome outcome = RunLines(
      Arguments(), {Request("a", 5, {{"n", 2}, {"logprobs", 3}, {"echo_prompt_token_ids", true}})});
  ASSERT_EQ(outcome.results.size(), 1u) << outcome.errors;
  json result = WithoutTimes(outcome.results[0]);
  EXPECT_EQ(result["seed"], 3);
  EXPECT_EQ(result["prompt_token_ids"].size(), 5u);
  EXPECT_FALSE(result.contains("prompt_logprobs"));
  EXPECT_EQ(result["usage"],
            (json{{"prompt_tokens", 5}, {"completion_tokens", 20}, {"cached_tokens", 0}}));
  ASSERT_EQ(result["choices"].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const json& choice = result["choices"][i];
    EXPECT_EQ(choice["index"], i);
    EXPECT_TRUE(choice["text"].is_null());
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_TRUE(choice["stop_reason"].is_null());
    ASSERT_EQ(choice["token_ids"].size(), 10u);
    ASSERT_EQ(choice["logprobs"].size(), 10u);
    EXPECT_EQ(choice["logprobs"][4]["token_id"], choice["token_ids"][4]);
    EXPECT_EQ(choice["logprobs"][4]["top"].size(), 3u);
  }
  EXPECT_NE(result["choices"][0]["token_ids"], result["choices"][1]["token_ids"]);
}

TEST(RunProgram, StopIdsEndAChoiceAndStayInIt) {
  json whole = RunLines(Arguments(), {Request("a", 9)}).results.at(0);
  json ids = whole["choices"][0]["token_ids"];
  json request = Request("a", 9, {{"stop_token_ids", {ids[4]}}});
  json stopped = RunLines(Arguments(), {request}).results.at(0)["choices"][0];
  size_t length = stopped["token_ids"].size();
  ASSERT_LE(length, 5u);  // the id may come earlier as well
  EXPECT_EQ(stopped["token_ids"].back(), ids[4]);
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["stop_reason"], ids[4]);
}

// More requests than are read ahead, in any batch: the same bytes, in the order of the input.
TEST(RunProgram, TheBatchDoesNotShow) {
  std::vector<json> lines;
  for (size_t i = 0; i < 1500; ++i) {
    lines.push_back(Request("request " + std::to_string(i % 40), 1 + i % 40, {{"max_tokens", 3}}));
  }
  RunOutcome all = RunLines(Arguments(), lines);
  EXPECT_EQ(all.exit_code, 0) << all.errors;
  ASSERT_EQ(all.results.size(), lines.size());
  std::vector<json> first(lines.begin(), lines.begin() + 40);
  RunOutcome some = RunLines(Arguments({"--max-batch-tokens", "5"}, "10"), first);
  ASSERT_EQ(some.results.size(), 40u) << some.errors;
  for (size_t i = 0; i < lines.size(); ++i) {
    ASSERT_EQ(WithoutTimes(all.results[i]), WithoutTimes(some.results[i % 40])) << "line " << i;
  }
}

TEST(RunProgram, AnswersEachLineAsSoonAsItCan) {
  RunProgram program(Arguments());
  program.Write(Request("first", 4).dump());
  EXPECT_EQ(program.ReadResult()["id"], "first");  // while the input is still open
  program.Write("{}");
  EXPECT_TRUE(program.ReadResult()["id"].is_null());
  program.Write(Request("second", 4).dump());
  EXPECT_EQ(program.ReadResult()["id"], "second");
  program.CloseInput();
  EXPECT_TRUE(program.ReadResult().is_null());
  EXPECT_EQ(program.Wait(), 0);
}

TEST(RunProgram, OneBadLineNeverStopsTheOthers) {
  RunOutcome outcome = RunLines(
      Arguments(),
      {"rubbish", "[1]", R"({"id": "x", "prompt": "\udc00"})", "", json{{"id", "no input"}},
       Request("two inputs", 3, {{"prompt", "x"}}), Request("unknown", 3, {{"frobnicate", 1}}),
       Request("service", 3, {{"deadline_ms", 5}}), Request("text", 3, {{"stop", {"x"}}}),
       Request("vocabulary", 3, {{"prompt_token_ids", {320}}}),
       Request("long", 3, {{"max_tokens", 510}}),
       Request("wide", 100, {{"max_tokens", 400}, {"n", 8}}),
       Request("temperature", 3, {{"temperature", -1}}),
       Request("prompt_logprobs", 3, {{"prompt_logprobs", 1}}), Request("good", 3)});
  EXPECT_EQ(outcome.exit_code, 0);
  const std::pair<json, const char*> kExpected[] = {{nullptr, "invalid_argument"},
                                                    {nullptr, "invalid_argument"},
                                                    {nullptr, "invalid_argument"},
                                                    {"no input", "invalid_argument"},
                                                    {"two inputs", "invalid_argument"},
                                                    {"unknown", "invalid_argument"},
                                                    {"service", "unsupported_parameter"},
                                                    {"text", "unsupported_parameter"},
                                                    {"vocabulary", "invalid_argument"},
                                                    {"long", "never_fits"},
                                                    {"wide", "never_fits"},
                                                    {"temperature", "invalid_argument"},
                                                    {"prompt_logprobs", "unsupported_parameter"}};
  ASSERT_EQ(outcome.results.size(), std::size(kExpected) + 1) << outcome.errors;
  for (size_t i = 0; i < std::size(kExpected); ++i) {
    EXPECT_EQ(outcome.results[i]["id"], kExpected[i].first) << outcome.results[i];
    EXPECT_EQ(outcome.results[i]["error"]["code"], kExpected[i].second) << outcome.results[i];
  }
  EXPECT_EQ(outcome.results.back()["id"], "good");
  EXPECT_TRUE(outcome.results.back().contains("choices"));
  // floor(100 / 16) + 8 * ceil((4 + 400) / 16) = 214, of 100.
  json details = outcome.results[10]["error"]["details"];
  EXPECT_EQ(details["needed_blocks"], 214);
  EXPECT_EQ(details["available_blocks"], 100);
  // With 8 choices of this prompt: 6 + 8 * ceil((4 + 172) / 16) = 94.
  EXPECT_EQ(details["largest_total_tokens"], 100 + 172);
  EXPECT_EQ(details["needed_total_tokens"], 100 + 400);
}

TEST(RunProgram, AModelThatCannotBeServedIsExitOne) {
  RunOutcome outcome = RunLines({"--model", "tests/golden/tiny/none", "--kv-blocks", "5"}, {});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("tests/golden/tiny/none"));
  outcome = RunLines(Arguments({"--tp", "4"}), {});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("kvern-run: "));
  outcome = RunLines(Arguments({"--chat-template", "chatml"}), {});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("--chat-template"));
}

TEST(RunProgram, AWrongCommandLineIsExitTwo) {
  EXPECT_EQ(RunLines({}, {}).exit_code, 2);
  EXPECT_EQ(RunLines(Arguments({"--device", "gpu"}), {}).exit_code, 2);
  EXPECT_EQ(RunLines(Arguments({"--kv-memory", "1GiB"}), {}).exit_code, 2);
  EXPECT_EQ(RunLines(Arguments({"--tp", "0"}), {}).exit_code, 2);
}

}  // namespace
}  // namespace kvern
