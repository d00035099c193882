// The parts of the router that stand alone, at their edges.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/core/clients.h"
#include "router/core/groups.h"
#include "router/core/kept_deltas.h"
#include "router/core/ledger.h"
#include "router/core/pool_blocks.h"
#include "router/core/timers.h"
#include "router/core/validate.h"
#include "router/core/wait_queue.h"

namespace kvern::router {
namespace {

Delta Piece(uint32_t choice, uint32_t position, size_t tokens) {
  Delta delta;
  delta.choice = choice;
  delta.position = position;
  delta.token_ids.assign(tokens, 5);
  delta.text = std::string(tokens, 'f');
  delta.logprobs.assign(tokens, {5, -0.5f, {{5, -0.5f}}});
  return delta;
}

TEST(KeptDeltas, GrowIntoChunksByChoice) {
  KeptDeltas kept(16, /*max_chunk=*/4);
  uint64_t one = BytesOf(Piece(0, 0, 1));
  for (uint32_t i = 0; i < 3; ++i) {
    kept.Add(Piece(0, i, 1));
    kept.Add(Piece(1, i, 1));
  }
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_LT(kept.bytes(), 6 * one);
  kept.Add(Piece(0, 3, 2));  // does not fit into a chunk of three
  Delta last = Piece(1, 3, 1);
  last.finish_reason = FinishReason::kStop;
  last.stop_reason = std::string("ff");
  kept.Add(std::move(last));
  kept.Add(Piece(0, 5, 9));  // one that is larger stays whole
  ASSERT_EQ(kept.size(), 4u);

  uint64_t sum = 0;
  for (size_t i = 0; i < kept.size(); ++i) sum += BytesOf(kept.at(i));
  EXPECT_EQ(kept.bytes(), sum);
  EXPECT_EQ(kept.PopFront(), Piece(0, 0, 3));
  Delta second = Piece(1, 0, 4);
  second.finish_reason = FinishReason::kStop;
  second.stop_reason = std::string("ff");
  EXPECT_EQ(kept.PopFront(), second);
  EXPECT_EQ(kept.PopFront(), Piece(0, 3, 2));
  EXPECT_EQ(kept.PopFront(), Piece(0, 5, 9));
  EXPECT_EQ(kept.bytes(), 0u);
  EXPECT_TRUE(kept.empty());
}

// However many tokens a chunk may have, it fits into one message.
TEST(KeptDeltas, AChunkFitsIntoAMessage) {
  constexpr uint32_t kTokens = 10'000;
  const uint64_t some = BytesOf(Piece(0, 0, kTokens));
  const auto pieces = static_cast<uint32_t>(3 * kMaxDeltasBytes / some);
  KeptDeltas kept(1000, /*max_chunk=*/1u << 30);
  for (uint32_t i = 0; i < pieces; ++i) kept.Add(Piece(0, i * kTokens, kTokens));
  EXPECT_GT(kept.size(), 1u);
  EXPECT_LT(kept.size(), pieces);
  uint32_t position = 0;
  while (!kept.empty()) {
    Delta chunk = kept.PopFront();
    EXPECT_LE(BytesOf(chunk), kMaxDeltasBytes);
    EXPECT_EQ(chunk.position, position);
    position += static_cast<uint32_t>(chunk.token_ids.size());
  }
  EXPECT_EQ(position, pieces * kTokens);
}

TEST(PoolBlocks, Case11FitOnlyWhereTheyFitInEachPool) {
  using Two = BlocksOf<2>;
  Two room = 10;
  room.of(1) = 4;
  Two need = 10;
  EXPECT_TRUE(need.Within(room));
  need.of(1) = 5;
  EXPECT_FALSE(need.Within(room));  // what is free of the first is no use to the second
  need = 11;
  need.of(1) = 1;
  EXPECT_FALSE(need.Within(room));
  Two sum = need + room;
  EXPECT_EQ(sum.tokens_pool(), 21u);
  EXPECT_EQ(sum.of(1), 5u);
  EXPECT_EQ(Larger(need, room), [] {
    Two both = 11;
    both.of(1) = 4;
    return both;
  }());
  EXPECT_EQ(Smaller(need, room), [] {
    Two both = 10;
    both.of(1) = 1;
    return both;
  }());
  EXPECT_EQ(sum.Percent(50).tokens_pool(), 10u);
  EXPECT_EQ(sum.Percent(50).of(1), 2u);
  sum -= room;
  EXPECT_EQ(sum, need);
  EXPECT_DEATH(sum -= room, "10\\+4 of 11\\+1");
}

TEST(Ledger, ReservesUpToItsTotalAndNoFurther) {
  Ledger ledger(10);
  ledger.Reserve(1, 4, /*guaranteed=*/true);
  ledger.Reserve(1, 6, /*guaranteed=*/true);
  EXPECT_EQ(ledger.guaranteed(), 10u);
  EXPECT_DEATH(ledger.Reserve(2, 1, /*guaranteed=*/true), "check failed");
}

TEST(Ledger, StandardWorstCasesMayExceedTheTotalTogetherButNotAlone) {
  Ledger ledger(10);
  ledger.Reserve(1, 8, /*guaranteed=*/false);
  ledger.Reserve(1, 8, /*guaranteed=*/false);
  EXPECT_EQ(ledger.worst_case(), 16u);
  EXPECT_EQ(ledger.guaranteed(), 0u);
  EXPECT_DEATH(ledger.Reserve(2, 11, /*guaranteed=*/false), "check failed");
}

TEST(Ledger, DriftCountsOnlyWhatTheWorkerHasSeen) {
  Ledger ledger(10);
  ledger.Reserve(1, 4, true);
  ledger.Reserve(2, 3, false);
  EXPECT_EQ(ledger.Drift(0), 0);  // nothing acknowledged yet
  ledger.Acknowledge(1);
  EXPECT_EQ(ledger.Drift(4), 0);
  EXPECT_EQ(ledger.Drift(3), 1);  // the worker holds less than it was sent
  ledger.Acknowledge(2);
  EXPECT_EQ(ledger.Drift(7), 0);
  EXPECT_EQ(ledger.Drift(8), -1);  // and more
  ledger.Release(4, true);
  EXPECT_EQ(ledger.Drift(3), 0);
}

TEST(Ledger, WhatIsInFlightCannotBeReleased) {
  Ledger ledger(10);
  ledger.Reserve(1, 4, true);
  EXPECT_DEATH(ledger.Release(4, true), "check failed");
}

TEST(Unanswered, WhatIsDoneOfTheOthersCountsWhenOneHasItsFirstToken) {
  Unanswered prompts;
  prompts.Add(200);
  prompts.Add(10);
  prompts.Settle(64);
  EXPECT_EQ(prompts.Left(64), 146u);
  prompts.GotToken(10, /*n=*/1);
  prompts.Settle(64);
  EXPECT_EQ(prompts.Left(64), 146u);
  prompts.Add(30);
  EXPECT_EQ(prompts.Left(200), 40u);
  prompts.GotToken(30, /*n=*/3);  // its last token was computed three times
  prompts.Settle(236);
  EXPECT_EQ(prompts.Left(236), 6u);
}

TEST(Unanswered, WhatCannotBeKnownCountsAsNotDone) {
  Unanswered prompts;
  prompts.Add(200);
  prompts.Add(100);
  prompts.Settle(150);
  prompts.Drop(200);  // cancelled: nobody says how much of the 150 was its own
  prompts.Settle(160);
  EXPECT_EQ(prompts.Left(160), 100u);
  EXPECT_EQ(prompts.Left(1000), 0u);
  EXPECT_EQ(prompts.Left(0), 100u);
  prompts.GotToken(100, 1);  // more than was reported
  prompts.Settle(200);
  prompts.Add(50);
  EXPECT_EQ(prompts.Left(210), 40u);
}

TEST(WaitQueue, IsBoundedInEntriesAndBytes) {
  WaitQueue queue(2, 100);
  Request a, b;
  EXPECT_FALSE(queue.HasRoom(101));
  EXPECT_TRUE(queue.HasRoom(100));
  queue.TakeRoom(a, 60);
  EXPECT_TRUE(queue.HasRoom(40));
  EXPECT_FALSE(queue.HasRoom(41));
  queue.TakeRoom(b, 40);
  EXPECT_FALSE(queue.HasRoom(0));  // two entries
  EXPECT_FALSE(queue.ResizeRoom(b, 41));
  EXPECT_EQ(queue.bytes(), 100u);
  EXPECT_TRUE(queue.ResizeRoom(b, 10));
  queue.GiveRoomBack(a);
  EXPECT_EQ(queue.bytes(), 10u);
  EXPECT_EQ(queue.entries(), 1u);
}

TEST(Quota, ComesBackInAMinuteHoweverOftenItIsLookedAt) {
  TenantConfig config;
  config.block_seconds_per_minute = 60;
  Tenant tenant(config);
  Time now = kSecond;
  RefillQuota(tenant, now);
  EXPECT_EQ(QuotaDebt(tenant), 0);
  UseQuota(tenant, 6, 20 * kSecond, now);  // a minute's and as much again
  Duration debt = QuotaDebt(tenant);
  EXPECT_GE(debt, 60 * kSecond);
  EXPECT_LE(debt, 60 * kSecond + 10 * kMillisecond);
  for (Time end = now + debt - 10 * kMillisecond; now < end; now += kMillisecond / 3) {
    RefillQuota(tenant, now);
    ASSERT_GT(QuotaDebt(tenant), 0);
  }
  RefillQuota(tenant, now + 10 * kMillisecond);
  EXPECT_EQ(QuotaDebt(tenant), 0);
}

TEST(ClientTable, OfThoseWithoutRequestsTheLongestQuietMakesWay) {
  ClientTable clients(2);
  Request request;
  clients.Open(clients.Add(1, 10), request);
  EXPECT_FALSE(clients.full());
  clients.Add(2, 20);
  EXPECT_TRUE(clients.full());
  EXPECT_EQ(clients.LongestQuiet(), clients.Find(2));  // 1 has a request
  Request second;
  clients.Open(*clients.Find(2), second);
  EXPECT_EQ(clients.LongestQuiet(), nullptr);
  clients.Close(*clients.Find(1), request, 50);
  clients.Close(*clients.Find(2), second, 60);
  EXPECT_EQ(clients.LongestQuiet(), clients.Find(1));
  clients.Heard(*clients.Find(1), 70);  // It asks for nothing, but it is there.
  EXPECT_EQ(clients.LongestQuiet(), clients.Find(2));
  clients.Remove(*clients.Find(2));
  EXPECT_FALSE(clients.full());
}

TEST(ClientTable, WhoseLastDeltasWereNotSentDoesNotMakeWay) {
  ClientTable clients(2);
  Client& first = clients.Add(1, 10);
  clients.Append(first, Delta{}, 1);
  EXPECT_EQ(clients.LongestQuiet(), nullptr);
  clients.Add(2, 20);
  EXPECT_EQ(clients.LongestQuiet(), clients.Find(2));
  first.pending.clear();  // sent
  EXPECT_EQ(clients.LongestQuiet(), &first);
}

Group& LiveGroup(GroupTable& groups, const std::string& name, uint64_t total, uint64_t reserved) {
  Group& group = *groups.Add(name);
  group.state = GroupState::kLive;
  groups.SetTotal(group, total);
  group.ledger.emplace(total);
  if (reserved > 0) group.ledger->Reserve(1, reserved, true);
  return group;
}

TEST(GroupTable, TheLargestStaysKnownWhileItIsAway) {
  GroupTable groups;
  LiveGroup(groups, "a", 100, 50);
  Group& away = LiveGroup(groups, "d", 1000, 0);
  away.state = GroupState::kLost;
  EXPECT_EQ(groups.LargestTotal(), 1000u);  // it may come back
  groups.Remove(away);
  EXPECT_EQ(groups.LargestTotal(), 100u);
}

// As the router does.
Group* AddInPlaceOfTheDead(GroupTable& groups, const std::string& name) {
  if (Group* dead = groups.Surplus()) groups.Remove(*dead);
  return groups.Add(name);
}

TEST(GroupTable, FailedStartsAreForgottenWhenThereAreMany) {
  GroupTable groups;
  Group& away = LiveGroup(groups, "away", 100, 0);
  away.state = GroupState::kLost;
  for (size_t i = 0; i < 2 * kMaxGroups; ++i) {
    Group* stray = AddInPlaceOfTheDead(groups, absl::StrCat("stray-", i));
    ASSERT_NE(stray, nullptr);
    stray->state = GroupState::kRefused;
  }
  EXPECT_EQ(groups.size(), 1 + size_t{kMaxFailedStarts});
  EXPECT_EQ(groups.FindByName("stray-0"), nullptr);
  EXPECT_NE(groups.FindByName("away"), nullptr);  // it was complete: its size stays known
}

TEST(GroupTable, WhenFullOnlyTheDeadMakeWay) {
  GroupTable groups;
  for (size_t i = 0; i < kMaxGroups; ++i) LiveGroup(groups, absl::StrCat("live-", i), 1, 0);
  EXPECT_EQ(AddInPlaceOfTheDead(groups, "one-more"), nullptr);
  groups.at(7).state = GroupState::kLost;
  EXPECT_NE(AddInPlaceOfTheDead(groups, "one-more"), nullptr);
  EXPECT_EQ(groups.FindByName("live-7"), nullptr);
  EXPECT_EQ(groups.size(), kMaxGroups);
}

TEST(GroupName, HasNoControlCharacters) {
  EXPECT_EQ(GroupNameFault("group-0 \xc3\xa9"), "");
  EXPECT_EQ(GroupNameFault(""), "group is empty");
  EXPECT_EQ(GroupNameFault("a\n\x1b[31m\x7f"),
            "group is 'a\\n\\033[31m\\177', allowed: no control characters");
  EXPECT_EQ(GroupNameFault(std::string(1, '\0')),
            "group is '\\000', allowed: no control characters");
}

// In each place of a short prompt; the worker looks at those of a long one.
TEST(ValidatePrompt, FindsEachIdThatIsTooLarge) {
  constexpr size_t kLong = kMinBytesInPlace / sizeof(uint32_t);
  for (uint32_t vocab : {100u, 1u << 31, UINT32_MAX}) {
    RouterConfig config;
    config.vocab_size = vocab;
    for (size_t size : {size_t{1}, size_t{2}, kLong - 1, kLong}) {
      std::vector<uint32_t> ids(size, vocab - 1);
      EXPECT_TRUE(ValidatePrompt(config, ids).ok()) << vocab << " " << size;
      for (size_t place : {size_t{0}, size / 3, size / 2, size - 1}) {
        for (uint32_t bad : {vocab, UINT32_MAX}) {
          uint32_t good = std::exchange(ids[place], bad);
          EXPECT_EQ(ValidatePrompt(config, ids).ok(), size == kLong) << vocab << " " << place;
          ids[place] = good;
        }
      }
    }
  }
}

TEST(Timers, PopInOrderAndOnlyWhenDue) {
  Timers timers;
  EXPECT_EQ(timers.Next(), kTimeMax);
  timers.Add({20, TimerKind::kClient, 0, 1});
  timers.Add({10, TimerKind::kGroup, 0, 2});
  timers.Add({10, TimerKind::kRequest, 3, 4});
  EXPECT_FALSE(timers.PopDue(9).has_value());
  EXPECT_EQ(timers.PopDue(10)->high, 3u);
  EXPECT_EQ(timers.PopDue(10)->low, 2u);
  EXPECT_FALSE(timers.PopDue(10).has_value());
  timers.Remove({20, TimerKind::kClient, 0, 1});
  EXPECT_EQ(timers.Next(), kTimeMax);
}

}  // namespace
}  // namespace kvern::router
