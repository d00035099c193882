#include "router/io/text_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cluster/base/clock.h"
#include "router/io/text_filters.h"
#include "tests/cluster/base/no_more_threads.h"
#include "tests/router/text/small_vocab.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;

class TextPoolTest : public ::testing::Test {
 protected:
  TextPoolTest() : tokenizer_(Tokenizer::Create(SmallVocab("gpt-2")).value()) {}

  std::vector<Tokenized> TakeAll(TextPool& pool, size_t count) {
    Poller poller;
    poller.AddFd(wake_.fd());
    std::vector<Tokenized> all;
    Time end = MonotonicNow() + 20 * kSecond;
    while (all.size() < count && MonotonicNow() < end) {
      EXPECT_TRUE(poller.Wait(end - MonotonicNow()).ok());
      wake_.Clear();
      for (Tokenized& one : pool.Take()) all.push_back(std::move(one));
    }
    return all;
  }

  Tokenizer tokenizer_;
  WakeUp wake_ = WakeUp::Create().value();
};

TEST_F(TextPoolTest, ASystemWithoutThreadsIsAnError) {
  TextPool pool(&tokenizer_, ChatTemplate::ByName("chatml"), &wake_);
  NoMoreThreads none;
  absl::Status status = pool.Start(2);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot start another thread"));
}

TEST_F(TextPoolTest, EveryJobIsAnsweredOnce) {
  TextPool pool(&tokenizer_, ChatTemplate::ByName("chatml"), &wake_);
  ASSERT_TRUE(pool.Start(3).ok());
  for (uint64_t i = 0; i < 100; ++i) pool.Submit({{0, i}, std::string(i + 1, 'b')});
  std::set<uint64_t> seen;
  for (const Tokenized& answer : TakeAll(pool, 100)) {
    EXPECT_EQ(answer.error, ErrorCode::kNone) << answer.message;
    EXPECT_EQ(answer.ids.size(), answer.request_id.low + 1);
    seen.insert(answer.request_id.low);
  }
  EXPECT_EQ(seen.size(), 100u);
}

TEST_F(TextPoolTest, ErrorsNameTheirCause) {
  TextPool pool(&tokenizer_, FailedPrecondition("no template; give --chat-template"), &wake_);
  ASSERT_TRUE(pool.Start(1).ok());
  pool.Submit({{0, 1}, std::vector<ChatMessage>{{"user", "hi"}}});
  pool.Submit({{0, 2}, std::string("\xFF")});
  std::vector<Tokenized> answers = TakeAll(pool, 2);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].error, ErrorCode::kInvalidArgument);
  EXPECT_THAT(answers[0].message, HasSubstr("--chat-template"));
  EXPECT_EQ(answers[1].error, ErrorCode::kInvalidArgument);
  EXPECT_THAT(answers[1].message, HasSubstr("byte 0"));
}

TEST_F(TextPoolTest, MoreIdsThanMayBeUsedAreNotCounted) {
  TextPool pool(&tokenizer_, ChatTemplate::ByName("chatml"), &wake_);
  ASSERT_TRUE(pool.Start(1).ok());
  Tokenize text{{0, 1}, std::string("bcbcb")};
  text.max_ids = 5;
  pool.Submit(text);
  text.max_ids = 4;
  text.request_id = {0, 2};
  pool.Submit(text);
  text.input = std::vector<ChatMessage>{{"user", "bcbcb"}};
  text.request_id = {0, 3};
  pool.Submit(text);
  std::vector<Tokenized> answers = TakeAll(pool, 3);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].error, ErrorCode::kNone);
  EXPECT_EQ(answers[1].error, ErrorCode::kNeverFits);
  EXPECT_EQ(answers[2].error, ErrorCode::kNeverFits);
}

// Those that a thread has begun are answered with their ids, the others at once.
TEST_F(TextPoolTest, WhatIsWithdrawnIsAnsweredOnce) {
  TextPool pool(&tokenizer_, ChatTemplate::ByName("chatml"), &wake_);
  for (uint64_t i = 0; i < 100; ++i) pool.Submit({{0, i}, std::string(1000, 'b')});
  for (uint64_t i = 0; i < 100; i += 2) pool.Withdraw({0, i});
  pool.Withdraw({0, 0});
  std::vector<Tokenized> gone = TakeAll(pool, 50);
  ASSERT_EQ(gone.size(), 50u);
  for (const Tokenized& answer : gone) {
    EXPECT_EQ(answer.request_id.low % 2, 0u);
    EXPECT_EQ(answer.error, ErrorCode::kCancelled);
  }
  ASSERT_TRUE(pool.Start(1).ok());
  std::vector<Tokenized> rest = TakeAll(pool, 50);
  ASSERT_EQ(rest.size(), 50u);
  for (const Tokenized& answer : rest) EXPECT_EQ(answer.ids.size(), 1000u);
}

Tokenize Job(uint64_t id, uint32_t tenant, size_t bytes, uint32_t weight = 1, uint8_t band = 0) {
  return {{0, id}, std::string(bytes, 'b'), tenant, weight, band};
}

std::vector<uint32_t> TenantsInOrder(TextJobs& jobs) {
  std::vector<uint32_t> order;
  while (!jobs.empty()) order.push_back(jobs.Pop().tenant);
  return order;
}

TEST(TextJobs, LargeTextsOfOneTenantDelayAnotherByOneOfThem) {
  TextJobs jobs;
  for (uint64_t i = 0; i < 10; ++i) jobs.Push(Job(i, 1, 1'000'000));
  EXPECT_EQ(jobs.Pop().tenant, 1u);
  for (uint64_t i = 100; i < 120; ++i) jobs.Push(Job(i, 2, 1000));
  std::vector<uint32_t> order = TenantsInOrder(jobs);
  EXPECT_LE(std::ranges::count(order.begin(), std::ranges::find(order, 2u) + 20, 1u), 1);
}

TEST(TextJobs, WhoComesBackStillHasWhatItHad) {
  TextJobs jobs;
  for (uint64_t i = 0; i < 8; ++i) jobs.Push(Job(i, 2, 1000));
  for (uint64_t i = 100; i < 106; ++i) {
    jobs.Push(Job(i, 1, 1'000'000));
    int others = 0;
    while (!jobs.empty() && jobs.Pop().tenant == 2) ++others;
    EXPECT_EQ(others, i == 100 ? 0 : i == 101 ? 8 : 0) << i;
  }
}

TEST(TextJobs, BandsAreStrictAndWeightsShare) {
  TextJobs jobs;
  for (uint64_t i = 0; i < 40; ++i) {
    jobs.Push(Job(i, 1, 1000));
    jobs.Push(Job(100 + i, 2, 1000, /*weight=*/3));
  }
  jobs.Push(Job(1000, 3, 1'000'000, 1, /*band=*/5));
  EXPECT_EQ(jobs.Pop().tenant, 3u);
  int heavy = 0;
  for (int i = 0; i < 40; ++i) heavy += jobs.Pop().tenant == 2 ? 1 : 0;
  EXPECT_NEAR(heavy, 30, 1);
}

TEST(TextJobs, OneTenantsAreTakenByAge) {
  TextJobs jobs;
  for (uint64_t i = 0; i < 5; ++i) jobs.Push(Job(i, 1, 1000 - i));
  EXPECT_TRUE(jobs.Remove({0, 0}));
  EXPECT_FALSE(jobs.Remove({0, 0}));
  EXPECT_TRUE(jobs.Remove({0, 2}));
  for (uint64_t id : {1u, 3u, 4u}) EXPECT_EQ(jobs.Pop().request_id.low, id);
  EXPECT_TRUE(jobs.empty());
  jobs.Push(Job(9, 1, 10));
  EXPECT_TRUE(jobs.Remove({0, 9}));
  EXPECT_TRUE(jobs.empty());
}

TEST_F(TextPoolTest, ItEndsWithJobsLeft) {
  TextPool pool(&tokenizer_, ChatTemplate::ByName("chatml"), &wake_);
  ASSERT_TRUE(pool.Start(1).ok());
  for (uint64_t i = 0; i < 1000; ++i) pool.Submit({{0, i}, std::string(1000, 'b')});
}

TEST(TextFiltersTest, TheHiddenLastTokenShowsNoTextAndIsKept) {
  Tokenizer tokenizer = Tokenizer::Create(SmallVocab("gpt-2")).value();
  auto filters = MakeTextFilters(&tokenizer);
  auto filter = filters->NewFilter({}, 0);
  const uint32_t ids[] = {97, 98};
  TextFilter::Piece piece = filter->Append(ids, /*final=*/true, /*hidden_last=*/true);
  EXPECT_EQ(piece.text, "a");
  EXPECT_EQ(piece.tokens_kept, 2u);
  EXPECT_FALSE(piece.stopped);
}

TEST(TextFiltersTest, AStopStringBeforeTheHiddenTokenWins) {
  Tokenizer tokenizer = Tokenizer::Create(SmallVocab("gpt-2")).value();
  auto filters = MakeTextFilters(&tokenizer);
  auto filter = filters->NewFilter({"ab"}, 0);
  const uint32_t ids[] = {120, 97, 98, 99, 264};
  TextFilter::Piece piece = filter->Append(ids, /*final=*/true, /*hidden_last=*/true);
  EXPECT_EQ(piece.text, "x");
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(piece.stop_string, "ab");
  EXPECT_EQ(piece.tokens_kept, 3u);
}

TEST(TextFiltersTest, AStopStringWithinMinTokensIsText) {
  Tokenizer tokenizer = Tokenizer::Create(SmallVocab("gpt-2")).value();
  auto filters = MakeTextFilters(&tokenizer);
  auto filter = filters->NewFilter({"b"}, 2);
  const uint32_t ids[] = {97, 98, 97, 98};
  TextFilter::Piece piece = filter->Append(ids, /*final=*/false, /*hidden_last=*/false);
  EXPECT_EQ(piece.text, "aba");
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(piece.tokens_kept, 4u);
}

}  // namespace
}  // namespace kvern
