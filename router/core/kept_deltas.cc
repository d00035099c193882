#include "router/core/kept_deltas.h"

#include <iterator>
#include <utility>

#include "cluster/base/check.h"

namespace kvern::router {
namespace {

// Fixed, so that what is cut off does not depend on the compiler.
constexpr uint64_t kDeltaBytes = 256;
constexpr uint64_t kLogprobBytes = 32;
constexpr uint64_t kTopBytes = 8;
static_assert(sizeof(Delta) <= kDeltaBytes && sizeof(TokenLogprob) <= kLogprobBytes);

// Appends what comes right behind it in its choice.
void Extend(Delta& delta, Delta more) {
  KVERN_CHECK_EQ(delta.position + delta.token_ids.size(), more.position);
  KVERN_CHECK(delta.finish_reason == FinishReason::kNone);
  delta.token_ids.insert(delta.token_ids.end(), more.token_ids.begin(), more.token_ids.end());
  delta.logprobs.insert(delta.logprobs.end(), std::make_move_iterator(more.logprobs.begin()),
                        std::make_move_iterator(more.logprobs.end()));
  if (more.text) delta.text = delta.text.value_or("") + *more.text;
  delta.finish_reason = more.finish_reason;
  delta.stop_reason = std::move(more.stop_reason);
}

}  // namespace

uint64_t BytesOf(const Delta& delta) {
  uint64_t bytes = kDeltaBytes + delta.token_ids.size() * sizeof(uint32_t);
  if (delta.text) bytes += delta.text->size();
  if (const auto* stop = std::get_if<std::string>(&delta.stop_reason)) bytes += stop->size();
  for (const TokenLogprob& logprob : delta.logprobs) {
    bytes += kLogprobBytes + logprob.top.size() * kTopBytes;
  }
  return bytes;
}

void KeptDeltas::Add(Delta delta) {
  for (size_t i = deltas_.size(); i-- > 0;) {
    Delta& latest = deltas_[i];
    if (latest.choice != delta.choice) continue;
    if (latest.token_ids.size() + delta.token_ids.size() > max_chunk_) break;
    if (BytesOf(latest) + BytesOf(delta) > kMaxDeltasBytes) break;
    bytes_ -= BytesOf(latest);
    Extend(latest, std::move(delta));
    bytes_ += BytesOf(latest);
    return;
  }
  bytes_ += BytesOf(delta);
  deltas_.PushBack(std::move(delta));
}

Delta KeptDeltas::PopFront() {
  bytes_ -= BytesOf(deltas_.front());
  return deltas_.PopFront();
}

}  // namespace kvern::router
