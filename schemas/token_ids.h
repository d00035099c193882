// The token ids of a prompt: read-only and shared, so that a long prompt gets from the message that
// brings it into the message that takes it away without a copy in between.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvern {

// A prompt of fewer bytes is copied from message to message: cheaper than to keep its memory, and a
// frame for it. Longer ones pass the router without a look at their ids.
inline constexpr size_t kMinBytesInPlace = 8192;

// A copy of it is another holder of the same ids. Nobody changes them, so holders may be in several
// threads.
class TokenIds {
 public:
  using value_type = uint32_t;
  using const_iterator = const uint32_t*;

  TokenIds() = default;
  TokenIds(std::vector<uint32_t> ids) {  // NOLINT(google-explicit-constructor)
    auto owner = std::make_shared<const std::vector<uint32_t>>(std::move(ids));
    ids_ = *owner;
    owner_ = std::move(owner);
  }
  TokenIds(std::initializer_list<uint32_t> ids) : TokenIds(std::vector<uint32_t>(ids)) {}
  // Where `ids` are already; `owner` keeps them there.
  TokenIds(std::span<const uint32_t> ids, std::shared_ptr<const void> owner)
      : ids_(ids), owner_(std::move(owner)) {}
  // What was moved from is empty.
  TokenIds(TokenIds&& other) noexcept
      : ids_(std::exchange(other.ids_, {})), owner_(std::move(other.owner_)) {}
  TokenIds& operator=(TokenIds&& other) noexcept {
    ids_ = std::exchange(other.ids_, {});
    owner_ = std::move(other.owner_);
    return *this;
  }
  TokenIds(const TokenIds&) = default;
  TokenIds& operator=(const TokenIds&) = default;
  ~TokenIds() = default;

  const uint32_t* data() const { return ids_.data(); }
  size_t size() const { return ids_.size(); }
  size_t size_bytes() const { return ids_.size_bytes(); }
  bool empty() const { return ids_.empty(); }
  const_iterator begin() const { return ids_.data(); }
  const_iterator end() const { return ids_.data() + ids_.size(); }
  uint32_t operator[](size_t i) const { return ids_[i]; }

  // What keeps the ids where they are; null without ids.
  const std::shared_ptr<const void>& owner() const { return owner_; }

  friend bool operator==(const TokenIds& a, const TokenIds& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  std::span<const uint32_t> ids_;
  std::shared_ptr<const void> owner_;
};

}  // namespace kvern
