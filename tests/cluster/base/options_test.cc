#include "cluster/base/options.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <string>
#include <vector>

#include "cluster/base/variables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;

TEST(FormatSizeTest, IsShort) {
  EXPECT_EQ(FormatSize(0), "0 B");
  EXPECT_EQ(FormatSize(1023), "1023 B");
  EXPECT_EQ(FormatSize(1536), "1.5 KiB");
  EXPECT_EQ(FormatSize(256ull << 20), "256.0 MiB");
  EXPECT_EQ(FormatSize(9000ull << 40), "9000.0 TiB");
}

TEST(ParseSizeTest, UnitsAndRefusals) {
  EXPECT_EQ(*ParseSize("4096"), 4096u);
  EXPECT_EQ(*ParseSize("256MiB"), 256ull << 20);
  for (const char* bad : {"", "MiB", "1.5GiB", "-1", "1MB", "1 MiB", "99999999999999TiB"}) {
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
  }
  EXPECT_THAT(ParseSize("0", {.least = 1}).status().message(), HasSubstr("allowed: 1B or more"));
}

TEST(ParseDurationTest, UnitsAndRefusals) {
  EXPECT_EQ(*ParseDuration("250ms"), 250 * kMillisecond);
  EXPECT_EQ(*ParseDuration("2m"), 120 * kSecond);
  for (const char* bad : {"", "10", "s", "1.5s", "-1s", "99999999999h"}) {
    EXPECT_FALSE(ParseDuration(bad).ok()) << bad;
  }
}

// In a process of its own: what it closes, this one needs.
TEST(KeepStandardDescriptorsDeathTest, AnInputThatIsClosedIsNotTheNextFile) {
  auto look = [] {
    close(STDIN_FILENO);
    KeepStandardDescriptors();
    int file = open("/proc/self/exe", O_RDONLY);
    char byte;
    bool refused = read(STDIN_FILENO, &byte, 1) < 0 && errno == EBADF;
    _exit(file > STDERR_FILENO && refused ? 0 : 1);
  };
  EXPECT_EXIT(look(), ::testing::ExitedWithCode(0), "");
}

struct Parsed {
  std::string model;
  std::string dtype = "auto";
  int64_t tp = 1;
  uint64_t memory = 0;
  Duration wait = 0;
  bool json = false;
  std::vector<std::string> positional;
  std::string error;
};

Parsed Parse(const std::vector<std::string>& arguments, bool positional = false) {
  Parsed result;
  Options options("kvern-x", "kvern-x --model PATH");
  options.String("model", "PATH", "what to serve", &result.model);
  options.Choice("kv-dtype", {"auto", "f32"}, "KV element type", &result.dtype);
  options.Count("tp", "N", "ranks", &result.tp, 1, 64);
  options.Size("kv-memory", "bytes", &result.memory, {1 << 10, 1 << 30});
  options.Time("wait", "time", &result.wait, {10 * kMillisecond, 90 * kSecond});
  options.Flag("json", "JSON output", &result.json);
  absl::Status status = options.Parse(arguments, positional ? &result.positional : nullptr);
  result.error = std::string(status.message());
  return result;
}

TEST(OptionsTest, ReadsBothForms) {
  Parsed parsed = Parse({"--model", "a.gguf", "--tp=2", "--kv-memory", "1GiB", "--json"});
  EXPECT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.model, "a.gguf");
  EXPECT_EQ(parsed.tp, 2);
  EXPECT_EQ(parsed.memory, 1ull << 30);
  EXPECT_TRUE(parsed.json);
}

TEST(OptionsTest, RefusalsNameOptionValueAndLimit) {
  EXPECT_THAT(Parse({"--tp", "0"}).error,
              HasSubstr("--tp: '0' is not a whole number from 1 to 64"));
  EXPECT_EQ(Parse({"--kv-memory", "1023"}).error, "--kv-memory: '1023', allowed: 1KiB to 1GiB");
  EXPECT_EQ(Parse({"--kv-memory", "2GiB"}).error, "--kv-memory: '2GiB', allowed: 1KiB to 1GiB");
  EXPECT_EQ(Parse({"--wait", "9ms"}).error, "--wait: '9ms', allowed: 10ms to 90s");
  EXPECT_EQ(Parse({"--wait", "2m"}).error, "--wait: '2m', allowed: 10ms to 90s");
  EXPECT_THAT(Parse({"--kv-dtype", "int3"}).error, HasSubstr("'int3', allowed: auto, f32"));
  EXPECT_THAT(Parse({"--tenants", "x"}).error, HasSubstr("--tenants: unknown option"));
  EXPECT_THAT(Parse({"--tp"}).error, HasSubstr("needs a value"));
  EXPECT_THAT(Parse({"--json=1"}).error, HasSubstr("takes no value"));
  EXPECT_THAT(Parse({"--tp", "1", "--tp", "2"}).error, HasSubstr("given twice"));
  EXPECT_THAT(Parse({"stray"}).error, HasSubstr("unexpected argument 'stray'"));
  EXPECT_THAT(Parse({"--model", ""}).error, HasSubstr("empty"));
}

struct FromEnvironment {
  int64_t threads = 0;
  uint64_t memory = 0;
  int64_t blocks = 0;
  bool invariant = false;
  std::string error;
};

FromEnvironment ParseBoth(const std::vector<std::string>& arguments,
                          const std::map<std::string, std::string>& variables) {
  FromEnvironment result;
  Options options("kvern-x", "kvern-x");
  options.Count("threads", "N", "threads", &result.threads, 1, 64);
  options.Size("kv-memory", "bytes", &result.memory, {});
  options.Count("kv-blocks", "N", "blocks", &result.blocks, 1, 100);
  options.Flag("batch-invariant", "same bytes", &result.invariant);
  options.Exclusive("kv-memory", "kv-blocks");
  absl::Status status = options.Parse(arguments);
  if (status.ok()) {
    status = options.ParseEnvironment([&](const char* name) -> const char* {
      auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  }
  result.error = std::string(status.message());
  return result;
}

TEST(OptionsEnvironmentTest, TheCommandLineWins) {
  FromEnvironment read =
      ParseBoth({"--threads", "3"}, {{"KVERN_THREADS", "4"}, {"KVERN_KV_MEMORY", "1MiB"}});
  EXPECT_EQ(read.error, "");
  EXPECT_EQ(read.threads, 3);
  EXPECT_EQ(read.memory, 1u << 20);
  // Not even looked at.
  EXPECT_EQ(ParseBoth({"--threads", "3"}, {{"KVERN_THREADS", "many"}}).error, "");
  EXPECT_EQ(ParseBoth({}, {{"KVERN_THREADS", ""}}).error, "");
}

TEST(OptionsEnvironmentTest, OneOnTheCommandLineSilencesWhatItExcludes) {
  FromEnvironment read = ParseBoth({"--kv-memory", "1MiB"}, {{"KVERN_KV_BLOCKS", "7"}});
  EXPECT_EQ(read.error, "");
  EXPECT_EQ(read.blocks, 0);
  EXPECT_THAT(ParseBoth({}, {{"KVERN_KV_MEMORY", "1MiB"}, {"KVERN_KV_BLOCKS", "7"}}).error,
              HasSubstr("--kv-blocks: not together with --kv-memory"));
  EXPECT_THAT(ParseBoth({"--kv-blocks", "7", "--kv-memory", "1MiB"}, {}).error,
              HasSubstr("--kv-blocks: not together with --kv-memory"));
}

TEST(OptionsEnvironmentTest, FlagsAreOneOrZero) {
  EXPECT_TRUE(ParseBoth({}, {{"KVERN_BATCH_INVARIANT", "1"}}).invariant);
  EXPECT_FALSE(ParseBoth({}, {{"KVERN_BATCH_INVARIANT", "0"}}).invariant);
  EXPECT_EQ(ParseBoth({}, {{"KVERN_BATCH_INVARIANT", "yes"}}).error,
            "KVERN_BATCH_INVARIANT: 'yes', allowed: 0, 1");
}

TEST(OptionsEnvironmentTest, RefusalsNameTheVariable) {
  EXPECT_EQ(ParseBoth({}, {{"KVERN_THREADS", "0"}}).error,
            "KVERN_THREADS: '0' is not a whole number from 1 to 64");
}

TEST(VariablesTest, SlipsAreKnownByWhatTheyLookLike) {
  auto unknown = UnknownVariables({"KVERN_KV_MEMORY", "KVERN_TEST_ANY", "PATH", "KVERN_KV_BLOKCS",
                                   "KVERN_PORT_5570_TCP", "KVERN_ROUTER_SERVICE_HOST", "KVERN_TPP",
                                   "KVERN_XY", "KVERNX"});
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const UnknownVariable& each : unknown) pairs.emplace_back(each.name, each.nearest);
  EXPECT_THAT(pairs, ::testing::ElementsAre(::testing::Pair("KVERN_KV_BLOKCS", "KVERN_KV_BLOCKS"),
                                            ::testing::Pair("KVERN_TPP", "KVERN_TP"),
                                            ::testing::Pair("KVERN_XY", "")));
}

TEST(OptionsTest, PositionalOnlyWhereWanted) {
  EXPECT_EQ(Parse({"encode"}, true).positional, std::vector<std::string>{"encode"});
}

}  // namespace
}  // namespace kvern
