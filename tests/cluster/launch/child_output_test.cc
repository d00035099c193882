#include "cluster/launch/child_output.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvern {
namespace {

std::vector<std::string> Lines(ChildOutput& output, std::string_view bytes, Time now) {
  std::vector<std::string> lines;
  output.Append(bytes, now, [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

TEST(ErrorText, KnowsErrorsFromOtherLines) {
  EXPECT_EQ(ErrorText("kvern-worker: a.gguf: cut off"), "a.gguf: cut off");
  EXPECT_EQ(ErrorText("kvern-worker: error lost_router after_ms=5"), "lost_router after_ms=5");
  EXPECT_EQ(ErrorText("kvern-worker: info loaded seconds=1"), "");
  EXPECT_EQ(ErrorText("kvern-worker: warning slow"), "");
  EXPECT_EQ(ErrorText("weights 1.2 s: fine"), "");
  EXPECT_EQ(ErrorText("a/b.cc:3: check failed: x == y (1 vs 2) "),
            "a/b.cc:3: check failed: x == y (1 vs 2) ");
  EXPECT_EQ(
      ErrorText(R"({"time_ms":1,"level":"error","process":"kvern-worker","event":"died","n":3})"),
      "died n=3");
  EXPECT_EQ(ErrorText(R"({"level":"info","event":"fine"})"), "");
  EXPECT_EQ(ErrorText(R"({"level":)"), "");
}

TEST(ChildOutput, SplitsLinesOverReads) {
  ChildOutput output;
  EXPECT_EQ(Lines(output, "one\ntw", 1), (std::vector<std::string>{"one"}));
  EXPECT_EQ(Lines(output, "o\n\n", 2), (std::vector<std::string>{"two", ""}));
  EXPECT_EQ(output.FirstError(), "two");  // no error: the last that was said
  EXPECT_EQ(output.first_error_time(), kTimeMax);
}

TEST(ChildOutput, KeepsTheFirstError) {
  ChildOutput output;
  Lines(output, "kvern-worker: info x\nkvern-worker: the cause\n", 7);
  Lines(output, "kvern-worker: the consequence\n", 9);
  EXPECT_EQ(output.FirstError(), "the cause");
  EXPECT_EQ(output.first_error_time(), 7);
}

TEST(ChildOutput, LastWordsAreHeldBackAndSaidUnlessTheyWereTold) {
  ChildOutput output;
  EXPECT_EQ(Lines(output, "kvern-worker: error a log line\n", 1).size(), 1u);
  EXPECT_EQ(output.held_until(), kTimeMax);
  EXPECT_TRUE(Lines(output, "kvern-worker: group-0 rank 1: the cause\nmore\n", 5).empty());
  EXPECT_TRUE(Lines(output, "kvern-worker: the cause\nkvern-worker: else\n", 6).empty());
  EXPECT_EQ(output.held_until(), 5 + kLastWordsHeld);
  std::vector<std::string> lines;
  auto sink = [&](std::string_view line) { lines.emplace_back(line); };
  output.LetGoOld(4 + kLastWordsHeld, "group-0 rank 1", {}, sink);
  EXPECT_TRUE(lines.empty());
  output.LetGo("group-0 rank 1", {"", "group-0 rank 0: the cause"}, sink);
  EXPECT_EQ(lines, (std::vector<std::string>{"more", "kvern-worker: else"}));
  lines.clear();
  // Who takes longer to die than they are held back says them no more often.
  EXPECT_TRUE(Lines(output, "kvern-worker: again\nkvern-worker: the cause\n", 5).empty());
  output.LetGoOld(5 + kLastWordsHeld, "group-0 rank 1", {"group-0 rank 0: the cause"}, sink);
  EXPECT_EQ(lines, std::vector<std::string>{"kvern-worker: again"});
  // One that says more goes on.
  EXPECT_EQ(Lines(
                output,
                [] {
                  std::string many;
                  for (size_t i = 0; i <= kMaxLastWords; ++i) many += "kvern-worker: x\n";
                  return many;
                }(),
                9)
                .size(),
            kMaxLastWords + 1);
}

TEST(ChildOutput, BoundsALine) {
  ChildOutput output;
  std::vector<std::string> lines = Lines(output, std::string(100'000, 'x') + "\nend\n", 1);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].size(), kMaxOutputLine);
  EXPECT_EQ(lines[1], "end");
}

TEST(DeathReason, SaysSignalAndError) {
  ChildOutput silent;
  EXPECT_EQ(DeathReason({false, 3}, silent), "exited with status 3");
  EXPECT_EQ(DeathReason({true, 9}, silent), "killed by signal 9 (Killed)");
  ChildOutput spoke;
  Lines(spoke, "x.cc:1: check failed: a\n", 1);
  EXPECT_EQ(DeathReason({true, 6}, spoke), "killed by signal 6 (Aborted): x.cc:1: check failed: a");
  ChildOutput harmless;
  Lines(harmless, "kvern-worker: info step\n", 1);
  EXPECT_EQ(DeathReason({true, 9}, harmless), "killed by signal 9 (Killed)");
  EXPECT_EQ(DeathReason({false, 0}, harmless),
            "exited with status 0 before this launcher was told to end");
}

}  // namespace
}  // namespace kvern
