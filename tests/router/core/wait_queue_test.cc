// Who is next: bands, shares of tenants, age; and who makes way when there is no room.
#include "router/core/wait_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>

namespace kvern::router {
namespace {

class WaitQueueTest : public testing::Test {
 protected:
  static TenantConfig Named(const char* name, uint32_t weight) {
    TenantConfig config;
    config.name = name;
    config.weight = weight;
    return config;
  }

  Request& Push(Tenant& tenant, uint8_t band = 0, uint64_t blocks = 1, uint32_t tokens = 10,
                uint64_t worst = 0) {
    Request& request = requests_.emplace_back();
    request.phase = Phase::kArrived;
    request.tenant = &tenant;
    request.band = band;
    request.expected_blocks = blocks;
    request.need = worst;
    request.prompt_tokens = tokens;
    request.arrival = static_cast<Time>(requests_.size());
    queue_.TakeRoom(request, 1);
    request.phase = Phase::kQueued;
    queue_.Push(request);
    queue_.Audit();
    return request;
  }

  // Where no tenant is at its quota.
  size_t PositionOf(const Request& request) const {
    return queue_.Position(request, [](const Request&, uint64_t) { return true; });
  }

  // But for one that may not run.
  Request* Next(const Request* blocked = nullptr) {
    std::vector<Request*> next;
    queue_.Candidates(
        1, kAnySize, [&](const Request& request) { return &request != blocked; }, next);
    return next.empty() ? nullptr : next[0];
  }

  // Serves the next request: `tokens` are charged to its tenant.
  Tenant* Serve(uint64_t tokens, const Request* blocked = nullptr) {
    Request* next = Next(blocked);
    Tenant* tenant = next->tenant;
    queue_.AdvanceTo(*next);
    queue_.Remove(*next);
    Charge(*tenant, next->band, tokens);
    queue_.Audit();
    return tenant;
  }

  Tenant a_{Named("a", 1)};
  Tenant b_{Named("b", 1)};
  Tenant heavy_{Named("heavy", 3)};
  std::deque<Request> requests_;
  WaitQueue queue_{1000, 1000};
};

TEST_F(WaitQueueTest, OneTenantIsServedByAge) {
  Request& first = Push(a_);
  Request& second = Push(a_);
  Request& third = Push(a_);
  queue_.Remove(second);
  queue_.Audit();
  EXPECT_EQ(PositionOf(third), 1u);
  EXPECT_EQ(Next(), &first);
  queue_.Remove(first);
  EXPECT_EQ(Next(), &third);
  queue_.Remove(third);
  EXPECT_EQ(Next(), nullptr);
  EXPECT_EQ(queue_.entries(), 0u);
  EXPECT_EQ(queue_.expected_blocks(), 0u);
}

TEST_F(WaitQueueTest, AHigherBandIsServedFirstWhateverItsTenantHad) {
  Push(a_, 0);
  Request& urgent = Push(b_, 3);
  Charge(b_, 3, 1'000'000);
  EXPECT_EQ(Next(), &urgent);
}

TEST_F(WaitQueueTest, ServiceIsSharedByWeight) {
  for (int i = 0; i < 200; ++i) Push(a_), Push(heavy_);
  int heavy = 0;
  for (int i = 0; i < 100; ++i) heavy += Serve(50) == &heavy_ ? 1 : 0;
  EXPECT_NEAR(heavy, 75, 1);
}

TEST_F(WaitQueueTest, AFloodOfOneDelaysTheOtherByOneRequestOnly) {
  for (int i = 0; i < 100; ++i) Push(a_);
  for (int i = 0; i < 10; ++i) Serve(50);
  Push(b_);
  int before = 0;
  while (Serve(50) != &b_) ++before;
  EXPECT_LE(before, 1);
}

TEST_F(WaitQueueTest, IdleTimeSavesNothingUp) {
  for (int i = 0; i < 100; ++i) Push(a_);
  for (int i = 0; i < 50; ++i) Serve(50);  // b had nothing to ask for
  for (int i = 0; i < 50; ++i) Push(b_);
  int of_b = 0;
  for (int i = 0; i < 40; ++i) of_b += Serve(50) == &b_ ? 1 : 0;
  EXPECT_NEAR(of_b, 20, 1);
}

TEST_F(WaitQueueTest, ServiceThatNobodyElseWantedIsNotHeldAgainstAnyone) {
  for (int i = 0; i < 50; ++i) Push(a_), Serve(50);  // the queue was empty each time
  for (int i = 0; i < 50; ++i) Push(b_);
  for (int i = 0; i < 50; ++i) Push(a_);
  int of_a = 0;
  for (int i = 0; i < 40; ++i) of_a += Serve(50) == &a_ ? 1 : 0;
  EXPECT_NEAR(of_a, 20, 1);
}

TEST_F(WaitQueueTest, WhoComesBackStillHasWhatItWasServed) {
  Push(a_);
  for (int i = 0; i < 40; ++i) Push(b_);
  EXPECT_EQ(Serve(1000), &a_);
  Push(a_);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Serve(50), &b_) << i;
}

TEST_F(WaitQueueTest, WhoWaitedForItsQuotaDoesNotPutANewcomerFirst) {
  Tenant newcomer(Named("newcomer", 1));
  Request& at_its_quota = Push(a_);
  for (int i = 0; i < 20; ++i) {
    Push(b_);
    EXPECT_EQ(Serve(50, &at_its_quota), &b_);
  }
  EXPECT_EQ(Serve(0), &a_);  // far behind b
  for (int i = 0; i < 20; ++i) Push(newcomer);
  for (int i = 0; i < 20; ++i) Push(b_);
  int of_b = 0;
  for (int i = 0; i < 20; ++i) of_b += Serve(50) == &b_ ? 1 : 0;
  EXPECT_NEAR(of_b, 10, 1);
}

TEST_F(WaitQueueTest, TheQueueIsSharedByTheWeightsOfThoseThatWait) {
  EXPECT_EQ(queue_.ShareOf(a_), 1000u);
  Push(heavy_, 0);
  Push(heavy_, 3);  // counts once
  EXPECT_EQ(queue_.ShareOf(a_), 250u);
  EXPECT_EQ(queue_.ShareOf(heavy_), 1000u);
  Push(a_);
  EXPECT_EQ(queue_.ShareOf(heavy_), 750u);
  EXPECT_EQ(queue_.ShareOf(b_), 200u);
}

TEST_F(WaitQueueTest, OneThatWaitsForItsOwnQuotaDoesNotLetNewcomersPass) {
  Tenant full(Named("full", 1));
  Request& waits = Push(full);  // its service stays at 0
  for (int i = 0; i < 100; ++i) Push(a_);
  for (int i = 0; i < 50; ++i) Serve(50, &waits);
  for (int i = 0; i < 50; ++i) Push(b_);
  int of_a = 0;
  for (int i = 0; i < 40; ++i) of_a += Serve(50, &waits) == &a_ ? 1 : 0;
  EXPECT_NEAR(of_a, 20, 1);
  queue_.Remove(waits);
}

TEST_F(WaitQueueTest, WhatIsAheadIsSharedByWeight) {
  for (int i = 0; i < 100; ++i) Push(a_, 0, 7);
  Request probe;
  probe.tenant = &b_;
  probe.expected_blocks = 10;
  probe.prompt_tokens = 10;
  Ahead ahead = queue_.AheadOf(probe);
  EXPECT_EQ(ahead.blocks, 20u);  // its own and as much of the flood
  EXPECT_EQ(ahead.prompt_tokens, 20u);
  probe.tenant = &a_;
  EXPECT_EQ(queue_.AheadOf(probe).blocks, 710u);
  probe.tenant = &heavy_;
  probe.expected_blocks = 30;
  EXPECT_EQ(queue_.AheadOf(probe).blocks, 40u);
  EXPECT_EQ(queue_.AheadOf(probe).prompt_tokens, 13u);
  Push(b_, 5, 1000);
  EXPECT_EQ(queue_.AheadOf(probe).blocks, 1040u);
}

// Of its tenant alone, at worst: what stands before it in its line and in the lines above.
TEST_F(WaitQueueTest, WhatItsOwnTenantTakesAtWorstIsAhead) {
  Push(a_, 1, 1, 10, 3);
  Request& second = Push(a_, 1, 1, 10, 5);
  Request& above = Push(a_, 2, 1, 10, 7);
  Push(a_, 0, 1, 10, 11);
  Push(b_, 1, 1, 10, 13);
  EXPECT_EQ(queue_.AheadOf(second).own_worst_blocks, 15u);
  Request probe;
  probe.tenant = &a_;
  probe.band = 1;
  probe.need = 17;
  EXPECT_EQ(queue_.AheadOf(probe).own_worst_blocks, 32u);
  queue_.Remove(above);
  EXPECT_EQ(queue_.AheadOf(probe).own_worst_blocks, 25u);
}

TEST_F(WaitQueueTest, WhoMayNotRunIsBeforeNobody) {
  auto all = [](const Request&) { return true; };
  auto not_a = [this](const Request& r) { return r.tenant != &a_; };
  EXPECT_FALSE(queue_.AnyBefore(0, all));
  Push(a_, 1);
  EXPECT_TRUE(queue_.AnyBefore(0, all));
  EXPECT_TRUE(queue_.AnyBefore(1, all));
  EXPECT_FALSE(queue_.AnyBefore(2, all));
  EXPECT_FALSE(queue_.AnyBefore(0, not_a));
  Push(b_, 1);
  EXPECT_TRUE(queue_.AnyBefore(0, not_a));
}

// Bands, shares by weight, ages, prompts of many lengths, some service before: the position says of
// each that waits how many are served before it.
TEST_F(WaitQueueTest, ThePositionIsTheOrderInWhichAllAreServed) {
  Tenant* tenants[] = {&a_, &b_, &heavy_};
  uint32_t state = 7;
  auto draw = [&](uint32_t below) {
    return (state = state * 1664525 + 1013904223) / 65536 % below;
  };
  for (int i = 0; i < 20; ++i) Push(*tenants[draw(3)]);
  for (int i = 0; i < 15; ++i) Serve(1 + draw(100));
  std::vector<const Request*> all;
  for (int i = 0; i < 200; ++i) {
    all.push_back(&Push(*tenants[draw(3)], static_cast<uint8_t>(draw(3)), 1, 1 + draw(100)));
  }
  std::map<const Request*, size_t> told;
  for (const Request* request : all) told[request] = PositionOf(*request);
  for (size_t served = 0; Request* next = Next(); ++served) {
    if (told.contains(next)) {
      EXPECT_EQ(told[next], served);
    }
    Serve(next->prompt_tokens);
  }
}

TEST_F(WaitQueueTest, WhoIsAtItsQuotaIsAheadOfItsOwnOnly) {
  Push(a_, 0, 1, 10, 3);
  Request& second_of_a = Push(a_, 0, 1, 10, 1);
  Push(b_);
  Request& last = Push(b_);
  auto may = [this](const Request& r, uint64_t more) {
    return r.tenant != &a_ || more + r.need.tokens_pool() <= 3;
  };
  EXPECT_EQ(queue_.Position(last, may), 2u);  // the first of each; a's second is beyond its quota
  Push(a_, 1, 1, 10, 1);                      // goes first, and leaves 2: too few for the other
  EXPECT_EQ(queue_.Position(last, may), 2u);
  EXPECT_EQ(queue_.Position(second_of_a, may), 3u);
}

TEST_F(WaitQueueTest, TheNewestOfWhoHasMostMakesWay) {
  Push(a_);
  Push(a_);
  Request& newest = Push(a_);
  EXPECT_EQ(queue_.Excess(b_, 0), &newest);
  EXPECT_EQ(queue_.Excess(a_, 0), nullptr);  // its own doing
  Request& low = *Next();
  (void)low;
  Push(b_);
  Push(b_);
  EXPECT_EQ(queue_.Excess(b_, 0), nullptr);  // it would have as many
  EXPECT_NE(queue_.Excess(b_, 1), nullptr);  // a higher band is not held up by a lower one
}

// What is being tokenised has its room like what is in line, and is given up first.
TEST_F(WaitQueueTest, TextsMakeWayForATenantThatHasLess) {
  Push(a_);
  std::vector<Request*> texts;
  for (int i = 0; i < 3; ++i) {
    Request& text = requests_.emplace_back();
    text.phase = Phase::kTokenizing;
    text.tenant = &a_;
    text.arrival = static_cast<Time>(requests_.size());
    queue_.TakeRoom(text, 100);
    queue_.PushText(text);
    queue_.Audit();
    texts.push_back(&text);
  }
  EXPECT_EQ(queue_.Excess(b_, 0), texts[2]);
  EXPECT_EQ(queue_.Excess(a_, 0), nullptr);
  EXPECT_EQ(queue_.Excess(b_, 1), texts[2]);
  EXPECT_EQ(queue_.ShareOf(b_), 500u);
  queue_.RemoveText(*texts[2]);
  queue_.RemoveText(*texts[0]);
  queue_.Audit();
  EXPECT_EQ(queue_.Excess(b_, 0), texts[1]);
  queue_.EndText(*texts[1]);
  texts[1]->phase = Phase::kQueued;
  queue_.Push(*texts[1]);
  queue_.Audit();
  EXPECT_EQ(queue_.Excess(b_, 0), texts[1]);
  queue_.Remove(*texts[1]);
  EXPECT_EQ(queue_.Excess(b_, 0), nullptr);  // one each would be no better
  EXPECT_EQ(queue_.entries(), 1u);
  EXPECT_EQ(queue_.bytes(), 1u);
}

// a waits only for a larger group while b is served on a smaller one: afterwards they are equal.
TEST_F(WaitQueueTest, NobodyIsOwedWhatWasServedOnGroupsThatItCouldNotUse) {
  constexpr uint64_t kSmall = 4;
  for (int i = 0; i < 200; ++i) {
    Push(a_, 0, 1, 10, /*worst=*/9);
    Push(b_, 0, 1, 10, /*worst=*/2);
  }
  Request* larger = Next();
  ASSERT_EQ(larger->tenant, &a_);
  auto any = [](const Request&) { return true; };
  for (int i = 0; i < 100; ++i) {
    std::vector<Request*> next;
    queue_.Candidates(1, kSmall, any, next);
    ASSERT_EQ(next[0]->tenant, &b_);
    queue_.Bypass(*larger, kSmall, *next[0]);
    queue_.Remove(*next[0]);
    Charge(b_, 0, 50);
    queue_.Audit();
  }
  int of_a = 0;
  for (int i = 0; i < 40; ++i) of_a += Serve(50) == &a_ ? 1 : 0;
  EXPECT_NEAR(of_a, 20, 1);
}

// Two that wait for larger groups take turns there, though each is brought to the same service.
TEST_F(WaitQueueTest, ThoseThatWaitForLargerGroupsTakeTurns) {
  constexpr uint64_t kSmall = 4;
  for (int i = 0; i < 50; ++i) {
    Push(a_, 0, 1, 10, /*worst=*/9);
    Push(heavy_, 0, 1, 10, /*worst=*/9);
    Push(b_, 0, 1, 10, /*worst=*/2);
  }
  auto any = [](const Request&) { return true; };
  int of_a = 0;
  for (int i = 0; i < 20; ++i) {
    Request* larger = Next();
    ASSERT_NE(larger->tenant, &b_);
    std::vector<Request*> next;
    queue_.Candidates(1, kSmall, any, next);
    queue_.Bypass(*larger, kSmall, *next[0]);
    queue_.Remove(*next[0]);
    Charge(b_, 0, 5000);
    of_a += Serve(10) == &a_ ? 1 : 0;
  }
  EXPECT_EQ(of_a, 10);
}

TEST_F(WaitQueueTest, RequestsThatAreTooLargeAreLeftOut) {
  Push(a_, 0, 1, 10, /*worst=*/9);
  Request& small = Push(a_, 0, 1, 10, /*worst=*/4);
  Request& other = Push(b_, 0, 1, 10, /*worst=*/3);
  std::vector<Request*> next;
  queue_.Candidates(5, 4, [](const Request&) { return true; }, next);
  EXPECT_EQ(next, (std::vector<Request*>{&small, &other}));
  EXPECT_EQ(queue_.AheadOf(small, 4).own_worst_blocks, 4u);
  EXPECT_EQ(queue_.AheadOf(small).own_worst_blocks, 13u);
  EXPECT_EQ(queue_.AheadOf(other, 4).blocks, 2u);
}

TEST_F(WaitQueueTest, TenantsAtTheirLimitAreLeftOut) {
  Push(a_);
  Request& other = Push(b_);
  std::vector<Request*> next;
  queue_.Candidates(
      5, kAnySize, [this](const Request& r) { return r.tenant != &a_; }, next);
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0], &other);
}

TEST(TenantTable, NamesThatClientsInventAreBounded) {
  TenantTable table({});
  Tenant* last = nullptr;
  for (size_t i = 0; i < 3 * TenantTable::kMaxTenants; ++i)
    last = &table.Of("t" + std::to_string(i));
  EXPECT_EQ(table.size(), TenantTable::kMaxTenants);
  EXPECT_EQ(&table.Of("yet another"), last);
  EXPECT_NE(&table.Of("t0"), last);
}

TEST(Quota, IsRefilledByTheMinuteAndMayBeOverdrawn) {
  TenantConfig config;
  config.block_seconds_per_minute = 60;
  Tenant tenant(config);
  RefillQuota(tenant, kSecond);
  EXPECT_EQ(QuotaDebt(tenant), 0);
  UseQuota(tenant, 10, 9 * kSecond, kSecond);  // 90 block-seconds of 60
  EXPECT_NEAR(static_cast<double>(QuotaDebt(tenant)), 30e9, 1e8);
  RefillQuota(tenant, 40 * kSecond);
  EXPECT_EQ(QuotaDebt(tenant), 0);
  RefillQuota(tenant, 1000 * kSecond);
  EXPECT_EQ(tenant.block_ms_left, 60'000);  // no more than a minute's worth
}

// Whoever comes back when it was told to is let in, though nobody looked meanwhile.
TEST(Quota, ALargeOverdraftIsOverWhenItWasSaidToBe) {
  TenantConfig config;
  config.block_seconds_per_minute = 60;
  Tenant tenant(config);
  RefillQuota(tenant, kSecond);
  UseQuota(tenant, 40, 21 * kSecond, kSecond);  // 840 block-seconds of 60: 13 minutes more
  Duration debt = QuotaDebt(tenant);
  EXPECT_NEAR(static_cast<double>(debt), 780e9, 1e8);
  RefillQuota(tenant, kSecond + debt / 2);
  EXPECT_NEAR(static_cast<double>(QuotaDebt(tenant)), 390e9, 1e8);
  RefillQuota(tenant, kSecond + debt);
  EXPECT_EQ(QuotaDebt(tenant), 0);
}

TEST(Quota, DebtBeyondAllTimeStaysPositive) {
  TenantConfig config;
  config.block_seconds_per_minute = 1;
  Tenant tenant(config);
  RefillQuota(tenant, kSecond);
  for (int i = 0; i < 4; ++i) UseQuota(tenant, UINT32_MAX, kTimeMax / 4, kSecond);
  EXPECT_GT(QuotaDebt(tenant), 3600 * kSecond);
  RefillQuota(tenant, 3600 * kSecond);
  EXPECT_GT(QuotaDebt(tenant), 3600 * kSecond);
}

}  // namespace
}  // namespace kvern::router
