#include "router/io/port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/base/clock.h"
#include "cluster/net/poller.h"

namespace kvern {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Duration kPatience = 20 * kSecond;

class PortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    context_ = std::move(NetContext::Create().value());
    options_.max_message_bytes = 1 << 20;
    options_.send_queue = options_.receive_queue = 4;
    limits_.max_peers = 3;
    limits_.max_body_bytes = 1 << 20;
    limits_.pending_messages = 5;
    limits_.pending_bytes = 2 << 20;
  }

  Port Bind() {
    return Port(RouterSocket::Bind(*context_, "tcp://127.0.0.1:0", options_).value(), limits_);
  }

  // A dealer that said one word, and its routing id.
  DealerSocket Connect(Port& port, std::string* routing_id) {
    DealerSocket dealer =
        DealerSocket::Connect(*context_, port.socket().endpoint(), options_).value();
    std::string hello = "hello";
    EXPECT_EQ(dealer.Send(hello).value(), SendResult::kSent);
    Poller poller;
    poller.Add(port.socket());
    Frame frame;
    while (port.Receive(routing_id, &frame).value() != ReceiveResult::kMessage) {
      EXPECT_TRUE(poller.Wait(kPatience).ok());
    }
    return dealer;
  }

  std::string Receive(DealerSocket& dealer) {
    Poller poller;
    poller.Add(dealer);
    Frame frame;
    Time end = MonotonicNow() + kPatience;
    while (MonotonicNow() < end) {
      if (dealer.Receive(&frame).value() == ReceiveResult::kMessage) {
        return std::string(frame.text().substr(0, 10));
      }
      EXPECT_TRUE(poller.Wait(end - MonotonicNow()).ok());
    }
    return "nothing came";
  }

  // The next message for `dealer`. The last ones leave once it has made room, which takes the I/O
  // threads a moment.
  void ReceivePending(Port& port, DealerSocket& dealer, Frame* frame,
                      std::vector<Frame>* attached = nullptr) {
    Time end = MonotonicNow() + kPatience;
    while (dealer.Receive(frame, attached).value() != ReceiveResult::kMessage) {
      ASSERT_LT(MonotonicNow(), end);
      ASSERT_TRUE(port.Retry().ok());
    }
  }

  std::unique_ptr<NetContext> context_;
  SocketOptions options_;
  PortLimits limits_;
};

TEST_F(PortTest, APeerIsARoutingIdAndAnIncarnation) {
  Port port = Bind();
  PeerId first = port.Heard("a", 10);
  EXPECT_NE(first, 0u);
  EXPECT_EQ(port.Heard("a", 10), first);
  EXPECT_EQ(port.Heard("a", 0), first) << "one that does not say is the same";
  EXPECT_EQ(port.Find("a"), first);
  PeerId second = port.Heard("b", 10);
  EXPECT_NE(second, first);
  EXPECT_THAT(port.TakeLost(), IsEmpty());
  PeerId restarted = port.Heard("a", 11);
  EXPECT_NE(restarted, first);
  EXPECT_THAT(port.TakeLost(), ElementsAre(first));
  EXPECT_THAT(port.TakeLost(), IsEmpty());
  EXPECT_EQ(port.Find("a"), restarted);
  EXPECT_EQ(port.Find("c"), 0u);
}

TEST_F(PortTest, TheLongestSilentPeerMakesWay) {
  Port port = Bind();
  PeerId a = port.Heard("a", 1);
  PeerId b = port.Heard("b", 1);
  port.Heard("c", 1);
  port.Heard("a", 1);
  port.Heard("d", 1);
  EXPECT_THAT(port.TakeLost(), ElementsAre(b));
  EXPECT_EQ(port.num_peers(), 3u);
  EXPECT_EQ(port.Find("a"), a);
  EXPECT_GT(port.Heard("b", 1), a) << "numbers are not used again";
}

TEST_F(PortTest, AnUnreachablePeerIsLost) {
  Port port = Bind();
  PeerId peer = port.Heard("nobody", 1);
  ASSERT_TRUE(port.Send(peer, "hello").ok());
  EXPECT_THAT(port.TakeLost(), ElementsAre(peer));
  ASSERT_TRUE(port.Send(peer, "hello").ok()) << "a number that was lost is ignored";
  EXPECT_THAT(port.TakeLost(), IsEmpty());
  EXPECT_TRUE(port.Reply("nobody", "hello").ok());
}

TEST_F(PortTest, WhatBlocksIsSentLaterInOrder) {
  limits_.pending_messages = 1000;
  limits_.pending_bytes = 1u << 30;
  Port port = Bind();
  std::string routing_id;
  DealerSocket dealer = Connect(port, &routing_id);
  PeerId peer = port.Heard(routing_id, 1);
  const std::string load(100'000, 'x');
  int sent = 0;
  // Until the connection is full, and then ten more.
  for (int blocked = 0; blocked < 10; ++sent) {
    ASSERT_TRUE(port.Send(peer, absl::StrCat(sent, " ", load)).ok());
    if (port.HasPending()) ++blocked;
    ASSERT_LT(sent, 10'000) << "a connection without a bound";
  }
  for (int i = 0; i < sent; ++i) {
    std::string want = absl::StrCat(i, " ", load).substr(0, 10);
    ASSERT_TRUE(port.Retry().ok());
    Frame frame;
    ASSERT_NO_FATAL_FAILURE(ReceivePending(port, dealer, &frame));
    ASSERT_EQ(frame.text().substr(0, 10), want);
  }
  EXPECT_FALSE(port.Retry().value());
  EXPECT_THAT(port.TakeLost(), IsEmpty());
}

// What is attached stays with its body, and its bytes with their owner until they have left.
TEST_F(PortTest, WhatIsAttachedWaitsWithItsBody) {
  limits_.pending_messages = 1000;
  limits_.pending_bytes = 1u << 30;
  Port port = Bind();
  std::string routing_id;
  DealerSocket dealer = Connect(port, &routing_id);
  PeerId peer = port.Heard(routing_id, 1);
  std::vector<std::weak_ptr<const std::string>> owners;
  for (int blocked = 0; blocked < 10;) {
    auto load = std::make_shared<const std::string>(100'000, static_cast<char>(owners.size()));
    owners.emplace_back(load);
    SharedBytes attached{std::as_bytes(std::span(*load)), load};
    Port::Message message{absl::StrCat(owners.size() - 1), {attached, attached}};
    ASSERT_TRUE(port.Send(peer, std::move(message)).ok());
    if (port.HasPending()) ++blocked;
    ASSERT_LT(owners.size(), 10'000u) << "a connection without a bound";
  }
  for (size_t i = 0; i < owners.size(); ++i) {
    Frame frame;
    std::vector<Frame> attached;
    ASSERT_NO_FATAL_FAILURE(ReceivePending(port, dealer, &frame, &attached));
    ASSERT_EQ(frame.text(), absl::StrCat(i));
    ASSERT_EQ(attached.size(), 2u);
    for (const Frame& part : attached) {
      ASSERT_EQ(part.text(), std::string(100'000, static_cast<char>(i)));
    }
    // ZeroMQ's thread lets go when it has written them, a moment after they are here.
    Time end = MonotonicNow() + kPatience;
    while (!owners[i].expired()) ASSERT_LT(MonotonicNow(), end);
  }
  EXPECT_FALSE(port.Retry().value());
}

TEST_F(PortTest, WhatIsAttachedCountsAgainstTheLimits) {
  std::shared_ptr<const std::string> load;
  auto attach = [&](size_t bytes) {
    load = std::make_shared<const std::string>(bytes, 'x');
    return SharedBytes{std::as_bytes(std::span(*load)), load};
  };
  Port port = Bind();
  std::string routing_id;
  DealerSocket dealer = Connect(port, &routing_id);
  PeerId peer = port.Heard(routing_id, 1);
  std::vector<PeerId> lost;
  for (int i = 0; lost.empty(); ++i) {
    ASSERT_LT(i, 10'000) << "a slow reader holds memory without a bound";
    ASSERT_TRUE(port.Send(peer, Port::Message{"small", {attach(1'000'000)}}).ok());
    lost = port.TakeLost();
  }
  EXPECT_THAT(lost, ElementsAre(peer));
  DealerSocket other = Connect(port, &routing_id);
  peer = port.Heard(routing_id, 1);
  Port::Message too_large{"small", {attach(10), attach(limits_.max_body_bytes + 1)}};
  ASSERT_TRUE(port.Send(peer, std::move(too_large)).ok());
  EXPECT_THAT(port.TakeLost(), ElementsAre(peer));
}

TEST_F(PortTest, Case30ASlowPeerIsLostWithinItsLimits) {
  Port port = Bind();
  std::string routing_id;
  DealerSocket dealer = Connect(port, &routing_id);
  PeerId peer = port.Heard(routing_id, 1);
  std::vector<PeerId> lost;
  for (int i = 0; lost.empty(); ++i) {
    ASSERT_LT(i, 10'000) << "a slow reader holds memory without a bound";
    ASSERT_TRUE(port.Send(peer, std::string(100'000, 'x')).ok());
    lost = port.TakeLost();
  }
  EXPECT_THAT(lost, ElementsAre(peer));
  EXPECT_FALSE(port.HasPending());
}

TEST_F(PortTest, AMessageBeyondTheLimitLosesThePeer) {
  Port port = Bind();
  std::string routing_id;
  DealerSocket dealer = Connect(port, &routing_id);
  PeerId peer = port.Heard(routing_id, 1);
  ASSERT_TRUE(port.Send(peer, std::string(limits_.max_body_bytes + 1, 'x')).ok());
  EXPECT_THAT(port.TakeLost(), ElementsAre(peer));
}

// So it can be told that it must say who it is again.
TEST_F(PortTest, APeerThatWasLostIsAnsweredWhenItSpeaksAgain) {
  Port port = Bind();
  std::string routing_id;
  DealerSocket dealer = Connect(port, &routing_id);
  PeerId lost = port.Heard(routing_id, 1);
  ASSERT_TRUE(port.Send(lost, std::string(limits_.max_body_bytes + 1, 'x')).ok());
  EXPECT_THAT(port.TakeLost(), ElementsAre(lost));
  PeerId again = port.Heard(routing_id, 1);
  EXPECT_NE(again, lost);
  ASSERT_TRUE(port.Send(again, "say hello").ok());
  EXPECT_EQ(Receive(dealer), "say hello");
  EXPECT_THAT(port.TakeLost(), IsEmpty());
}

TEST_F(PortTest, AReplyNeedsNoNumber) {
  Port port = Bind();
  std::string routing_id;
  DealerSocket dealer = Connect(port, &routing_id);
  ASSERT_TRUE(port.Reply(routing_id, "no").ok());
  EXPECT_EQ(Receive(dealer), "no");
  EXPECT_EQ(port.num_peers(), 0u);
}

}  // namespace
}  // namespace kvern
