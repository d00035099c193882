// What is known of each request that was ever asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "cluster/base/time.h"
#include "schemas/ids.h"
#include "tools/sim/fake_model.h"

namespace kvern::sim {

// One request, as its client and the wire saw it. Without its prompt: there may be many. What each
// delta needs comes first.
struct Record {
  // Of a choice with text.
  struct Text {
    std::string letters;  // what the tokens spell
    std::string delivered;
  };
  struct Choice {
    Voice voice;  // once the seed is known
    uint32_t tokens = 0;
    uint32_t last_token = 0;
    bool finished = false;
    uint32_t heard = 0;  // tokens, by the router
    std::unique_ptr<Text> text;
  };
  absl::InlinedVector<Choice, 1> choices;
  uint32_t client = 0;
  uint32_t tenant = 0;
  uint32_t max_tokens = 0;
  uint32_t tokens = 0;  // of all choices
  bool accepted = false;
  bool over = false;
  bool client_lost = false;  // nobody reads its answer any more
  bool forgotten = false;    // and the router knows: another process said Hello
  bool answered = false;     // the router has said its last word, which may be under way
  bool repeated = false;     // was sent twice
  bool reads_text = false;
  bool wants_logprobs = false;
  Time first_token = -1;
  Time last_token = -1;

  bool ignore_eos = false;
  bool guaranteed = true;
  bool holds_quota = false;  // dispatched, and the router has not said its end yet
  bool has_stop = false;
  bool has_seed = false;
  bool has_deadline = false;
  bool bad = false;        // must be refused as invalid
  bool bad_ids = false;    // likewise, but only its group sees it
  bool cancelled = false;  // by its client
  bool dispatched = false;
  ErrorCode error = ErrorCode::kNone;
  uint32_t prompt_tokens = 0;
  int32_t priority = 0;
  uint32_t n = 1;
  uint32_t group = 0;           // that it was dispatched to
  uint32_t output_to_come = 0;  // tokens that the router may still hear of
  uint32_t passed = 0;          // started while it was the head of the queue
  uint32_t preemptions = 0;
  uint32_t stop_strings = 0;  // that ended a choice
  uint32_t place = 0;         // in its client's list of open requests
  uint64_t seed = 0;
  Duration ttft_deadline = 0;
  Time dispatched_at = 0;
  Time asked = 0;
  Time arrived = -1;  // at the router
  Time ended = -1;    // its client read the terminal answer
};

// All of them, in the order of asking. A record stays where it is.
class Records {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // REQUIRES: i < size().
  Record& operator[](size_t i) { return chunks_[i / kChunk][i % kChunk]; }
  const Record& operator[](size_t i) const { return chunks_[i / kChunk][i % kChunk]; }
  const Record& back() const { return (*this)[size_ - 1]; }

  void Add(Record record) {
    if (size_ % kChunk == 0) chunks_.push_back(std::make_unique<Record[]>(kChunk));
    ++size_;
    (*this)[size_ - 1] = std::move(record);
  }

 private:
  static constexpr size_t kChunk = 1024;

  std::vector<std::unique_ptr<Record[]>> chunks_;
  size_t size_ = 0;
};

}  // namespace kvern::sim
