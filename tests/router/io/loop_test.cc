// The loop with real sockets: what comes in goes through the core and out again, rubbish does not.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "cluster/base/rng.h"
#include "tests/router/io/loop_fixture.h"

// libzmq is not instrumented: what it hands from thread to thread looks like a race.
#ifdef __SANITIZE_THREAD__
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libzmq.so.5\n"; }
#endif

namespace kvern {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GenerateRequest Request(uint64_t id) {
  GenerateRequest request;
  request.request_id = {0, id};
  request.prompt_token_ids = {1, 2, 3};
  request.max_tokens = 4;
  request.seed = 11;
  return request;
}

// The worker's answer to all of a dispatch at once.
StepReport Finish(const Dispatch& dispatch, uint64_t sequence, std::vector<uint32_t> ids) {
  StepReport report;
  report.group_incarnation = 5;
  report.step_id = sequence;
  report.acked_command = sequence;
  TokenRun& run = report.runs.emplace_back();
  run.request_id = dispatch.request_id;
  run.epoch = dispatch.epoch;
  run.token_ids = std::move(ids);
  run.finish_reason = FinishReason::kLength;
  return report;
}

TEST_F(LoopTest, ARequestGoesRound) {
  TestWorker worker = NewWorker();
  TestClient client = NewClient();
  client.Say(Request(1));
  Accepted accepted = client.Expect<Accepted>();
  EXPECT_EQ(accepted.request_id, (RequestId{0, 1}));
  EXPECT_EQ(accepted.seed, 11u);
  Commands commands = worker.Expect<Commands>();
  ASSERT_EQ(commands.dispatches.size(), 1u);
  EXPECT_THAT(commands.dispatches[0].prompt, ElementsAre(1, 2, 3));
  // "the in", each a token of the small vocabulary.
  worker.Say(Finish(commands.dispatches[0], commands.sequence, {257, 258, 32, 259}));
  Deltas deltas = client.Expect<Deltas>();
  ASSERT_EQ(deltas.deltas.size(), 1u);
  EXPECT_THAT(deltas.deltas[0].token_ids, ElementsAre(257, 258, 32, 259));
  EXPECT_EQ(deltas.deltas[0].text, "he the in");
  EXPECT_EQ(deltas.deltas[0].finish_reason, FinishReason::kLength);
  EXPECT_TRUE(deltas.deltas[0].usage.has_value());
  StatusSnapshot snapshot = Snapshot();
  EXPECT_EQ(snapshot.status.counters.completed, 1u);
  EXPECT_EQ(snapshot.status.groups[0].reserved_blocks, 0u);
  EXPECT_EQ(snapshot.distributions.ttft.count(), 1u);
}

// Their ids stay in the messages that brought them until they have left, and are not looked at; a
// message goes at once if the service refuses it.
TEST_F(LoopTest, LongPromptsGoRoundUnchanged) {
  TestWorker worker = NewWorker();
  TestClient client = NewClient();
  constexpr uint64_t kRequests = 8;
  std::vector<uint32_t> ids(3000);  // within what the model takes
  for (uint64_t id = 1; id <= kRequests; ++id) {
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>((i * id) % 250);
    GenerateRequest request = Request(id);
    request.prompt_token_ids = ids;
    client.Say(request);
    request.request_id = {1, id};
    request.model = "another";
    client.Say(request);
  }
  uint64_t id = 0;
  while (id < kRequests) {
    for (const Dispatch& dispatch : worker.Expect<Commands>().dispatches) {
      ++id;
      ASSERT_EQ(dispatch.request_id, (RequestId{0, id}));
      ASSERT_EQ(dispatch.prompt.size(), ids.size());
      for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(dispatch.prompt[i], (i * id) % 250);
    }
  }
  for (uint64_t k = 1; k <= kRequests; ++k) {
    EXPECT_EQ(client.Expect<Accepted>().request_id, (RequestId{0, k}));
    RequestError error = client.Expect<RequestError>();
    EXPECT_EQ(error.request_id, (RequestId{1, k}));
    EXPECT_EQ(error.code, ErrorCode::kNotFound);
  }
}

// Those of a short prompt are looked at here, those of a long one by the worker.
TEST_F(LoopTest, AnIdThatTheModelDoesNotKnowIsRefused) {
  TestWorker worker = NewWorker();
  TestClient client = NewClient();
  GenerateRequest request = Request(1);
  request.prompt_token_ids = std::vector<uint32_t>(2047, kVocab);
  client.Say(request);
  EXPECT_EQ(client.Expect<RequestError>().message,
            "token id in the prompt is 267, allowed: below 267");
  request.request_id = {0, 2};
  request.prompt_token_ids = std::vector<uint32_t>(2048, kVocab);
  client.Say(request);
  Commands commands = worker.Expect<Commands>();
  ASSERT_EQ(commands.dispatches.size(), 1u);
  StepReport report;
  report.group_incarnation = 5;
  report.step_id = 1;
  report.acked_command = commands.sequence;
  report.nacks.push_back({{0, 2}, commands.dispatches[0].epoch, ErrorCode::kInvalidArgument, "id"});
  worker.Say(report);
  EXPECT_EQ(client.Expect<Accepted>().request_id, (RequestId{0, 2}));
  RequestError error = client.Expect<RequestError>();
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.message, "id");
  EXPECT_EQ(Snapshot().status.groups[0].reserved_blocks, 0u);
}

TEST_F(LoopTest, TextIsTokenisedOnTheWay) {
  TestWorker worker = NewWorker();
  TestClient client = NewClient();
  GenerateRequest request = Request(1);
  request.prompt_token_ids.reset();
  request.prompt = "a the<|im_end|>";
  client.Say(request);
  Commands commands = worker.Expect<Commands>();
  ASSERT_EQ(commands.dispatches.size(), 1u);
  // The control token in a user's text is text.
  EXPECT_EQ(commands.dispatches[0].prompt, tokenizer_->Encode("a the<|im_end|>", {}).value());
  GenerateRequest chat = Request(2);
  chat.prompt_token_ids.reset();
  chat.messages.emplace(1, ChatMessage{"user", "hi"});
  client.Say(chat);
  commands = worker.Expect<Commands>();
  ASSERT_EQ(commands.dispatches.size(), 1u);
  EXPECT_EQ(commands.dispatches[0].prompt[0], 263u);  // <|im_start|>
}

TEST_F(LoopTest, AStopStringEndsTheTextAndTheWorkersWork) {
  TestWorker worker = NewWorker();
  TestClient client = NewClient();
  GenerateRequest request = Request(1);
  request.stop = {"the"};
  client.Say(request);
  client.Expect<Accepted>();
  Commands commands = worker.Expect<Commands>();
  ASSERT_EQ(commands.dispatches.size(), 1u);
  StepReport report = Finish(commands.dispatches[0], commands.sequence, {97, 258, 98});
  report.runs[0].finish_reason = FinishReason::kNone;
  worker.Say(report);
  Deltas deltas = client.Expect<Deltas>();
  ASSERT_EQ(deltas.deltas.size(), 1u);
  EXPECT_THAT(deltas.deltas[0].token_ids, ElementsAre(97, 258));
  EXPECT_EQ(deltas.deltas[0].text, "a ");
  EXPECT_EQ(deltas.deltas[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(std::get<std::string>(deltas.deltas[0].stop_reason), "the");
  EXPECT_EQ(worker.Expect<Commands>().cancels.size(), 1u);
}

TEST_F(LoopTest, AnOpenRequestCanBeLookedUp) {
  TestClient client = NewClient();
  client.Say(Request(3));
  client.Expect<Accepted>();
  absl::StatusOr<RequestStatus> found = ports_->status_source()->Find({0, 3});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->state, "queued");
  EXPECT_EQ(ports_->status_source()->Find({0, 4}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(LoopTest, AnUnreadableRequestIsAnsweredUnderItsId) {
  TestClient client = NewClient();
  GenerateRequest request = Request(9);
  request.sampling.top_p = 1.5;
  client.Say(request);
  RequestError error = client.Expect<RequestError>();
  EXPECT_EQ(error.request_id, (RequestId{0, 9}));
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.message, "top_p 1.5, allowed: 0 < top_p <= 1");
  BadMessages bad = Snapshot().client_messages;
  EXPECT_EQ(bad.by_failure[static_cast<size_t>(DecodeFailure::kOutOfRange)], 1u);
}

TEST_F(LoopTest, AnUnreadableRepeatOfAnOpenRequestIsNotItsEnd) {
  TestClient client = NewClient();
  client.Say(Request(9));
  client.Expect<Accepted>();
  GenerateRequest again = Request(9);
  again.n = kMaxChoices + 1;
  client.Say(again);
  EXPECT_TRUE(client.Expect<RequestError>().details.still_open);
  again.request_id = {0, 10};
  client.Say(again);
  EXPECT_FALSE(client.Expect<RequestError>().details.still_open);
}

TEST_F(LoopTest, RubbishOnBothSocketsIsCountedAndHarmsNobody) {
  TestWorker worker = NewWorker();
  TestClient client = NewClient();
  Rng rng(1);
  constexpr uint64_t kMessages = 300;
  TestClient stranger(DealerSocket::Connect(*context_, ports_->endpoint(), PeerOptions()).value(),
                      EncodeClientMessage, DecodeAnswer);
  TestWorker strange_worker(
      DealerSocket::Connect(*context_, ports_->worker_endpoint(), PeerOptions()).value(),
      EncodeWorkerToRouter, DecodeRouterToWorkerInParts);
  for (uint64_t i = 0; i < kMessages; ++i) {
    std::string bytes(rng.Below(300), '\0');
    for (char& byte : bytes) byte = static_cast<char>(rng.Next());
    stranger.SayBytes(bytes);
    strange_worker.SayBytes(bytes);
  }
  // Frames that are too many, and a worker's message on the clients' socket.
  for (int more : {ZMQ_SNDMORE, ZMQ_SNDMORE, 0}) {
    ASSERT_EQ(zmq_send(stranger.socket().handle(), "x", 1, more), 1);
    ASSERT_EQ(zmq_send(strange_worker.socket().handle(), "x", 1, more), 1);
  }
  stranger.SayBytes(EncodeWorkerToRouter(Leave{}));
  for (uint64_t i = 0; i < kMessages + 1; ++i) {
    RequestError error = stranger.Expect<RequestError>();
    ASSERT_TRUE(error.request_id.IsZero());
    ASSERT_THAT(error.message, HasSubstr("not a KVCR message"));
  }
  for (uint64_t i = 0; i < kMessages; ++i) {
    ASSERT_THAT(strange_worker.Expect<JoinRefused>().reason, HasSubstr("not a KVWR message"));
  }
  StatusSnapshot snapshot = Snapshot();
  constexpr auto kMalformed = static_cast<size_t>(DecodeFailure::kMalformed);
  EXPECT_EQ(snapshot.client_messages.by_failure[kMalformed], kMessages + 1);
  EXPECT_EQ(snapshot.worker_messages.by_failure[kMalformed], kMessages);
  EXPECT_EQ(snapshot.client_messages.frames, 1u);
  EXPECT_EQ(snapshot.worker_messages.frames, 1u);

  client.Say(Request(1));
  client.Expect<Accepted>();
  EXPECT_EQ(worker.Expect<Commands>().dispatches.size(), 1u);
}

TEST_F(LoopTest, ALeaderThatTalksRubbishIsLost) {
  TestWorker worker = NewWorker();
  TestClient client = NewClient();
  client.Say(Request(1));
  client.Expect<Accepted>();
  EXPECT_EQ(worker.Expect<Commands>().dispatches.size(), 1u);
  worker.SayBytes("rubbish");
  EXPECT_EQ(client.Expect<RequestError>().code, ErrorCode::kUnavailable);
  EXPECT_EQ(Snapshot().status.counters.lost_groups, 1u);
}

TEST_F(LoopTest, AClientThatLeftFreesItsBlocks) {
  TestWorker worker = NewWorker();
  Commands commands;
  {
    TestClient client = NewClient();
    client.Say(Request(1));
    client.Expect<Accepted>();
    commands = worker.Expect<Commands>();
    ASSERT_EQ(commands.dispatches.size(), 1u);
  }
  // The router learns it from a send that fails, at the latest.
  StepReport report = Finish(commands.dispatches[0], commands.sequence, {1});
  report.runs[0].finish_reason = FinishReason::kNone;
  worker.Say(report);
  Commands cancel = worker.Expect<Commands>();
  ASSERT_EQ(cancel.cancels.size(), 1u);
  EXPECT_EQ(cancel.cancels[0].request_id, (RequestId{0, 1}));
}

// What waits in the sockets after a pause is more than a turn reads.
TEST_F(LoopTest, WhoSpokeWhileItWasStoppedIsNotSilent) {
  std::vector<TestClient> busy;
  std::vector<TestClient> clients;
  for (uint64_t id = 1; id <= 3; ++id) {
    busy.push_back(NewClient());
    clients.push_back(NewClient());
    clients.back().Say(Request(id));
    clients.back().Expect<Accepted>();
  }
  StopLoop();
  GenerateRequest large = Request(9);
  large.prompt_token_ids = std::vector<uint32_t>(100'000, 1u);
  for (TestClient& client : busy) client.Say(large);
  std::this_thread::sleep_for(std::chrono::milliseconds(3100));  // beyond a client's lease
  for (TestClient& client : clients) client.Say(KeepAlive{});
  ContinueLoop();
  for (TestClient& client : clients) client.Expect<KeepAliveReply>();
}

// Before the model is known nobody reads: what a client sends then stays with it, but for a little.
TEST(RouterPorts, WhatWaitsToBeReadHasABound) {
  constexpr size_t kBytes = 1 << 20;
  constexpr size_t kBound = 100;  // 32 messages, and what lies in the buffers of a connection
  constexpr Duration kNoMore = kSecond;
  auto context = NetContext::Create().value();
  auto ports = RouterPorts::Bind(*context, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0").value();
  SocketOptions options;
  options.max_message_bytes = 1 << 20;
  options.send_queue = 1;
  auto client = DealerSocket::Connect(*context, ports->endpoint(), options).value();
  size_t sent = 0;
  for (Time end = MonotonicNow() + 20 * kNoMore; sent <= kBound && MonotonicNow() < end;) {
    std::string body(kBytes, 'x');
    if (client.Send(body).value() != SendResult::kSent) {
      std::this_thread::yield();
      continue;
    }
    ++sent;
    end = MonotonicNow() + kNoMore;
  }
  EXPECT_LE(sent, kBound);
  EXPECT_GT(sent, 32u);
}

TEST_F(LoopTest, QuestionsAfterTheEndAreRefused) {
  loop_->Stop();
  thread_.join();
  EXPECT_EQ(ports_->status_source()->Snapshot().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ports_->status_source()->Find({0, 1}).status().code(), absl::StatusCode::kUnavailable);
  thread_ = std::thread([] {});
}

}  // namespace
}  // namespace kvern
