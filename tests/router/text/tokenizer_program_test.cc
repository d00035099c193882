// kvern-tokenizer as a process, on the golden cases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/router/text/golden_text.h"

namespace kvern {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Outcome {
  int exit_code = -1;
  std::vector<std::string> lines;
  std::string errors;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

Outcome RunProgram(const std::string& arguments, const std::vector<std::string>& input,
                   const char* more = "") {
  const char* folder = std::getenv("KVERN_BIN_DIR");
  EXPECT_NE(folder, nullptr) << "ctest sets it to where the programs are";
  if (folder == nullptr) return {};
  const std::string base =
      ::testing::TempDir() + "tokenizer_program_test." + std::to_string(getpid());
  std::ofstream in(base + ".in", std::ios::binary);
  for (const std::string& line : input) in << line << '\n';
  in.close();
  const std::string command = std::string(folder) + "/kvern-tokenizer " + arguments + " <" + base +
                              ".in >" + base + ".out 2>" + base + ".err" + more;
  const int status = std::system(command.c_str());
  Outcome outcome;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::ifstream out(base + ".out", std::ios::binary);
  for (std::string line; std::getline(out, line);) outcome.lines.push_back(line);
  outcome.errors = ReadFile(base + ".err");
  for (const char* suffix : {".in", ".out", ".err"}) std::remove((base + suffix).c_str());
  return outcome;
}

std::string ModelOption() { return " --model '" + GoldenModelPath() + "'"; }

// The object with only the named fields, as an input line.
std::string Pick(const json& object, const std::vector<std::string>& fields) {
  json picked = json::object();
  for (const std::string& field : fields) {
    if (object.contains(field)) picked[field] = object[field];
  }
  return picked.dump();
}

TEST(TokenizerProgram, EncodesTheGoldenTexts) {
  const std::vector<json> golden = GoldenLines("tokenizer_encode.jsonl", 386);
  std::vector<std::string> input;
  for (const json& line : golden) input.push_back(Pick(line, {"text", "parse_special"}));
  const Outcome outcome = RunProgram("encode" + ModelOption(), input);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
  ASSERT_EQ(outcome.lines.size(), golden.size());
  for (size_t i = 0; i < golden.size(); ++i) {
    EXPECT_EQ(json::parse(outcome.lines[i]), (json{{"ids", golden[i]["ids"]}}));
  }
}

TEST(TokenizerProgram, AnswersThatCannotBeWrittenAreAnError) {
  const Outcome outcome = RunProgram("encode" + ModelOption(), {"{\"text\":\"a\"}"}, " >/dev/full");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("kvern-tokenizer: stdout: No space left on device"));
}

TEST(TokenizerProgram, DecodesTheGoldenIds) {
  const std::vector<json> golden = GoldenLines("tokenizer_decode.jsonl", 128);
  std::vector<std::string> input;
  for (const json& line : golden) input.push_back(Pick(line, {"ids", "skip_special"}));
  const Outcome outcome = RunProgram("decode" + ModelOption(), input);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
  ASSERT_EQ(outcome.lines.size(), golden.size());
  for (size_t i = 0; i < golden.size(); ++i) {
    EXPECT_EQ(outcome.lines[i], Pick(golden[i], {"text", "bytes_b64"}));
  }
}

TEST(TokenizerProgram, RendersTheGoldenChats) {
  const std::vector<json> golden = GoldenLines("chat_template.jsonl", 46);
  std::vector<std::string> input;
  for (const json& line : golden)
    input.push_back(Pick(line, {"messages", "add_generation_prompt"}));
  const Outcome outcome = RunProgram("chat" + ModelOption(), input);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
  ASSERT_EQ(outcome.lines.size(), golden.size());
  for (size_t i = 0; i < golden.size(); ++i) {
    const json answer = json::parse(outcome.lines[i]);
    if (golden[i].value("error", false)) {
      EXPECT_EQ(answer["error"]["code"], "invalid_argument");
      continue;
    }
    const char* own_only = "ids_user_specials_as_text";
    EXPECT_EQ(answer["prompt"], golden[i]["prompt"]);
    EXPECT_EQ(answer["ids"], golden[i][golden[i].contains(own_only) ? own_only : "ids"]);
  }
}

TEST(TokenizerProgram, ABadLineStopsNoOther) {
  const Outcome outcome = RunProgram(
      "encode" + ModelOption(),
      {"rubbish", "", R"({"text": "a", "color": 1})", R"({"text": "a", "bytes_b64": "YQ=="})",
       R"({"bytes_b64": "Y2Fm6Q=="})", R"({"bytes_b64": "?"})", "\xFF", R"({"text": "Hello"})"});
  EXPECT_EQ(outcome.exit_code, 0);
  ASSERT_EQ(outcome.lines.size(), 8u);
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(json::parse(outcome.lines[i])["error"]["code"], "invalid_argument") << i;
  }
  EXPECT_THAT(outcome.lines[2], HasSubstr("'color'"));
  EXPECT_THAT(outcome.lines[4], HasSubstr("byte 3"));
  EXPECT_EQ(outcome.lines[7], R"({"ids":[19556]})");
}

TEST(TokenizerProgram, ANamedTemplateOverrulesTheModels) {
  const Outcome outcome = RunProgram("chat --chat-template chatml" + ModelOption(),
                                     {R"({"messages": [{"role": "user", "content": "hi"}]})"});
  ASSERT_EQ(outcome.lines.size(), 1u);
  EXPECT_EQ(json::parse(outcome.lines[0])["prompt"],
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(TokenizerProgram, ExitCodes) {
  EXPECT_EQ(RunProgram("--help", {}).exit_code, 0);
  EXPECT_EQ(RunProgram("encode --model /does/not/exist.gguf", {}).exit_code, 1);
  const Outcome unknown = RunProgram("translate" + ModelOption(), {});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.errors, HasSubstr("'translate', allowed: encode, decode, chat"));
  EXPECT_EQ(RunProgram("encode", {}).exit_code, 2);
  const Outcome name = RunProgram("chat --chat-template llama3" + ModelOption(), {});
  EXPECT_EQ(name.exit_code, 2);
  EXPECT_THAT(name.errors, HasSubstr("'llama3', allowed: chatml, smollm2"));
}

}  // namespace
}  // namespace kvern
