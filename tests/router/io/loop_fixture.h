// A router loop on a thread of its own, with clients and a worker that the test plays by hand.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <thread>

#include "cluster/base/clock.h"
#include "router/io/router_loop.h"
#include "router/io/text_filters.h"
#include "schemas/codec.h"
#include "tests/router/text/small_vocab.h"

namespace kvern {

// One side of a conversation with the router: a client or a worker.
template <typename Sent, typename Received>
class Talker {
 public:
  Talker(DealerSocket socket, std::string (*encode)(const Sent&, Incarnation),
         Decoded<Received> (*decode)(Bytes, std::span<const Bytes>))
      : socket_(std::move(socket)), encode_(encode), decode_(decode) {}

  void Say(const Sent& message) { SayBytes(encode_(message, 1)); }
  void SayBytes(std::string bytes) { ASSERT_EQ(socket_.Send(bytes).value(), SendResult::kSent); }

  // The next message, which must be a T. Patience is only for when to fail.
  template <typename T>
  T Expect() {
    constexpr Duration kPatience = 20 * kSecond;
    Poller poller;
    poller.Add(socket_);
    Time end = MonotonicNow() + kPatience;
    Frame frame;
    std::vector<Frame> attached;
    while (MonotonicNow() < end) {
      if (socket_.Receive(&frame, &attached).value() == ReceiveResult::kNothing) {
        EXPECT_TRUE(poller.Wait(end - MonotonicNow()).ok());
        continue;
      }
      std::vector<Bytes> prompts;
      for (const Frame& prompt : attached) prompts.push_back(prompt.bytes());
      Decoded<Received> decoded = decode_(frame.bytes(), prompts);
      EXPECT_TRUE(decoded.ok()) << decoded.error;
      T* wanted = std::get_if<T>(&decoded.message);
      if (wanted != nullptr) return std::move(*wanted);
      if (!Ignored(decoded.message)) {
        ADD_FAILURE() << "another message came first, kind " << decoded.message.index();
        return T();
      }
    }
    ADD_FAILURE() << "nothing came";
    return T();
  }

  DealerSocket& socket() { return socket_; }

 private:
  static bool Ignored(const Received& message) {
    if constexpr (std::is_same_v<Received, RouterToClient>) {
      return std::holds_alternative<KeepAliveReply>(message);
    }
    return false;
  }

  DealerSocket socket_;
  std::string (*encode_)(const Sent&, Incarnation);
  Decoded<Received> (*decode_)(Bytes, std::span<const Bytes>);
};

// Answers to clients are one frame.
inline Decoded<RouterToClient> DecodeAnswer(Bytes bytes, std::span<const Bytes> attached) {
  EXPECT_TRUE(attached.empty());
  return DecodeRouterToClient(bytes);
}

using TestClient = Talker<ClientMessage, RouterToClient>;
using TestWorker = Talker<WorkerToRouter, RouterToWorker>;

class LoopTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kVocab = 267;

  void SetUp() override {
    context_ = std::move(NetContext::Create().value());
    ports_ =
        std::move(RouterPorts::Bind(*context_, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0").value());
    tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::Create(SmallVocab("gpt-2")).value());
    filters_ = MakeTextFilters(tokenizer_.get());
    RouterText text;
    text.tokenizer = tokenizer_.get();
    text.filters = filters_.get();
    text.chat_template = ChatTemplate::ByName("chatml");
    RouterConfig config;
    config.model = "tiny";
    config.has_tokenizer = true;
    config.max_seq_len = 4096;
    config.vocab_size = kVocab;
    config.eos_ids = {264};
    config.router_incarnation = 99;
    loop_ = std::make_unique<RouterLoop>(config, 7, std::move(text), ports_.get());
    stop_fd_ = eventfd(0, EFD_CLOEXEC);
    loop_->Watch(stop_fd_, [this] { BeStopped(); });
    thread_ = std::thread([this] { run_status_ = loop_->Run(); });
  }
  void TearDown() override {
    loop_->Stop();
    thread_.join();
    EXPECT_TRUE(run_status_.ok()) << run_status_;
    loop_.reset();
    close(stop_fd_);
  }

  // Between these two the loop does not run: as if its process were stopped.
  void StopLoop() {
    uint64_t once = 1;
    ASSERT_EQ(write(stop_fd_, &once, sizeof(once)), static_cast<ssize_t>(sizeof(once)));
    stopped_.get_future().wait();
  }
  void ContinueLoop() { continued_.set_value(); }

  SocketOptions PeerOptions() {
    SocketOptions options;
    options.max_message_bytes = 64 << 20;
    return options;
  }
  TestClient NewClient() {
    TestClient client(DealerSocket::Connect(*context_, ports_->endpoint(), PeerOptions()).value(),
                      EncodeClientMessage, DecodeAnswer);
    client.Say(Hello{1, "", "test"});
    EXPECT_EQ(client.Expect<Welcome>().router_incarnation, 99u);
    return client;
  }
  // A group of one rank that is live.
  TestWorker NewWorker() {
    TestWorker worker(
        DealerSocket::Connect(*context_, ports_->worker_endpoint(), PeerOptions()).value(),
        EncodeWorkerToRouter, DecodeRouterToWorkerInParts);
    Join join;
    join.group = "a";
    join.group_incarnation = 5;
    join.world = 1;
    join.model = "tiny";
    join.device = "cpu";
    join.kv_blocks = 2048;
    join.bytes_per_token = 1024;
    join.max_seq_len = 4096;
    join.vocab_size = kVocab;
    worker.Say(join);
    EXPECT_EQ(worker.Expect<GroupStart>().kv_blocks, 2048u);
    StepReport alive;
    alive.group_incarnation = 5;
    worker.Say(alive);
    return worker;
  }

  void BeStopped() {
    uint64_t count = 0;
    EXPECT_EQ(read(stop_fd_, &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
    stopped_.set_value();
    continued_.get_future().wait();
  }

  StatusSnapshot Snapshot() { return **ports_->status_source()->Snapshot(); }

  std::unique_ptr<NetContext> context_;
  std::unique_ptr<RouterPorts> ports_;
  int stop_fd_ = -1;
  std::promise<void> stopped_;
  std::promise<void> continued_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<TextFilterFactory> filters_;
  std::unique_ptr<RouterLoop> loop_;
  std::thread thread_;
  absl::Status run_status_;
};

}  // namespace kvern
