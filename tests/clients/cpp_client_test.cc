// The C++ client against a router of a few lines, on real sockets.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "cluster/base/check.h"
#include "cluster/net/poller.h"
#include "cluster/net/socket.h"
#include "gtest/gtest.h"
#include "schemas/codec.h"
#include "tests/clients/small_router.h"
#include "tools/clients/cpp/client.h"

// libzmq is not instrumented: what it hands from thread to thread looks like a race.
#ifdef __SANITIZE_THREAD__
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libzmq.so.5\n"; }
#endif

namespace kvern {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;

// What a request says in one place can be set in no other, where it would not count.
template <typename Params>
concept HasSeed = requires(Params params) {
  params.seed;
};
template <typename Params>
concept HasMaxTokens = requires(Params params) {
  params.max_tokens;
};
static_assert(HasSeed<GenerateRequest> && HasMaxTokens<GenerateRequest>);
static_assert(!HasSeed<decltype(GenerateRequest::sampling)>);
static_assert(!HasMaxTokens<decltype(GenerateRequest::sampling)>);

TEST(CppClient, WholeAnswer) {
  SmallRouter router(Serve);
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  EXPECT_EQ(client->welcome().model, "small");
  Answer answer = client->Complete(Ask("x"));
  ASSERT_FALSE(answer.error.has_value());
  EXPECT_EQ(answer.seed, 77u);
  EXPECT_EQ(answer.choices[0].text, "012");
  EXPECT_EQ(answer.choices[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(answer.usage.completion_tokens, 3u);
  absl::StatusOr<CapacityReply> capacity = client->Capacity();
  ASSERT_TRUE(capacity.ok());
  EXPECT_EQ(capacity->groups[0].total_blocks, 9u);
}

TEST(CppClientDeathTest, AnEmptySinkIsSaidWhereItIsGiven) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  SmallRouter router(Serve);
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  EXPECT_DEATH(client->Start({}, nullptr), "Client::Start: the sink is empty");
}

TEST(CppClient, MoreChoicesThanThereMayBeAreRefusedByTheRouter) {
  SmallRouter router(Serve);
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  for (uint32_t n : {0u, kMaxChoices + 1, UINT32_MAX}) {
    GenerateRequest request = Ask("x");
    request.n = n;
    Answer answer = client->Complete(request);
    ASSERT_TRUE(answer.error.has_value()) << n;
    EXPECT_EQ(answer.error->code, ErrorCode::kInvalidArgument);
    EXPECT_LE(answer.choices.size(), kMaxChoices);
  }
}

TEST(CppClient, ManyThreadsManyRequests) {
  SmallRouter router(Serve);
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (uint32_t i = 1; i <= 8; ++i) {
    threads.emplace_back([&, i] {
      for (uint32_t j = 1; j <= 50; ++j) {
        good += client->Complete(Ask("x", i * j)).choices[0].token_ids.size() == i * j;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 400);
}

TEST(CppClient, ReadersGiveCredit) {
  Heard taken;
  SmallRouter router([&](const ClientMessage& message, const SmallRouter::Reply& reply) {
    if (const Consumed* consumed = std::get_if<Consumed>(&message)) {
      ASSERT_EQ(consumed->streams.size(), 1u);
      taken.Add(consumed->streams[0].tokens);
    } else if (const Hello* hello = std::get_if<Hello>(&message)) {
      EXPECT_TRUE(hello->gives_credit);
      Welcome welcome;
      welcome.keep_alive_ms = 600'000;
      welcome.stream_window = 5;
      reply(welcome);
    } else {
      Serve(message, reply);
    }
  });
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  std::unique_ptr<RequestStream> stream = client->Generate(Ask("endless", 8));
  ASSERT_TRUE(client->Capacity().ok());  // Behind all deltas: they are here, and were not read.
  EXPECT_TRUE(taken.Await(0).empty());
  ASSERT_TRUE(std::holds_alternative<Accepted>(*stream->Next()));
  for (int i = 0; i < 2; ++i) stream->Next();
  ASSERT_TRUE(client->Capacity().ok());
  EXPECT_TRUE(taken.Await(0).empty());
  stream->Next();  // half of 5, rounded up
  EXPECT_THAT(taken.Await(1), ElementsAre(3));
  for (int i = 0; i < 3; ++i) stream->Next();
  EXPECT_THAT(taken.Await(2), ElementsAre(3, 6));
  stream.reset();

  // What a sink was called with is read.
  client->Start(Ask("endless", 4), [](RequestEvent) {});
  EXPECT_THAT(taken.Await(3), ElementsAre(3, 6, AnyOf(3, 4)));
}

TEST(CppClient, KeepAlivesReportTheRest) {
  Heard taken;
  SmallRouter router([&](const ClientMessage& message, const SmallRouter::Reply& reply) {
    if (const Consumed* consumed = std::get_if<Consumed>(&message)) {
      taken.Add(consumed->streams.at(0).tokens);
    } else if (std::holds_alternative<Hello>(message)) {
      Welcome welcome;
      welcome.keep_alive_ms = 10;
      welcome.stream_window = 1000;
      reply(welcome);
    } else {
      Serve(message, reply);
    }
  });
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  std::unique_ptr<RequestStream> stream = client->Generate(Ask("hang"));
  stream->Next();
  stream->Next();
  EXPECT_THAT(taken.Await(1), ElementsAre(1));
}

// Refuses "busy", and says `credit` with each keep-alive.
SmallRouter::Answer BusyRouter(Heard* generated, std::atomic<uint32_t>* credit) {
  return [=](const ClientMessage& message, const SmallRouter::Reply& reply) {
    const GenerateRequest* request = std::get_if<GenerateRequest>(&message);
    if (request != nullptr) generated->Add(request->ttft_deadline_ms.value_or(0));
    if (request != nullptr && request->prompt == "busy") {
      RequestError error{request->request_id, ErrorCode::kOverloaded, "busy", {}};
      error.details.retry_after_ms = 60'000;
      error.details.credit = 0;
      reply(error);
    } else if (std::holds_alternative<KeepAlive>(message)) {
      reply(KeepAliveReply{credit->load()});
    } else {
      Serve(message, reply);
    }
  };
}

TEST(CppClient, RequestsWaitForCredit) {
  Heard generated;
  std::atomic<uint32_t> credit{0};
  SmallRouter router(BusyRouter(&generated, &credit));
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  EXPECT_EQ(client->Complete(Ask("busy")).error->code, ErrorCode::kOverloaded);
  GenerateRequest patient = Ask("x");
  patient.ttft_deadline_ms = 600'000;
  std::unique_ptr<RequestStream> held = client->Generate(patient);
  std::unique_ptr<RequestStream> second = client->Generate(Ask("x"));
  client->Generate(Ask("dropped")).reset();
  ASSERT_TRUE(client->Capacity().ok());  // Behind whatever was sent.
  EXPECT_EQ(generated.Await(0).size(), 1u);
  // Its deadline would pass: the router is asked at once.
  GenerateRequest urgent = Ask("x");
  urgent.ttft_deadline_ms = 1000;
  EXPECT_FALSE(client->Complete(urgent).error.has_value());
  EXPECT_EQ(generated.Await(0).size(), 2u);

  credit = 2;
  while (std::optional<RequestEvent> event = held->Next()) {
    EXPECT_FALSE(std::holds_alternative<RequestError>(*event));
  }
  EXPECT_LE(generated.Await(4)[2], 600'000u);
  EXPECT_GT(generated.Await(4)[2], 0u);
  credit = 0;
  EXPECT_EQ(client->Complete(Ask("busy")).error->code, ErrorCode::kOverloaded);
  std::unique_ptr<RequestStream> never = client->Generate(Ask("x"));
  client.reset();
  EXPECT_EQ(std::get<RequestError>(*never->Next()).code, ErrorCode::kCancelled);
}

TEST(CppClient, WithoutThrottleEverythingIsSent) {
  Heard generated;
  std::atomic<uint32_t> credit{0};
  SmallRouter router(BusyRouter(&generated, &credit));
  ClientOptions options;
  options.endpoint = router.endpoint();
  options.throttle = false;
  std::unique_ptr<Client> client = *Client::Connect(options);
  EXPECT_EQ(client->Complete(Ask("busy")).error->code, ErrorCode::kOverloaded);
  EXPECT_FALSE(client->Complete(Ask("x")).error.has_value());
}

TEST(CppClient, DroppedStreamCancels) {
  std::atomic<int> cancelled{0};
  WakeUp heard = *WakeUp::Create();
  SmallRouter router([&](const ClientMessage& message, const SmallRouter::Reply& reply) {
    if (std::holds_alternative<CancelRequest>(message)) {
      ++cancelled;
      heard.Notify();
    }
    Serve(message, reply);
  });
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  client->Generate(Ask("hang"))->Next();
  Poller poller;
  poller.AddFd(heard.fd());
  ASSERT_TRUE(poller.Wait(20 * kSecond).ok());
  EXPECT_EQ(cancelled, 1);
}

TEST(CppClient, CancelEndsTheStream) {
  SmallRouter router(Serve);
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  RequestError error =
      LastWords(*client, [&](const RequestId& request_id) { client->Cancel(request_id); });
  EXPECT_EQ(error.code, ErrorCode::kCancelled);
  EXPECT_EQ(client->Complete(Ask("x")).choices[0].text, "012");
}

TEST(CppClient, RouterDiesAndReturns) {
  auto router = std::make_unique<SmallRouter>(Serve);
  std::string endpoint = router->endpoint();
  std::unique_ptr<Client> client = ConnectTo(endpoint);
  RequestError error = LastWords(*client, [&](const RequestId&) { router.reset(); });
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  std::unique_ptr<RequestStream> waiting = client->Generate(Ask("x"));
  router = std::make_unique<SmallRouter>(Serve, endpoint);
  size_t deltas = 0;
  while (std::optional<RequestEvent> event = waiting->Next()) {
    ASSERT_FALSE(std::holds_alternative<RequestError>(*event));
    deltas += std::holds_alternative<Delta>(*event);
  }
  EXPECT_EQ(deltas, 3u);
}

TEST(CppClient, SilenceIsUnavailable) {
  std::atomic<bool> silent{false};
  SmallRouter router([&](const ClientMessage& message, const SmallRouter::Reply& reply) {
    if (!silent) Serve(message, reply);
  });
  std::unique_ptr<Client> client = ConnectTo(router.endpoint(), 300 * kMillisecond);
  RequestError error = LastWords(*client, [&](const RequestId&) { silent = true; });
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_NE(error.message.find("silent for 300 ms"), std::string::npos) << error.message;
}

TEST(CppClient, NobodyThere) {
  ClientOptions options;
  options.endpoint = "tcp://127.0.0.1:1";
  options.timeout = 100 * kMillisecond;
  EXPECT_EQ(Client::Connect(options).status().code(), absl::StatusCode::kUnavailable);
  options.endpoint = "nowhere";
  EXPECT_EQ(Client::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CppClient, ClosingTheClientEndsItsStreams) {
  SmallRouter router(Serve);
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  std::unique_ptr<RequestStream> stream = client->Generate(Ask("hang"));
  client.reset();
  std::optional<RequestEvent> last;
  while (std::optional<RequestEvent> event = stream->Next()) last = event;
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(std::get<RequestError>(*last).code, ErrorCode::kCancelled);
}

TEST(CppClient, SameOpenRequestIdTwice) {
  SmallRouter router(Serve);
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  GenerateRequest request = Ask("hang");
  request.request_id = {1, 2};
  std::unique_ptr<RequestStream> first = client->Generate(request);
  Answer second = client->Complete(request);
  ASSERT_TRUE(second.error.has_value());
  EXPECT_EQ(second.error->code, ErrorCode::kInvalidArgument);
}

TEST(CppClient, ARefusedDoubleDoesNotCancelTheFirst) {
  std::atomic<int> cancelled{0};
  SmallRouter router([&](const ClientMessage& message, const SmallRouter::Reply& reply) {
    cancelled += std::holds_alternative<CancelRequest>(message);
    Serve(message, reply);
  });
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  GenerateRequest request = Ask("hang");
  request.request_id = {1, 2};
  std::unique_ptr<RequestStream> first = client->Generate(request);
  client->Generate(request).reset();     // before its error was read
  ASSERT_TRUE(client->Capacity().ok());  // behind whatever was sent before
  EXPECT_EQ(cancelled, 0);
  first.reset();
  ASSERT_TRUE(client->Capacity().ok());
  EXPECT_EQ(cancelled, 1);
}

TEST(CppClient, AnErrorAboutADoubleDoesNotEndTheStream) {
  SmallRouter router(Serve);
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  Answer answer = client->Complete(Ask("doubled"));
  EXPECT_FALSE(answer.error.has_value());
  EXPECT_EQ(answer.choices[0].text, "012");
}

// Sent, it would end the connection, and the other stream with it.
TEST(CppClient, ARequestTooLargeForTheWireIsNotSent) {
  SmallRouter router(Serve);
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  std::unique_ptr<RequestStream> other = client->Generate(Ask("hang"));
  Answer answer = client->Complete(Ask(std::string(kMaxClientMessageBytes, 'a')));
  ASSERT_TRUE(answer.error.has_value());
  EXPECT_EQ(answer.error->code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(client->Complete(Ask("and on")).error.has_value());
  EXPECT_TRUE(std::holds_alternative<Accepted>(*other->Next()));
  EXPECT_TRUE(std::holds_alternative<Delta>(*other->Next()));
}

}  // namespace
}  // namespace kvern
