#include "cluster/net/socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cluster/base/clock.h"
#include "cluster/net/connection_watch.h"
#include "cluster/net/poller.h"
#include "tests/cluster/base/no_more_threads.h"

namespace kvern {
namespace {

// Waiting ends when what is waited for comes; this is only when to call the test a failure.
constexpr Duration kPatience = 20 * kSecond;

class SocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    context_ = std::move(NetContext::Create().value());
    options_.max_message_bytes = 1 << 20;
  }

  RouterSocket Bind() {
    return RouterSocket::Bind(*context_, "tcp://127.0.0.1:0", options_).value();
  }
  DealerSocket Connect(const RouterSocket& router) {
    return DealerSocket::Connect(*context_, router.endpoint(), options_).value();
  }

  // Waits for a message or a malformed one.
  ReceiveResult Receive(RouterSocket& router, std::string* id, Frame* body) {
    Poller poller;
    poller.Add(router);
    Time end = MonotonicNow() + kPatience;
    while (MonotonicNow() < end) {
      ReceiveResult result = router.Receive(id, body).value();
      if (result != ReceiveResult::kNothing) return result;
      EXPECT_TRUE(poller.Wait(end - MonotonicNow()).ok());
    }
    return ReceiveResult::kNothing;
  }
  std::string Receive(DealerSocket& dealer) {
    Poller poller;
    poller.Add(dealer);
    Frame body;
    Time end = MonotonicNow() + kPatience;
    while (MonotonicNow() < end) {
      if (dealer.Receive(&body).value() == ReceiveResult::kMessage) return std::string(body.text());
      EXPECT_TRUE(poller.Wait(end - MonotonicNow()).ok());
    }
    return "nothing came";
  }

  std::unique_ptr<NetContext> context_;
  SocketOptions options_;
};

// libzmq would end the process.
TEST(NetContext, ASystemWithoutThreadsIsAnError) {
  NoMoreThreads none;
  EXPECT_EQ(NetContext::Create().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SocketTest, MessagesGoBothWays) {
  RouterSocket router = Bind();
  EXPECT_EQ(router.endpoint().find("tcp://127.0.0.1:"), 0u);
  EXPECT_NE(router.endpoint(), "tcp://127.0.0.1:0");
  DealerSocket dealer = Connect(router);
  for (size_t size : {size_t{0}, size_t{5}, size_t{1024}, size_t{1025}, size_t{1} << 20}) {
    std::string sent(size, 'x');
    std::string body = sent;
    ASSERT_EQ(dealer.Send(body).value(), SendResult::kSent);
    EXPECT_TRUE(body.empty());
    std::string id;
    Frame frame;
    ASSERT_EQ(Receive(router, &id, &frame), ReceiveResult::kMessage);
    EXPECT_EQ(frame.text(), sent);
    std::string answer(frame.text());
    ASSERT_EQ(router.Send(id, answer).value(), SendResult::kSent);
    EXPECT_EQ(Receive(dealer), sent);
  }
}

TEST_F(SocketTest, AnUnknownRoutingIdIsUnreachableAndTheBodyStays) {
  RouterSocket router = Bind();
  std::string body = "to nobody";
  EXPECT_EQ(router.Send("nobody", body).value(), SendResult::kUnreachable);
  EXPECT_EQ(body, "to nobody");
}

TEST_F(SocketTest, AFullQueueWouldBlockAndLosesNothing) {
  options_.send_queue = options_.receive_queue = 4;
  RouterSocket router = Bind();
  DealerSocket dealer = Connect(router);
  std::string hello = "hello";
  ASSERT_EQ(dealer.Send(hello).value(), SendResult::kSent);
  std::string id;
  Frame frame;
  ASSERT_EQ(Receive(router, &id, &frame), ReceiveResult::kMessage);
  // The dealer does not read: kernel buffers and both queues fill up.
  const std::string load(100'000, 'x');
  uint64_t sent = 0;
  std::string body;
  for (;;) {
    body = absl::StrCat(sent, " ", load);
    SendResult result = router.Send(id, body).value();
    if (result == SendResult::kWouldBlock) break;
    ASSERT_EQ(result, SendResult::kSent);
    ++sent;
    ASSERT_LT(sent, 10'000u) << "the queue has no bound";
  }
  EXPECT_EQ(body, absl::StrCat(sent, " ", load));
  for (uint64_t i = 0; i < sent; ++i) EXPECT_EQ(Receive(dealer), absl::StrCat(i, " ", load));
}

TEST_F(SocketTest, MessagesOfAnotherNumberOfFramesAreDropped) {
  RouterSocket router = Bind();
  DealerSocket dealer = Connect(router);
  for (int frames : {2, 3, 50}) {
    for (int i = 0; i < frames; ++i) {
      int more = i + 1 < frames ? ZMQ_SNDMORE : 0;
      ASSERT_EQ(zmq_send(dealer.handle(), "part", 4, more), 4);
    }
  }
  std::string good = "good";
  ASSERT_EQ(dealer.Send(good).value(), SendResult::kSent);
  std::string id;
  Frame frame;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Receive(router, &id, &frame), ReceiveResult::kMalformed);
  ASSERT_EQ(Receive(router, &id, &frame), ReceiveResult::kMessage);
  EXPECT_EQ(frame.text(), "good");
}

TEST_F(SocketTest, FramesAreAttachedToABody) {
  RouterSocket router = Bind();
  DealerSocket dealer = Connect(router);
  std::string body = "hello";
  ASSERT_EQ(dealer.Send(body).value(), SendResult::kSent);
  std::string id;
  Frame frame;
  ASSERT_EQ(Receive(router, &id, &frame), ReceiveResult::kMessage);
  auto owner = std::make_shared<const std::string>("one, two" + std::string(5000, 'x'));
  std::weak_ptr<const std::string> held = owner;
  std::span<const std::byte> bytes = std::as_bytes(std::span(*owner));
  std::vector<SharedBytes> parts = {
      {bytes.first(3), owner}, {bytes.subspan(5), owner}, {bytes.first(0), owner}};
  for (int attached = 0; attached <= 3; ++attached) {
    body = absl::StrCat("with ", attached);
    ASSERT_EQ(router.Send(id, body, std::span(parts).first(static_cast<size_t>(attached))).value(),
              SendResult::kSent);
  }
  parts.clear();
  owner.reset();
  Poller poller;
  poller.Add(dealer);
  for (size_t attached = 0; attached <= 3; ++attached) {
    std::vector<Frame> got;
    while (dealer.Receive(&frame, &got).value() != ReceiveResult::kMessage) {
      ASSERT_TRUE(poller.Wait(kTimeMax).ok());
    }
    EXPECT_EQ(frame.text(), absl::StrCat("with ", attached));
    ASSERT_EQ(got.size(), attached);
    if (attached > 0) {
      EXPECT_EQ(got[0].text(), "one");
    }
    if (attached > 1) {
      EXPECT_EQ(got[1].text(), "two" + std::string(5000, 'x'));
    }
    if (attached > 2) {
      EXPECT_EQ(got[2].text(), "");
    }
  }
  while (!held.expired()) std::this_thread::yield();  // ZeroMQ's thread lets go at last
}

TEST_F(SocketTest, ATooLargeMessageCutsItsSenderOff) {
  RouterSocket router = Bind();
  SocketOptions generous = options_;
  generous.max_message_bytes = 1 << 30;
  DealerSocket large = DealerSocket::Connect(*context_, router.endpoint(), generous).value();
  std::string body(static_cast<size_t>(options_.max_message_bytes) + 1, 'x');
  ASSERT_EQ(large.Send(body).value(), SendResult::kSent);
  DealerSocket dealer = Connect(router);
  std::string good = "good";
  ASSERT_EQ(dealer.Send(good).value(), SendResult::kSent);
  std::string id;
  Frame frame;
  ASSERT_EQ(Receive(router, &id, &frame), ReceiveResult::kMessage);
  EXPECT_EQ(frame.text(), "good");
}

TEST_F(SocketTest, GarbageOnThePortHarmsNobody) {
  RouterSocket router = Bind();
  int port = std::stoi(router.endpoint().substr(router.endpoint().rfind(':') + 1));
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string garbage(5000, '\xff');
  ASSERT_GT(send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  DealerSocket dealer = Connect(router);
  std::string good = "good";
  ASSERT_EQ(dealer.Send(good).value(), SendResult::kSent);
  std::string id;
  Frame frame;
  ASSERT_EQ(Receive(router, &id, &frame), ReceiveResult::kMessage);
  EXPECT_EQ(frame.text(), "good");
  close(fd);
}

TEST_F(SocketTest, APeerThatLeftBecomesUnreachable) {
  RouterSocket router = Bind();
  std::string id;
  Frame frame;
  {
    DealerSocket dealer = Connect(router);
    std::string hello = "hello";
    ASSERT_EQ(dealer.Send(hello).value(), SendResult::kSent);
    ASSERT_EQ(Receive(router, &id, &frame), ReceiveResult::kMessage);
  }
  Time end = MonotonicNow() + kPatience;
  SendResult result = SendResult::kSent;
  while (result != SendResult::kUnreachable && MonotonicNow() < end) {
    std::string body = "still there?";
    result = router.Send(id, body).value();
    // ZeroMQ ends a connection whose queue is full only after its owner has read what came before.
    std::string other;
    EXPECT_EQ(router.Receive(&other, &frame).value(), ReceiveResult::kNothing);
    std::this_thread::yield();
  }
  EXPECT_EQ(result, SendResult::kUnreachable);
}

TEST_F(SocketTest, OnlyLoopbackIsBound) {
  for (const char* endpoint : {"tcp://0.0.0.0:0", "tcp://*:0", "tcp://192.168.0.1:5570",
                               "tcp://127.evil.example:1", "tcp://[::]:0", "tcp://127.0.0.1"}) {
    absl::Status status = RouterSocket::Bind(*context_, endpoint, options_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << endpoint;
    EXPECT_NE(status.message().find(endpoint), absl::string_view::npos) << status;
  }
  EXPECT_EQ(RouterSocket::Bind(*context_, "udp://127.0.0.1:1", options_).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckLoopback("tcp://127.0.0.1:5570").ok());
  for (const char* endpoint : {"tcp://127.0.0.1:99999", "tcp://127.0.0.1:", "tcp://127.0.0.1:-1",
                               "tcp://127.0.0.1:80x", "tcp://127.0.0.1: 80"}) {
    absl::Status status = RouterSocket::Bind(*context_, endpoint, options_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << endpoint;
    EXPECT_NE(status.message().find(endpoint), absl::string_view::npos) << status;
  }
}

TEST_F(SocketTest, ATakenPortIsNamed) {
  RouterSocket router = Bind();
  absl::Status status = RouterSocket::Bind(*context_, router.endpoint(), options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find(router.endpoint()), absl::string_view::npos) << status;
}

// A folder of the test's own, and what lies at a path in it.
class IpcTest : public SocketTest {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }
  absl::Status Listen() {
    return RouterSocket::Bind(*context_, absl::StrCat("ipc://", path()), options_).status();
  }
  std::string path() const { return folder_ + "/clients"; }
  // An end without a word: the file stays, and nobody listens.
  void LeaveAStaleSocket() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path().data(), path().size());
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(fd, 1), 0);
    close(fd);
  }
  bool Exists() const { return std::filesystem::exists(path()); }
  void ExpectReached(RouterSocket& router) {
    DealerSocket dealer = Connect(router);
    std::string body = "hello", id;
    ASSERT_EQ(dealer.Send(body).value(), SendResult::kSent);
    Frame frame;
    EXPECT_EQ(Receive(router, &id, &frame), ReceiveResult::kMessage);
  }

  std::string folder_ =
      std::filesystem::canonical(::testing::TempDir()) / absl::StrCat("kvern-ipc-", getpid());

 private:
  bool made_ = std::filesystem::create_directory(folder_);
};

TEST_F(IpcTest, ItsFileLastsAsLongAsTheSocket) {
  {
    RouterSocket first = RouterSocket::Bind(*context_, "ipc://" + path(), options_).value();
    RouterSocket moved = std::move(first);
    EXPECT_TRUE(Exists());
  }
  EXPECT_FALSE(Exists());
}

TEST_F(IpcTest, WhatAKilledProcessLeftIsReplaced) {
  LeaveAStaleSocket();
  ASSERT_TRUE(Exists());
  RouterSocket router = RouterSocket::Bind(*context_, "ipc://" + path(), options_).value();
  ExpectReached(router);
}

TEST_F(IpcTest, ASocketThatSomebodyListensOnIsNotTakenAway) {
  RouterSocket router = RouterSocket::Bind(*context_, "ipc://" + path(), options_).value();
  EXPECT_EQ(Listen(), Unavailable("cannot listen on ipc://", path(), ": somebody listens there"));
  ExpectReached(router);
}

TEST_F(IpcTest, AFileOfAnotherKindIsNotRemoved) {
  std::ofstream(path()) << "precious";
  absl::Status status = Listen();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(std::filesystem::is_regular_file(path()));
}

TEST_F(IpcTest, AnothersFileIsNotRemovedAtTheEnd) {
  {
    RouterSocket router = RouterSocket::Bind(*context_, "ipc://" + path(), options_).value();
    // Not removed: its inode's number might be given again.
    std::filesystem::rename(path(), path() + ".old");
    LeaveAStaleSocket();
  }
  EXPECT_TRUE(Exists());
}

TEST_F(SocketTest, ADealerRefusesWhatIsNoEndpoint) {
  constexpr std::string_view kAllowed = ", allowed: tcp://HOST:PORT, ipc://PATH";
  constexpr std::string_view kPort = ": its port is not a number from 0 to 65535";
  for (const auto& [endpoint, why] :
       {std::pair("foo", kAllowed), std::pair("", kAllowed), std::pair("127.0.0.1:1", kAllowed),
        std::pair("tcp://127.0.0.1", kAllowed), std::pair("tcp://:1", kAllowed),
        std::pair("ipc://", kAllowed), std::pair("http://127.0.0.1:1", kAllowed),
        std::pair("tcp://127.0.0.1:99999", kPort)}) {
    EXPECT_EQ(DealerSocket::Connect(*context_, endpoint, options_).status(),
              InvalidArgument("'", endpoint, "'", ToAbsl(why)));
  }
}

TEST(PollerTest, AWakeUpEndsAWaitAndIsCleared) {
  WakeUp wake = WakeUp::Create().value();
  Poller poller;
  size_t index = poller.AddFd(wake.fd());
  ASSERT_TRUE(poller.Wait(0).ok());
  EXPECT_FALSE(poller.Ready(index));
  std::thread other([&] { wake.Notify(); });
  ASSERT_TRUE(poller.Wait(kTimeMax).ok());
  EXPECT_TRUE(poller.Ready(index));
  other.join();
  wake.Notify();
  wake.Clear();
  ASSERT_TRUE(poller.Wait(0).ok());
  EXPECT_FALSE(poller.Ready(index));
}

TEST(PollerTest, ATimeoutEndsAWait) {
  WakeUp wake = WakeUp::Create().value();
  Poller poller;
  size_t index = poller.AddFd(wake.fd());
  Time start = MonotonicNow();
  ASSERT_TRUE(poller.Wait(1).ok());  // Rounded up to a millisecond: never a busy loop.
  EXPECT_GE(MonotonicNow() - start, 500 * kMicrosecond);
  EXPECT_FALSE(poller.Ready(index));
}

// Waits until the watch has something to say.
bool WaitBroken(ConnectionWatch& watch) {
  zmq_pollitem_t item = {watch.handle(), 0, ZMQ_POLLIN, 0};
  EXPECT_GT(zmq_poll(&item, 1, kPatience / kMillisecond), 0);
  return watch.Broken();
}

// Who looks into a frame may go on doing so while it is shared, and the next message does not
// disturb it.
TEST_F(SocketTest, ASharedFrameStaysWhereItIs) {
  RouterSocket router = Bind();
  DealerSocket dealer = Connect(router);
  for (size_t size : {100u, 10'000u, 300'000u}) {
    std::string body(size, 'a'), id;
    ASSERT_EQ(dealer.Send(body).value(), SendResult::kSent);
    Frame frame;
    ASSERT_EQ(Receive(router, &id, &frame), ReceiveResult::kMessage);
    std::string_view before = frame.text();
    std::shared_ptr<const void> shared = frame.Share();
    EXPECT_EQ(frame.text(), "");
    body.assign(size, 'b');
    ASSERT_EQ(dealer.Send(body).value(), SendResult::kSent);
    ASSERT_EQ(Receive(router, &id, &frame), ReceiveResult::kMessage);
    EXPECT_EQ(frame.text(), std::string(size, 'b'));
    EXPECT_EQ(before, std::string(size, 'a'));
  }
  Frame small;
  zmq_msg_init_size(small.message(), 8);
  EXPECT_DEATH(small.Share(), "the bytes lie within the frame");
}

TEST_F(SocketTest, AWatchNoticesThatTheConnectionBroke) {
  auto router = std::make_unique<RouterSocket>(Bind());
  DealerSocket dealer = Connect(*router);
  std::unique_ptr<ConnectionWatch> watch = ConnectionWatch::Create(*context_, dealer).value();
  EXPECT_FALSE(watch->Broken()) << "no connection has been there to break";
  std::string body = "hello", id;
  ASSERT_EQ(dealer.Send(body).value(), SendResult::kSent);
  Frame frame;
  ASSERT_EQ(Receive(*router, &id, &frame), ReceiveResult::kMessage);
  EXPECT_FALSE(watch->Broken());
  router.reset();
  EXPECT_TRUE(WaitBroken(*watch));
  EXPECT_TRUE(watch->Broken()) << "it stays so";
}

// Each has a name of its own within the context.
TEST_F(SocketTest, WatchesOfSeveralSocketsTellThemApart) {
  auto lost = std::make_unique<RouterSocket>(Bind());
  RouterSocket kept = Bind();
  DealerSocket first = Connect(*lost);
  DealerSocket second = Connect(kept);
  std::unique_ptr<ConnectionWatch> first_watch = ConnectionWatch::Create(*context_, first).value();
  std::unique_ptr<ConnectionWatch> second_watch =
      ConnectionWatch::Create(*context_, second).value();
  for (auto [dealer, router] : {std::pair(&first, lost.get()), std::pair(&second, &kept)}) {
    std::string body = "hello", id;
    ASSERT_EQ(dealer->Send(body).value(), SendResult::kSent);
    Frame frame;
    ASSERT_EQ(Receive(*router, &id, &frame), ReceiveResult::kMessage);
  }
  lost.reset();
  EXPECT_TRUE(WaitBroken(*first_watch));
  EXPECT_FALSE(second_watch->Broken());
}

}  // namespace
}  // namespace kvern
