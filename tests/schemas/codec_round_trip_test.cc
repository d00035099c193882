// Every message comes back as it was sent, and bytes that are not a message come back as a refusal.
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>

#include "schemas/codec.h"
#include "tests/schemas/random_messages.h"

namespace kvern {
namespace {

Bytes AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// The five decoders behind one interface each.
struct Client {
  using Message = ClientMessage;
  static Message Random(Rng& rng) { return RandomClientMessage(rng); }
  static std::string Encode(const Message& m) { return EncodeClientMessage(m, 77); }
  static Decoded<Message> Decode(Bytes bytes) { return DecodeClientMessage(bytes); }
};
struct ToClient {
  using Message = RouterToClient;
  static Message Random(Rng& rng) { return RandomRouterToClient(rng); }
  static std::string Encode(const Message& m) { return EncodeRouterToClient(m, 77); }
  static Decoded<Message> Decode(Bytes bytes) { return DecodeRouterToClient(bytes); }
};
struct Worker {
  using Message = WorkerToRouter;
  static Message Random(Rng& rng) { return RandomWorkerToRouter(rng); }
  static std::string Encode(const Message& m) { return EncodeWorkerToRouter(m, 77); }
  static Decoded<Message> Decode(Bytes bytes) { return DecodeWorkerToRouter(bytes); }
};
struct ToWorker {
  using Message = RouterToWorker;
  static Message Random(Rng& rng) { return RandomRouterToWorker(rng); }
  static std::string Encode(const Message& m) { return EncodeRouterToWorker(m, 77); }
  static Decoded<Message> Decode(Bytes bytes) { return DecodeRouterToWorker(bytes); }
};
struct Plan {
  using Message = StepPlan;
  static Message Random(Rng& rng) { return RandomPlan(rng); }
  static std::string Encode(const Message& m) { return EncodePlan(m); }
  static Decoded<Message> Decode(Bytes bytes) { return DecodePlan(bytes); }
};

template <typename Family>
class CodecTest : public ::testing::Test {};
using Families = ::testing::Types<Client, ToClient, Worker, ToWorker, Plan>;
TYPED_TEST_SUITE(CodecTest, Families);

TYPED_TEST(CodecTest, RandomMessagesComeBack) {
  Rng rng(1);
  for (int i = 0; i < 500; ++i) {
    auto message = TypeParam::Random(rng);
    // An odd place: the input need not be aligned.
    std::string bytes = "x" + TypeParam::Encode(message);
    auto decoded = TypeParam::Decode(AsBytes(bytes).subspan(1));
    ASSERT_TRUE(decoded.ok()) << i << ": " << decoded.error;
    ASSERT_TRUE(decoded.message == message) << i;
    if constexpr (!std::is_same_v<TypeParam, Plan>) {
      EXPECT_EQ(decoded.sender, 77u);
    }
  }
}

TYPED_TEST(CodecTest, EncodingIsAFunctionOfTheMessage) {
  Rng rng(2);
  for (int i = 0; i < 50; ++i) {
    auto message = TypeParam::Random(rng);
    EXPECT_EQ(TypeParam::Encode(message), TypeParam::Encode(message));
  }
}

TYPED_TEST(CodecTest, TruncatedMessagesAreRefused) {
  Rng rng(3);
  for (int i = 0; i < 6; ++i) {
    std::string bytes = TypeParam::Encode(TypeParam::Random(rng));
    for (size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 1500) {
      // Its own allocation, so that a sanitizer sees a read beyond the end.
      std::string cut = bytes.substr(0, size);
      auto decoded = TypeParam::Decode(AsBytes(cut));
      // The last bytes of a buffer may be padding; a decoder may then find the whole message.
      if (decoded.ok()) {
        EXPECT_GT(size + 16, bytes.size()) << size << " of " << bytes.size();
      } else {
        EXPECT_FALSE(decoded.error.empty());
      }
    }
  }
}

TYPED_TEST(CodecTest, FlippedBitsNeverHarm) {
  Rng rng(4);
  int refused = 0;
  for (int i = 0; i < 20; ++i) {
    std::string bytes = TypeParam::Encode(TypeParam::Random(rng));
    for (int k = 0; k < 200; ++k) {
      std::string bad = bytes;
      for (uint64_t flips = 1 + rng.Below(3); flips > 0; --flips) {
        char& byte = bad[rng.Below(bad.size())];
        byte = static_cast<char>(byte ^ (1 << rng.Below(8)));
      }
      auto decoded = TypeParam::Decode(AsBytes(bad));
      if (!decoded.ok()) ++refused;
      if constexpr (std::is_same_v<TypeParam, Plan>) {
        EXPECT_TRUE(!decoded.ok() || bad == bytes) << "a damaged plan was taken";
      }
    }
  }
  EXPECT_GT(refused, 100);
}

TYPED_TEST(CodecTest, RandomBytesAreRefused) {
  Rng rng(5);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(rng.Below(200), '\0');
    for (char& byte : bytes) byte = static_cast<char>(rng.Next());
    auto decoded = TypeParam::Decode(AsBytes(bytes));
    EXPECT_EQ(decoded.failure, DecodeFailure::kMalformed);
  }
}

TYPED_TEST(CodecTest, MessagesOfAnotherFamilyAreRefused) {
  Rng rng(6);
  std::string others[] = {
      Client::Encode(RandomClientMessage(rng)), ToClient::Encode(RandomRouterToClient(rng)),
      Worker::Encode(RandomWorkerToRouter(rng)), ToWorker::Encode(RandomRouterToWorker(rng)),
      Plan::Encode(RandomPlan(rng))};
  int taken = 0;
  for (const std::string& bytes : others) taken += TypeParam::Decode(AsBytes(bytes)).ok();
  EXPECT_EQ(taken, 1);
}

TYPED_TEST(CodecTest, TooLargeIsRefusedBeforeItIsLookedAt) {
  std::string bytes((64u << 20) + 64, '\0');
  EXPECT_EQ(TypeParam::Decode(AsBytes(bytes)).failure, DecodeFailure::kTooLarge);
}

std::vector<Bytes> Frames(const std::vector<TokenIds>& prompts) {
  std::vector<Bytes> frames;
  for (const TokenIds& ids : prompts) {
    frames.push_back(std::as_bytes(std::span(ids.begin(), ids.size())));
  }
  return frames;
}

TEST(CodecInPartsTest, FramesAreThoseThatDispatchesName) {
  Commands commands;
  commands.sequence = 1;
  const TokenIds prompt(std::vector<uint32_t>(kMinBytesInPlace / sizeof(uint32_t), 7u));
  for (uint32_t i = 0; i < 2; ++i) {
    Dispatch& dispatch = commands.dispatches.emplace_back();
    dispatch.request_id = {1, i + 1};
    dispatch.prompt = prompt;
  }
  std::vector<TokenIds> prompts;
  std::string head = EncodeRouterToWorkerInParts(commands, 1, &prompts);
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].begin(), prompt.begin()) << "it was copied";
  const std::vector<Bytes> frames = Frames(prompts);
  EXPECT_TRUE(DecodeRouterToWorkerInParts(AsBytes(head), frames).ok());
  const std::pair<std::vector<Bytes>, std::string_view> wrong[] = {
      {{}, "attached_tokens 2048, allowed: 0, as no frame is left"},
      {{frames[0]}, "attached_tokens 2048, allowed: 0, as no frame is left"},
      {{frames[0], frames[1].first(8188)},
       "attached_tokens 2048, allowed: a fourth of the 8188 bytes of its frame"},
      {{frames[0], frames[1], frames[1]}, "frames 3 attached, allowed: 2, as named"},
      {{frames[0], frames[1], Bytes()}, "frames 3 attached, allowed: 2, as named"},
  };
  for (const auto& [attached, error] : wrong) {
    Decoded<RouterToWorker> decoded = DecodeRouterToWorkerInParts(AsBytes(head), attached);
    EXPECT_EQ(decoded.failure, DecodeFailure::kOutOfRange);
    EXPECT_EQ(decoded.error, error);
  }
  EXPECT_FALSE(DecodeRouterToWorkerInParts(AsBytes(EncodeRouterToWorker(commands)), frames).ok());
  EXPECT_FALSE(
      DecodeRouterToWorkerInParts(AsBytes(EncodeRouterToWorker(GroupStart{})), frames).ok());
}

// A large message has memory of its own; what comes after it does not see that.
TEST(CodecLargeTest, LongPromptsComeBackBetweenShortOnes) {
  for (size_t prompt_tokens : {3u, 60'000u, 5u, 300'000u, 70'000u, 1u}) {
    Commands commands;
    commands.sequence = prompt_tokens;
    for (uint32_t i = 0; i < 6; ++i) {
      Dispatch& dispatch = commands.dispatches.emplace_back();
      dispatch.request_id = {1, i + 1};
      std::vector<uint32_t> prompt(prompt_tokens);
      std::iota(prompt.begin(), prompt.end(), i);
      dispatch.prompt = std::move(prompt);
    }
    commands.dispatches[3].prompt = {7, 8, 9};  // a short one between them
    RouterToWorker message = commands;
    std::string bytes = EncodeRouterToWorker(message);
    Decoded<RouterToWorker> decoded = DecodeRouterToWorker(AsBytes(bytes));
    ASSERT_TRUE(decoded.ok()) << decoded.error;
    EXPECT_TRUE(decoded.message == message) << prompt_tokens;
    std::vector<TokenIds> prompts;
    std::string head = EncodeRouterToWorkerInParts(message, 77, &prompts);
    bool attached = prompt_tokens * sizeof(uint32_t) >= kMinBytesInPlace;
    EXPECT_EQ(prompts.size(), attached ? 5u : 0u);
    EXPECT_EQ(head.size() < bytes.size() / 2, attached);
    decoded = DecodeRouterToWorkerInParts(AsBytes(head), Frames(prompts));
    ASSERT_TRUE(decoded.ok()) << decoded.error;
    EXPECT_EQ(decoded.sender, 77u);
    EXPECT_TRUE(decoded.message == message) << prompt_tokens;
    GenerateRequest request;
    request.prompt_token_ids = commands.dispatches[5].prompt;
    request.stop = {"so"};
    bytes = EncodeClientMessage(request);
    Decoded<ClientMessage> asked = DecodeClientMessage(AsBytes(bytes));
    ASSERT_TRUE(asked.ok()) << asked.error;
    EXPECT_TRUE(asked.message == ClientMessage(request)) << prompt_tokens;
  }
}

TEST(CodecNamesTest, EachFailureHasItsName) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(DecodeFailure::kOutOfRange); ++i) {
    names.insert(DecodeFailureName(static_cast<DecodeFailure>(i)));
  }
  EXPECT_EQ(names.size(), 6u);
  EXPECT_EQ(DecodeFailureName(DecodeFailure::kWrongVersion), "wrong_version");
}

}  // namespace
}  // namespace kvern
