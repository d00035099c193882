// Threads that turn text into token ids, so that a long prompt never holds up the router's loop.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cluster/net/poller.h"
#include "router/core/router.h"
#include "router/io/text_jobs.h"
#include "router/text/chat_template.h"
#include "router/text/tokenizer.h"

namespace kvern {

// Submit and Take belong to the router's thread. Every job is answered by one Tokenized.
class TextPool {
 public:
  // `tokenizer` and `done` outlive the pool. `chat_template` may be an error: it is what requests
  // with messages are refused with. `done` is notified when answers can be taken.
  TextPool(const Tokenizer* tokenizer, absl::StatusOr<ChatTemplate> chat_template,
           const WakeUp* done);
  // Forgets the jobs that no thread has begun.
  ~TextPool();
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;

  // Once. ResourceExhausted when the system gives less than `threads` threads.
  absl::Status Start(size_t threads);

  void Submit(Tokenize job);
  // Nobody wants its ids: if no thread has begun it, it is answered at once, without.
  void Withdraw(const RequestId& id);

  // The answers since the last call, in the order in which they were ready.
  std::vector<Tokenized> Take();

 private:
  void Run();
  Tokenized Answer(Tokenize job) const;
  absl::StatusOr<std::vector<uint32_t>> Encode(const Tokenize& job) const;

  const Tokenizer* const tokenizer_;
  const absl::StatusOr<ChatTemplate> chat_template_;
  const WakeUp* const done_;

  std::mutex mutex_;
  std::condition_variable work_;
  TextJobs jobs_;  // guarded by mutex_, as are:
  std::vector<Tokenized> answers_;
  bool stop_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace kvern
