#include "router/io/text_pool.h"

#include "cluster/base/threads.h"

namespace kvern {

TextPool::TextPool(const Tokenizer* tokenizer, absl::StatusOr<ChatTemplate> chat_template,
                   const WakeUp* done)
    : tokenizer_(tokenizer), chat_template_(std::move(chat_template)), done_(done) {}

absl::Status TextPool::Start(size_t threads) {
  while (threads_.size() < threads) {
    KVERN_ASSIGN_OR_RETURN(std::thread thread, StartThread([this] { Run(); }));
    threads_.push_back(std::move(thread));
  }
  return absl::OkStatus();
}

TextPool::~TextPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void TextPool::Submit(Tokenize job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.Push(std::move(job));
  }
  work_.notify_one();
}

void TextPool::Withdraw(const RequestId& id) {
  {
    std::lock_guard lock(mutex_);
    if (!jobs_.Remove(id)) return;
    answers_.push_back({id, {}, ErrorCode::kCancelled, "withdrawn"});
  }
  done_->Notify();
}

std::vector<Tokenized> TextPool::Take() {
  std::lock_guard lock(mutex_);
  return std::exchange(answers_, {});
}

void TextPool::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    Tokenize job = jobs_.Pop();
    lock.unlock();
    Tokenized answer = Answer(std::move(job));
    lock.lock();
    answers_.push_back(std::move(answer));
    done_->Notify();
  }
}

Tokenized TextPool::Answer(Tokenize job) const {
  Tokenized answer;
  answer.request_id = job.request_id;
  absl::StatusOr<std::vector<uint32_t>> ids = Encode(job);
  if (ids.ok()) {
    answer.ids = *std::move(ids);
  } else {
    bool too_long = ids.status().code() == absl::StatusCode::kOutOfRange;
    answer.error = too_long ? ErrorCode::kNeverFits : ErrorCode::kInvalidArgument;
    answer.message = std::string(ids.status().message());
  }
  return answer;
}

absl::StatusOr<std::vector<uint32_t>> TextPool::Encode(const Tokenize& job) const {
  if (const auto* text = std::get_if<std::string>(&job.input)) {
    EncodeOptions options;
    options.add_special = true;
    options.max_ids = job.max_ids;
    return tokenizer_->Encode(*text, options);
  }
  KVERN_RETURN_IF_ERROR(chat_template_.status());
  std::vector<Message> messages;
  for (const ChatMessage& message : std::get<std::vector<ChatMessage>>(job.input)) {
    messages.push_back({message.role, message.content});
  }
  KVERN_ASSIGN_OR_RETURN(std::vector<PromptPiece> pieces,
                         chat_template_->Render(messages, /*add_generation_prompt=*/true));
  return tokenizer_->EncodePieces(pieces, /*add_special=*/false, job.max_ids);
}

}  // namespace kvern
