// kvern-run's engine room: the router's core and a whole group in this process, fed from lines.
#pragma once

#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cluster/net/poller.h"
#include "router/core/router.h"
#include "router/io/text_pool.h"
#include "schemas/files/checkpoint.h"
#include "tools/run/answer.h"
#include "tools/run/line_source.h"
#include "worker/engine/local_group.h"

namespace kvern {

struct RunOptions {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::string chat_template;  // empty: the model's own
  uint32_t default_max_tokens = 256;
  RankConfig rank;
};

// Admission, validation and text are the router's own code, and so mean what they mean in the
// service; only its deadlines are out of reach. Owned by the main thread; the ranks are threads of
// the group.
class RunSession {
 public:
  // Opens the model's text and all ranks. An error: the model cannot be served.
  static absl::StatusOr<std::unique_ptr<RunSession>> Open(const RunOptions& options);
  ~RunSession();

  // Answers every line of `input` on `output`, in order. An error: the group failed, or the input
  // could not be read or the output not be written.
  absl::Status Run(int input, std::FILE* output);

 private:
  RunSession(const RunOptions& options, WakeUp wake) : options_(options), wake_(std::move(wake)) {}

  absl::Status OpenText();
  absl::Status OpenGroup();
  void StartRouter();

  absl::Status Wait(LineSource& lines);
  void TakeLines(LineSource& lines);
  void TakeLine(const LineSource::Line& line);
  bool HasRoom() const;
  absl::Status TakeGroupMessages();
  void TakeTexts();
  absl::Status Perform();
  void Deliver(RouterToClient message);
  absl::Status DeliverToRank(PeerId peer, RouterToWorker message);
  Answer& Find(const RequestId& id);
  absl::Status WriteFinished(std::FILE* output);
  void ShowProgress(bool last);
  void Step(RouterEvent event) { router_->Step(now_, std::move(event), effects_); }

  RunOptions options_;
  WakeUp wake_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<TextFilterFactory> filters_;
  std::unique_ptr<TextPool> text_pool_;
  std::unique_ptr<Router> router_;
  RouterEffects effects_;
  Time now_ = 0;

  // Answers of the lines that are not written yet, in input order; `first_` is the number of the
  // front.
  std::deque<std::unique_ptr<Answer>> answers_;
  uint64_t first_ = 0;
  size_t open_bytes_ = 0;  // of their input

  uint64_t written_ = 0;
  uint64_t tokens_ = 0;
  Time started_ = 0;
  Time last_progress_ = 0;
  bool show_progress_ = false;

  std::mutex mutex_;  // guards what the ranks' threads write:
  std::vector<WorkerToRouter> from_group_;
  std::optional<absl::Status> group_end_;

  std::unique_ptr<LocalGroup> group_;  // last: its threads use the above
};

}  // namespace kvern
