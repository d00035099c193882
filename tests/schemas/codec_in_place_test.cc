// The ids of a long prompt stay in the message that brought them: when they do, who holds it then,
// and for how long.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "schemas/codec.h"
#include "tests/schemas/random_messages.h"

namespace kvern {
namespace {

constexpr size_t kLong = kMinBytesInPlace / sizeof(uint32_t);

GenerateRequest Request(size_t prompt_tokens) {
  std::vector<uint32_t> ids(prompt_tokens);
  std::iota(ids.begin(), ids.end(), 100u);
  GenerateRequest request;
  request.request_id = {1, 2};
  request.prompt_token_ids = std::move(ids);
  return request;
}

// A message as a socket holds it: in memory of its own that is given back with its last holder.
class Held {
 public:
  // `offset`: of the message from a multiple of 8 bytes.
  explicit Held(std::string_view bytes, size_t offset = 0)
      : memory_(std::make_shared<std::vector<uint64_t>>(bytes.size() / sizeof(uint64_t) + 2)) {
    std::byte* to = reinterpret_cast<std::byte*>(memory_->data()) + offset;
    std::memcpy(to, bytes.data(), bytes.size());
    bytes_ = {to, bytes.size()};
    alive_ = memory_;
  }

  // The message is the reader's from the moment that it asks for it.
  Decoded<ClientMessage> Decode() {
    return DecodeClientMessageInPlace(bytes_, [this] {
      ++asked_;
      return std::exchange(memory_, nullptr);
    });
  }
  bool Contains(const TokenIds& ids) const {
    const auto* first = reinterpret_cast<const std::byte*>(ids.data());
    return first >= bytes_.data() && first < bytes_.data() + bytes_.size();
  }
  int asked() const { return asked_; }
  bool alive() const { return !alive_.expired(); }

 private:
  std::shared_ptr<std::vector<uint64_t>> memory_;
  std::weak_ptr<std::vector<uint64_t>> alive_;
  Bytes bytes_;
  int asked_ = 0;
};

const TokenIds& PromptOf(const Decoded<ClientMessage>& decoded) {
  return *std::get<GenerateRequest>(decoded.message).prompt_token_ids;
}

TEST(CodecInPlaceTest, ALongPromptStaysInItsMessage) {
  for (size_t tokens : {kLong, size_t{55'000}, kMaxPromptTokens}) {
    GenerateRequest request = Request(tokens);
    Held held(EncodeClientMessage(request));
    TokenIds ids;
    {
      Decoded<ClientMessage> decoded = held.Decode();
      ASSERT_TRUE(decoded.ok()) << decoded.error;
      EXPECT_TRUE(decoded.message == ClientMessage(request));
      EXPECT_TRUE(held.Contains(PromptOf(decoded)));
      EXPECT_EQ(held.asked(), 1);
      ids = PromptOf(decoded);
    }
    EXPECT_TRUE(held.alive()) << "its ids are in use";
    EXPECT_TRUE(ids == *request.prompt_token_ids);
    TokenIds moved = std::move(ids);
    EXPECT_TRUE(ids.empty());
    EXPECT_EQ(moved.size(), tokens);
    moved = {};
    EXPECT_FALSE(held.alive());
  }
}

TEST(CodecInPlaceTest, AShortPromptIsCopied) {
  for (size_t tokens : {size_t{0}, size_t{1}, kLong - 1}) {
    GenerateRequest request = Request(tokens);
    Held held(EncodeClientMessage(request));
    Decoded<ClientMessage> decoded = held.Decode();
    ASSERT_TRUE(decoded.ok()) << decoded.error;
    EXPECT_TRUE(decoded.message == ClientMessage(request));
    EXPECT_FALSE(held.Contains(PromptOf(decoded)));
    EXPECT_EQ(held.asked(), 0);
  }
}

// Else a client could have the router hold much more than the bytes that its queue counts.
TEST(CodecInPlaceTest, AMessageThatHoldsMuchBesideThePromptIsNotKept) {
  for (size_t beside : {0u, 4000u, 8000u, 9000u, 20'000u, 1'000'000u}) {
    GenerateRequest request = Request(16'000);  // 64,000 bytes
    std::string bytes = EncodeClientMessage(request);
    bytes.resize(bytes.size() + beside);  // nothing points there, and nothing forbids it
    size_t rest = bytes.size() - 64'000;
    Held held(bytes);
    Decoded<ClientMessage> decoded = held.Decode();
    ASSERT_TRUE(decoded.ok()) << decoded.error;
    EXPECT_TRUE(decoded.message == ClientMessage(request));
    EXPECT_EQ(held.asked(), rest <= 8000 ? 1 : 0) << beside;
    EXPECT_EQ(held.Contains(PromptOf(decoded)), rest <= 8000) << beside;
  }
}

// A decoder that has to move its input first cannot let anything stay there.
TEST(CodecInPlaceTest, AMisalignedMessageIsCopied) {
  GenerateRequest request = Request(20'000);
  for (size_t offset = 1; offset < 8; ++offset) {
    Held held(EncodeClientMessage(request), offset);
    Decoded<ClientMessage> decoded = held.Decode();
    ASSERT_TRUE(decoded.ok()) << decoded.error;
    EXPECT_TRUE(decoded.message == ClientMessage(request));
    EXPECT_EQ(held.asked(), 0);
  }
}

TEST(CodecInPlaceTest, ARefusedMessageIsLetGo) {
  GenerateRequest request = Request(20'000);
  request.n = kMaxChoices + 1;  // read after the prompt
  Held held(EncodeClientMessage(request));
  {
    Decoded<ClientMessage> decoded = held.Decode();
    EXPECT_EQ(decoded.failure, DecodeFailure::kOutOfRange);
    EXPECT_EQ(decoded.error, "n 9, allowed: 1 to 8");
    EXPECT_EQ(decoded.request_id, (RequestId{1, 2}));
    EXPECT_EQ(held.asked(), 1);
  }
  EXPECT_FALSE(held.alive());

  Held too_long(EncodeClientMessage(Request(kMaxPromptTokens + 1)));
  EXPECT_EQ(too_long.Decode().error, "prompt_token_ids with 1048577 entries, allowed: 1048576");
  EXPECT_EQ(too_long.asked(), 0);
}

TEST(CodecInPlaceTest, OtherMessagesAreReadAsEver) {
  Rng rng(1);
  for (int i = 0; i < 300; ++i) {
    ClientMessage message = RandomClientMessage(rng);
    Held held(EncodeClientMessage(message, 77));
    Decoded<ClientMessage> decoded = held.Decode();
    ASSERT_TRUE(decoded.ok()) << i << ": " << decoded.error;
    EXPECT_TRUE(decoded.message == message) << i;
    EXPECT_EQ(decoded.sender, 77u);
  }
}

}  // namespace
}  // namespace kvern
