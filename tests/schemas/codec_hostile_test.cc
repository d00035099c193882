// Messages that are well-formed FlatBuffers and still wrong: each is refused with its reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>

#include "flatbuffers/flatbuffers.h"
#include "schemas/codec.h"
#include "wire/client_generated.h"
#include "wire/worker_generated.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;

Bytes AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

GenerateRequest Good() {
  GenerateRequest request;
  request.request_id = {1, 2};
  request.prompt = "hello";
  return request;
}

struct Case {
  const char* error;
  std::function<void(GenerateRequest&)> spoil;
};

using R = GenerateRequest;

const Case kCases[] = {
    {"temperature -1, allowed: 0 to 100", [](R& r) { r.sampling.temperature = -1; }},
    {"temperature nan", [](R& r) { r.sampling.temperature = kNan; }},
    {"temperature inf", [](R& r) { r.sampling.temperature = kInf; }},
    {"top_p 1.5, allowed: 0 < top_p <= 1", [](R& r) { r.sampling.top_p = 1.5; }},
    {"top_p 0, allowed", [](R& r) { r.sampling.top_p = 0; }},
    {"top_p nan", [](R& r) { r.sampling.top_p = kNan; }},
    {"min_p 2, allowed: 0 to 1", [](R& r) { r.sampling.min_p = 2; }},
    {"min_p nan", [](R& r) { r.sampling.min_p = kNan; }},
    {"repetition_penalty 0", [](R& r) { r.sampling.repetition_penalty = 0; }},
    {"repetition_penalty inf", [](R& r) { r.sampling.repetition_penalty = kInf; }},
    {"presence_penalty 3, allowed: -2 to 2", [](R& r) { r.sampling.presence_penalty = 3; }},
    {"frequency_penalty -3", [](R& r) { r.sampling.frequency_penalty = -3; }},
    {"logit_bias[1] 101",
     [](R& r) {
       r.sampling.logit_bias = {{5, 100.0f}, {6, 101.0f}};
     }},
    {"logit_bias[0] nan",
     [](R& r) {
       r.sampling.logit_bias = {{5, kNan}};
     }},
    {"logit_bias with 301 entries, allowed: 300", [](R& r) { r.sampling.logit_bias.resize(301); }},
    {"stop_token_ids with 65 entries, allowed: 64",
     [](R& r) { r.sampling.stop_token_ids.resize(65); }},
    {"logprobs 21, allowed: 0 to 20", [](R& r) { r.sampling.logprobs = 21; }},
    {"prompt_logprobs 99", [](R& r) { r.sampling.prompt_logprobs = 99; }},
    {"max_tokens 0, allowed: 1 or more", [](R& r) { r.max_tokens = 0; }},
    {"min_tokens 9, allowed: up to max_tokens 8",
     [](R& r) {
       r.max_tokens = 8;
       r.sampling.min_tokens = 9;
     }},
    {"n 0, allowed: 1 to 8", [](R& r) { r.n = 0; }},
    {"n 9, allowed: 1 to 8", [](R& r) { r.n = 9; }},
    {"class 3, allowed: 0 to 2", [](R& r) { r.service_class = static_cast<ServiceClass>(3); }},
    {"stop with 17 entries, allowed: 16", [](R& r) { r.stop.resize(17, "x"); }},
    {"stop[1] is empty",
     [](R& r) {
       r.stop = {"a", ""};
     }},
    {"stop[0] of 257 bytes, allowed: 256", [](R& r) { r.stop = {std::string(257, 'x')}; }},
    {"model of 257 bytes, allowed: 256", [](R& r) { r.model = std::string(257, 'x'); }},
    {"prompt of 4194305 bytes, allowed: 4194304",
     [](R& r) { r.prompt = std::string(kMaxPromptBytes + 1, 'x'); }},
    {"prompt is ill-formed at byte 3, allowed: UTF-8", [](R& r) { r.prompt = "abc\xFF"; }},
    {"prompt is ill-formed at byte 8", [](R& r) { r.prompt = "12345678\xC3\x28"; }},
    {"prompt is ill-formed at byte 9", [](R& r) { r.prompt = "123456789\xE2\x82"; }},
    {"prompt is ill-formed at byte 0", [](R& r) { r.prompt = "\xC0\xAF"; }},
    {"prompt is ill-formed at byte 1", [](R& r) { r.prompt = "a\xED\xA0\x80"; }},
    {"prompt is ill-formed at byte 0", [](R& r) { r.prompt = "\xF4\x90\x80\x80"; }},
    {"set: 0, allowed: exactly one", [](R& r) { r.prompt.reset(); }},
    {"set: 2, allowed: exactly one", [](R& r) { r.prompt_token_ids.emplace(); }},
    {"prompt_token_ids with 1048577 entries",
     [](R& r) {
       r.prompt.reset();
       r.prompt_token_ids = std::vector<uint32_t>(kMaxPromptTokens + 1);
     }},
    {"messages[1].role of 257 bytes",
     [](R& r) {
       r.prompt.reset();
       r.messages.emplace(2, ChatMessage{"user", "hi"});
       r.messages->back().role = std::string(257, 'x');
     }},
    {"messages[0].content is ill-formed at byte 1",
     [](R& r) {
       r.prompt.reset();
       r.messages.emplace(1, ChatMessage{"user", "h\x80"});
     }},
    {"messages with 1025 entries, allowed: 1024",
     [](R& r) {
       r.prompt.reset();
       r.messages.emplace(kMaxMessages + 1, ChatMessage{"user", "hi"});
     }},
    {"messages of 6291456 bytes together, allowed: 4194304",
     [](R& r) {
       r.prompt.reset();
       r.messages.emplace(2, ChatMessage{"user", std::string(3u << 20, 'x')});
     }},
    {"resume_positions with 2 entries, allowed: none or n = 1",
     [](R& r) {
       r.resume_positions = {1, 2};
     }},
};

TEST(CodecHostileTest, EachFieldOfARequestHasItsLimits) {
  for (const Case& wrong : kCases) {
    GenerateRequest request = Good();
    wrong.spoil(request);
    Decoded<ClientMessage> decoded = DecodeClientMessage(AsBytes(EncodeClientMessage(request)));
    EXPECT_EQ(decoded.failure, DecodeFailure::kOutOfRange) << wrong.error;
    EXPECT_THAT(decoded.error, HasSubstr(wrong.error));
    EXPECT_EQ(decoded.request_id, (RequestId{1, 2})) << wrong.error;
  }
  EXPECT_TRUE(DecodeClientMessage(AsBytes(EncodeClientMessage(Good()))).ok());
}

TEST(CodecHostileTest, ConsumedNamesABoundedNumberOfStreams) {
  Consumed consumed;
  consumed.streams.resize(kMaxConsumedStreams);
  EXPECT_TRUE(DecodeClientMessage(AsBytes(EncodeClientMessage(consumed))).ok());
  consumed.streams.emplace_back();
  Decoded<ClientMessage> decoded = DecodeClientMessage(AsBytes(EncodeClientMessage(consumed)));
  EXPECT_EQ(decoded.failure, DecodeFailure::kOutOfRange);
  EXPECT_EQ(decoded.error, "streams with 4097 entries, allowed: 4096");
}

TEST(CodecHostileTest, WorkersHaveLimitsToo) {
  auto error_of = [](const WorkerToRouter& message) {
    Decoded<WorkerToRouter> decoded = DecodeWorkerToRouter(AsBytes(EncodeWorkerToRouter(message)));
    EXPECT_EQ(decoded.failure, DecodeFailure::kOutOfRange);
    return decoded.error;
  };
  Join join;
  join.group = "a";
  join.world = 65;
  EXPECT_EQ(error_of(join), "world 65, allowed: 1 to 64");
  join.world = 2;
  join.rank = 2;
  EXPECT_EQ(error_of(join), "rank 2, allowed: 0 to 1");
  join.rank = 1;
  join.startup = {{"weights", std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_THAT(error_of(join), HasSubstr("startup[0].seconds nan"));
  join.startup.clear();
  join.kv_blocks = ~0ull;
  EXPECT_THAT(error_of(join), HasSubstr("kv_blocks 18446744073709551615"));
  join.kv_blocks = 0;
  join.comm_id.resize(kMaxCommIdBytes);
  EXPECT_TRUE(DecodeWorkerToRouter(AsBytes(EncodeWorkerToRouter(join))).ok());
  join.comm_id.resize(kMaxCommIdBytes + 1);
  EXPECT_EQ(error_of(join), "comm_id with 1025 entries, allowed: 1024");
  StepReport report;
  report.runs.resize(1);
  report.runs[0].choice = 8;
  EXPECT_EQ(error_of(report), "choice 8, allowed: 0 to 7");
  report.runs[0].choice = 0;
  report.runs[0].token_ids = {1, 2};
  report.runs[0].logprobs.resize(1);
  EXPECT_THAT(error_of(report), HasSubstr("logprobs with 1 entries"));
  report.runs[0].logprobs.resize(2);
  report.runs[0].logprobs[1].logprob = -kInf;
  EXPECT_THAT(error_of(report), HasSubstr("logprobs[1] -inf"));
  report.runs[0].logprobs[1] = {0, 0, std::vector<std::pair<uint32_t, float>>(21)};
  EXPECT_THAT(error_of(report), HasSubstr("logprobs[1].num_top 21, allowed: 0 to 20"));
}

TEST(CodecHostileTest, AStartNamesABoundedId) {
  GroupStart start;
  start.comm_id.resize(kMaxCommIdBytes + 1);
  Decoded<RouterToWorker> decoded = DecodeRouterToWorker(AsBytes(EncodeRouterToWorker(start)));
  EXPECT_EQ(decoded.failure, DecodeFailure::kOutOfRange);
  EXPECT_EQ(decoded.error, "comm_id with 1025 entries, allowed: 1024");
}

// ---- Messages that no encoder of ours writes.

std::string Finish(flatbuffers::FlatBufferBuilder& builder, uint32_t version, uint8_t kind,
                   flatbuffers::Offset<void> body) {
  builder.Finish(
      wire::CreateClientToRouter(builder, version, 5, static_cast<wire::ClientBody>(kind), body),
      "KVCR");
  return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
}

TEST(CodecHostileTest, AnotherVersionIsRefusedByName) {
  for (uint32_t version : {0u, 2u, ~0u}) {
    flatbuffers::FlatBufferBuilder builder;
    auto body = wire::CreateKeepAlive(builder).Union();
    Decoded<ClientMessage> decoded =
        DecodeClientMessage(AsBytes(Finish(builder, version, 4, body)));
    EXPECT_EQ(decoded.failure, DecodeFailure::kWrongVersion);
    EXPECT_EQ(decoded.error, absl::StrCat("protocol version ", version, ", allowed: 1"));
  }
}

TEST(CodecHostileTest, UnknownKindsAreRefused) {
  for (uint8_t kind : std::initializer_list<uint8_t>{0, 7, 8, 255}) {
    flatbuffers::FlatBufferBuilder builder;
    auto body = wire::CreateKeepAlive(builder).Union();
    Decoded<ClientMessage> decoded = DecodeClientMessage(AsBytes(Finish(builder, 1, kind, body)));
    EXPECT_FALSE(decoded.ok());
    if (kind != 0) {
      EXPECT_EQ(decoded.failure, DecodeFailure::kUnknownKind) << int{kind};
      EXPECT_EQ(decoded.error, absl::StrCat("message kind ", int{kind}, ", unknown"));
      EXPECT_EQ(decoded.sender, 5u);
    }
  }
}

TEST(CodecHostileTest, KindsOfWorkersHaveBodiesAndNoOthersAreKnown) {
  auto decode = [](uint8_t kind, bool with_body) {
    flatbuffers::FlatBufferBuilder builder;
    flatbuffers::Offset<void> body = 0;
    if (with_body) body = wire::CreateLeaveSoon(builder, 9).Union();
    builder.Finish(
        wire::CreateWorkerToRouter(builder, 1, 5, static_cast<wire::WorkerBody>(kind), body),
        "KVWR");
    return DecodeWorkerToRouter(
        AsBytes({reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()}));
  };
  constexpr auto kLast = static_cast<uint8_t>(wire::WorkerBody::MAX);
  for (uint8_t kind = 1; kind <= kLast; ++kind) {
    EXPECT_EQ(decode(kind, false).failure, DecodeFailure::kMalformed) << int{kind};
  }
  EXPECT_EQ(decode(kLast + 1, true).failure, DecodeFailure::kUnknownKind);
  Decoded<WorkerToRouter> leave = decode(static_cast<uint8_t>(wire::WorkerBody::LeaveSoon), true);
  ASSERT_TRUE(leave.ok()) << leave.error;
  EXPECT_EQ(std::get<LeaveSoon>(leave.message).group_incarnation, 9u);
}

TEST(CodecHostileTest, AMissingBodyIsMalformed) {
  for (uint8_t kind = 1; kind <= 6; ++kind) {
    flatbuffers::FlatBufferBuilder builder;
    EXPECT_EQ(DecodeClientMessage(AsBytes(Finish(builder, 1, kind, 0))).failure,
              DecodeFailure::kMalformed);
  }
}

// A message of 1,024 times the same chat message: legal FlatBuffers, and 4 MiB that want to be 4
// GiB.
TEST(CodecHostileTest, SharedBytesAreBounded) {
  flatbuffers::FlatBufferBuilder builder;
  auto content = builder.CreateString(std::string(4096, 'x'));
  auto role = builder.CreateString("user");
  auto message = wire::CreateChatMessage(builder, role, content);
  std::vector<flatbuffers::Offset<wire::ChatMessage>> same(kMaxMessages, message);
  auto messages = builder.CreateVector(same);
  wire::GenerateRequestBuilder request(builder);
  request.add_messages(messages);
  auto body = request.Finish().Union();
  Decoded<ClientMessage> decoded = DecodeClientMessage(AsBytes(Finish(builder, 1, 2, body)));
  EXPECT_EQ(decoded.failure, DecodeFailure::kMalformed);
  EXPECT_THAT(decoded.error, HasSubstr("content shares bytes with other fields"));
}

// A request has a seed and max_tokens of its own: these would not count, so they are refused.
TEST(CodecHostileTest, SamplingOfARequestHasNoSeedOrMaxTokens) {
  for (bool seed : {true, false}) {
    flatbuffers::FlatBufferBuilder builder;
    auto prompt = builder.CreateString("hello");
    wire::SamplingParamsBuilder sampling(builder);
    seed ? sampling.add_seed(5) : sampling.add_max_tokens(3);
    auto sampling_offset = sampling.Finish();
    wire::GenerateRequestBuilder request(builder);
    request.add_prompt(prompt);
    request.add_sampling(sampling_offset);
    auto body = request.Finish().Union();
    Decoded<ClientMessage> decoded = DecodeClientMessage(AsBytes(Finish(builder, 1, 2, body)));
    EXPECT_EQ(decoded.failure, DecodeFailure::kOutOfRange);
    EXPECT_EQ(decoded.error,
              seed ? "sampling.seed 5, allowed: none: the request's own field is seed"
                   : "sampling.max_tokens 3, allowed: none: the request's own field is max_tokens");
  }
}

TEST(CodecHostileTest, MoreTablesThanAMessageCanHaveAreMalformed) {
  flatbuffers::FlatBufferBuilder builder;
  auto message = wire::CreateChatMessage(builder);
  std::vector<flatbuffers::Offset<wire::ChatMessage>> same(1u << 20, message);
  auto messages = builder.CreateVector(same);
  wire::GenerateRequestBuilder request(builder);
  request.add_messages(messages);
  auto body = request.Finish().Union();
  EXPECT_EQ(DecodeClientMessage(AsBytes(Finish(builder, 1, 2, body))).failure,
            DecodeFailure::kMalformed);
}

TEST(CodecHostileTest, SharedRoleNamesAreFine) {
  flatbuffers::FlatBufferBuilder builder;
  auto role = builder.CreateString("assistant");
  std::vector<flatbuffers::Offset<wire::ChatMessage>> list;
  for (size_t i = 0; i < kMaxMessages; ++i) {
    list.push_back(wire::CreateChatMessage(builder, role, builder.CreateString("hi")));
  }
  auto messages = builder.CreateVector(list);
  wire::GenerateRequestBuilder request(builder);
  request.add_messages(messages);
  auto body = request.Finish().Union();
  Decoded<ClientMessage> decoded = DecodeClientMessage(AsBytes(Finish(builder, 1, 2, body)));
  ASSERT_TRUE(decoded.ok()) << decoded.error;
  EXPECT_EQ(std::get<GenerateRequest>(decoded.message).messages->size(), kMaxMessages);
}

// Prompts of a thousand dispatches that are the same bytes.
TEST(CodecHostileTest, SharedListsAreBounded) {
  flatbuffers::FlatBufferBuilder builder;
  auto prompt = builder.CreateVector(std::vector<uint32_t>(1u << 18));
  std::vector<flatbuffers::Offset<wire::Dispatch>> dispatches;
  for (int i = 0; i < 1000; ++i) {
    dispatches.push_back(wire::CreateDispatch(builder, nullptr, 0, prompt));
  }
  auto list = builder.CreateVector(dispatches);
  auto body = wire::CreateCommands(builder, 0, 0, list).Union();
  builder.Finish(
      wire::CreateRouterToWorker(builder, 1, 0, wire::RouterToWorkerBody::Commands, body), "KVRW");
  std::string_view bytes(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                         builder.GetSize());
  Decoded<RouterToWorker> decoded = DecodeRouterToWorker(AsBytes(bytes));
  EXPECT_EQ(decoded.failure, DecodeFailure::kMalformed);
  EXPECT_THAT(decoded.error, HasSubstr("prompt shares bytes"));
}

// Found by fuzzing: a list of structs of 8-byte numbers at an address that is no multiple of 8.
TEST(CodecHostileTest, AMisalignedListIsRefused) {
  std::ifstream file("tests/fuzz/corpus/codec_worker/misaligned_ages", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Decoded<WorkerToRouter> decoded = DecodeWorkerToRouter(AsBytes(bytes));
  EXPECT_EQ(decoded.failure, DecodeFailure::kMalformed);
  EXPECT_EQ(decoded.error, "ages is not aligned");
}

TEST(CodecHostileTest, APlanWithoutItsHashIsRefused) {
  StepPlan plan;
  plan.step_id = 7;
  plan.rows = {{0, 0, 1, true}};
  std::string bytes = EncodePlan(plan);
  ASSERT_TRUE(DecodePlan(AsBytes(bytes)).ok());
  // Another value that is as well-formed as the right one: only the hash can tell.
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string bad = bytes;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_FALSE(DecodePlan(AsBytes(bad)).ok()) << i;
  }
  EXPECT_FALSE(DecodePlan(AsBytes(std::string_view(bytes).substr(0, bytes.size() - 8))).ok());
}

}  // namespace
}  // namespace kvern
