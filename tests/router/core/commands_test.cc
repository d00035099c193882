// A turn that has more for a group, or for a client, than one message holds.
#include <gtest/gtest.h>

#include "router/core/router.h"
#include "schemas/codec.h"

namespace kvern {
namespace {

constexpr PeerId kClient = 1;
constexpr PeerId kWorker = 2;
constexpr PeerId kReader = 3;  // gives credit

class CommandsTest : public ::testing::Test {
 protected:
  static RouterConfig Config() {
    RouterConfig config;
    config.model = "tiny";
    config.max_seq_len = 1u << 21;
    config.vocab_size = 100;
    config.queue_entries = 1u << 20;
    config.queue_bytes = uint64_t{1} << 40;
    config.queue_wait_max = 100'000 * kSecond;
    config.default_ttft_deadline = 100'000 * kSecond;
    config.stream_window = 16;
    config.client_buffer_bytes = uint64_t{1} << 40;
    return config;
  }

  void SetUp() override {
    Join join;
    join.group = "a";
    join.group_incarnation = 1;
    join.world = 1;
    join.model = "tiny";
    join.kv_blocks = uint64_t{1} << 31;
    join.max_seq_len = 1u << 21;
    join.vocab_size = 100;
    StepReport live;
    live.group_incarnation = 1;
    Step(WorkerSaid{kWorker, join});
    Step(WorkerSaid{kWorker, live});
    Step(ClientSaid{kClient, Hello{1, "", ""}});
    Step(ClientSaid{kReader, Hello{2, "", "", /*gives_credit=*/true}});
    EndTurn();
  }

  void Step(RouterEvent event) { router_.Step(0, std::move(event), effects_); }

  void Ask(uint64_t id, size_t prompt_tokens) {
    GenerateRequest request;
    request.request_id = {0, id};
    request.prompt_token_ids = std::vector<uint32_t>(prompt_tokens, 5u);
    request.max_tokens = 1;
    request.service_class = ServiceClass::kGuaranteed;
    Step(ClientSaid{kClient, std::move(request)});
  }

  // A stream that will be paused a token after its first.
  void AskWithLogprobs(uint64_t id, uint32_t max_tokens) {
    GenerateRequest request;
    request.request_id = {0, id};
    request.prompt_token_ids = std::vector<uint32_t>{5};
    request.max_tokens = max_tokens;
    request.sampling.logprobs = kMaxLogprobs;
    Step(ClientSaid{kReader, std::move(request)});
  }

  // Tokens of request `id`, the last of which is its last.
  static TokenRun Run(uint64_t id, uint32_t position, size_t tokens, bool logprobs, bool last) {
    TokenRun run;
    run.request_id = {0, id};
    run.epoch = 1;
    run.position = position;
    run.token_ids.assign(tokens, 7);
    if (logprobs) {
      TokenLogprob logprob{7, -0.5f, {}};
      logprob.top.assign(kMaxLogprobs, {7, -0.5f});
      run.logprobs.assign(tokens, logprob);
    }
    if (last) run.finish_reason = FinishReason::kLength;
    return run;
  }

  void Report(std::vector<TokenRun> runs) {
    StepReport report;
    report.group_incarnation = 1;
    report.step_id = ++step_;
    report.acked_command = sequence_;
    report.runs = std::move(runs);
    Step(WorkerSaid{kWorker, std::move(report)});
  }

  // What the turn sends to clients as tokens; each message must be one that a client can read, and
  // far from what it would refuse.
  std::vector<Deltas> EndTurnOfClients() {
    router_.Flush(0, effects_);
    std::vector<Deltas> sent;
    for (ToClient& effect : effects_.to_clients) {
      auto* deltas = std::get_if<Deltas>(&effect.message);
      if (deltas == nullptr) continue;
      std::string bytes = EncodeRouterToClient(*deltas);
      EXPECT_LE(bytes.size(), kMaxRouterToClientBytes / 4);
      EXPECT_TRUE(DecodeRouterToClient(std::as_bytes(std::span(bytes.data(), bytes.size()))).ok());
      sent.push_back(std::move(*deltas));
    }
    effects_.Clear();
    return sent;
  }

  // What the turn sends to the group; each message must be one that the worker can read.
  std::vector<Commands> EndTurn() {
    router_.Flush(0, effects_);
    std::vector<Commands> sent;
    for (ToWorker& effect : effects_.to_workers) {
      auto* commands = std::get_if<Commands>(&effect.message);
      if (commands == nullptr) continue;
      std::string bytes = EncodeRouterToWorker(*commands);
      Decoded<RouterToWorker> read =
          DecodeRouterToWorker(std::as_bytes(std::span(bytes.data(), bytes.size())));
      EXPECT_TRUE(read.ok()) << read.error;
      EXPECT_EQ(commands->sequence, ++sequence_);
      sent.push_back(std::move(*commands));
    }
    effects_.Clear();
    return sent;
  }

  Router router_{Config(), 1, nullptr};
  RouterEffects effects_;
  uint64_t sequence_ = 0;
  uint64_t step_ = 0;
};

// Whoever watches the processes hears of each start once, when its first rank has joined.
TEST_F(CommandsTest, TheFirstRankOfAStartIsTold) {
  Join join;
  join.group = "b";
  join.group_incarnation = 7;
  join.world = 2;
  join.model = "tiny";
  join.kv_blocks = 10;
  join.max_seq_len = 1u << 21;
  join.vocab_size = 100;
  Step(WorkerSaid{kWorker + 1, join});
  ASSERT_EQ(effects_.joining.size(), 1u);
  EXPECT_EQ(effects_.joining[0].group, "b");
  EXPECT_EQ(effects_.joining[0].incarnation, 7u);
  EndTurn();
  join.rank = 1;
  Step(WorkerSaid{kWorker + 2, join});
  EXPECT_TRUE(effects_.joining.empty());
}

TEST_F(CommandsTest, ManyDispatches) {
  for (uint64_t id = 1; id <= kMaxDispatches + 1; ++id) Ask(id, 1);
  std::vector<Commands> sent = EndTurn();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].dispatches.size(), kMaxDispatches);
  EXPECT_EQ(sent[1].dispatches.size(), 1u);
}

TEST_F(CommandsTest, LongPrompts) {
  for (uint64_t id = 1; id <= 20; ++id) Ask(id, kMaxPromptTokens);  // 80 MiB
  std::vector<Commands> sent = EndTurn();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].dispatches.size() + sent[1].dispatches.size(), 20u);
}

// So that what is decided costs the same for 0.2 KB and for 4 MB (bench_router measures it).
TEST_F(CommandsTest, Case29ThePromptIsMovedAndNeverCopied) {
  GenerateRequest request;
  request.request_id = {0, 1};
  request.prompt_token_ids = std::vector<uint32_t>(kMaxPromptTokens, 5u);
  request.max_tokens = 1;
  const uint32_t* tokens = request.prompt_token_ids->data();
  Step(ClientSaid{kClient, std::move(request)});
  std::vector<Commands> sent = EndTurn();
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_EQ(sent[0].dispatches.size(), 1u);
  EXPECT_EQ(sent[0].dispatches[0].prompt.data(), tokens);
}

TEST_F(CommandsTest, ManyCancels) {
  for (uint64_t id = 1; id <= kMaxCancels + 1; ++id) Ask(id, 1);
  EXPECT_EQ(EndTurn().size(), 5u);
  Step(ClientUnreachable{kClient});
  std::vector<Commands> sent = EndTurn();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].cancels.size(), kMaxCancels);
  EXPECT_EQ(sent[1].cancels.size(), 1u);
}

// One message would be beyond what a client takes: it would be lost, and its streams with it.
TEST_F(CommandsTest, CreditForManyPausedStreamsAtOnce) {
  constexpr uint64_t kStreams = 50;
  constexpr uint32_t kTokens = 8000;  // 1.4 MB of each
  for (uint64_t id = 1; id <= kStreams; ++id) AskWithLogprobs(id, 1 + kTokens);
  EndTurn();
  Consumed read;
  for (uint64_t id = 1; id <= kStreams; ++id) {
    Report({Run(id, 0, 1, true, false)});
    Report({Run(id, 1, kTokens, true, true)});
    read.streams.push_back({{0, id}, 1});
  }
  std::vector<Deltas> sent = EndTurnOfClients();
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_EQ(sent[0].deltas.size(), kStreams) << "the first token of each";
  Step(ClientSaid{kReader, read});
  uint64_t id = 0;
  sent = EndTurnOfClients();
  EXPECT_GT(sent.size(), 1u);
  for (const Deltas& message : sent) {
    for (const Delta& delta : message.deltas) {
      EXPECT_EQ(delta.request_id, (RequestId{0, ++id}));
      EXPECT_EQ(delta.position, 1u);
      EXPECT_EQ(delta.token_ids.size(), kTokens);
      EXPECT_TRUE(delta.usage.has_value());
    }
  }
  EXPECT_EQ(id, kStreams);
  router_.Audit();
}

TEST_F(CommandsTest, ManyDeltas) {
  std::vector<TokenRun> runs;
  for (uint64_t id = 1; id <= kMaxDeltas + 1; ++id) {
    Ask(id, 1);
    runs.push_back(Run(id, 0, 1, false, true));
  }
  EndTurn();
  Report(std::move(runs));
  std::vector<Deltas> sent = EndTurnOfClients();
  size_t total = 0;
  for (const Deltas& message : sent) total += message.deltas.size();
  EXPECT_EQ(total, kMaxDeltas + 1);
}

}  // namespace
}  // namespace kvern
