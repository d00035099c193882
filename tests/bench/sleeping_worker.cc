// A worker that sleeps instead of computing: it speaks the workers' protocol, has so many slots,
// and a request holds one for a fixed time per token. So a service has a capacity that is known
// exactly, and what is measured is the router.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include "cluster/base/clock.h"
#include "cluster/base/options.h"
#include "cluster/base/rng.h"
#include "cluster/capacity/kv_budget.h"
#include "schemas/codec.h"
#include "tests/bench/dealer.h"

namespace kvern {
namespace {

constexpr Duration kHeartbeat = 500 * kMillisecond;

struct Settings {
  std::string router;
  std::string group = "sleepers";
  std::string model = "sleeping";
  int64_t vocab_size = 49152;
  int64_t max_seq_len = 8192;
  int64_t kv_blocks = 290;
  int64_t slots = 8;
  Duration token_time = 10 * kMillisecond;
};

struct Sleeper {
  RequestId id;
  Epoch epoch = 0;
  uint32_t prompt_tokens = 0;
  uint32_t max_tokens = 0;
  uint32_t produced = 0;
  uint64_t need = 0;
  Time started = 0;

  uint64_t Blocks() const { return (prompt_tokens + produced + kBlockSize - 1) / kBlockSize; }
};

class Worker {
 public:
  explicit Worker(const Settings& settings) : settings_(settings), dealer_(settings.router) {
    Join join;
    join.group = settings.group;
    join.group_incarnation = static_cast<Incarnation>(MonotonicNow()) | 1;
    join.world = 1;
    join.model = settings.model;
    join.device = "none";
    join.kv_blocks = static_cast<uint64_t>(settings.kv_blocks);
    join.max_seq_len = static_cast<uint32_t>(settings.max_seq_len);
    join.vocab_size = static_cast<uint32_t>(settings.vocab_size);
    join.max_batch_tokens = static_cast<uint32_t>(settings.max_seq_len);
    report_.group_incarnation = join.group_incarnation;
    dealer_.Send(EncodeWorkerToRouter(join));
  }

  int Run() {
    Frame frame;
    while (!left_) {
      Time now = MonotonicNow();
      if (dealer_.Receive(&frame, std::max<Duration>(0, NextWake(now) - now))) {
        do {
          if (!Obey(frame)) return 1;
        } while (dealer_.Receive(&frame, 0));
      }
      if (started_) Work(MonotonicNow());
    }
    return 0;
  }

 private:
  Time NextWake(Time now) const {
    Time wake = started_ ? last_report_ + kHeartbeat : now + kHeartbeat;
    if (!running_.empty()) wake = std::min(wake, next_tick_);
    for (const Sleeper& sleeper : running_) wake = std::min(wake, EndOf(sleeper));
    return wake;
  }

  Time EndOf(const Sleeper& sleeper) const {
    return sleeper.started + settings_.token_time * sleeper.max_tokens;
  }

  // False: the router does not want this worker.
  bool Obey(const Frame& frame) {
    Decoded<RouterToWorker> decoded = dealer_.Decode(frame);
    KVERN_CHECK(decoded.ok()) << decoded.error;
    if (const auto* refused = std::get_if<JoinRefused>(&decoded.message)) {
      std::fprintf(stderr, "sleeping_worker: refused: %s\n", refused->reason.c_str());
      return false;
    }
    if (std::holds_alternative<GroupStart>(decoded.message)) {
      started_ = changed_ = true;
      return true;
    }
    const auto& commands = std::get<Commands>(decoded.message);
    for (const Dispatch& dispatch : commands.dispatches) Accept(dispatch);
    for (const CancelDispatch& cancel : commands.cancels) Cancel(cancel);
    report_.acked_command = commands.sequence;
    draining_ = draining_ || commands.drain;
    changed_ = true;
    return true;
  }

  void Accept(const Dispatch& dispatch) {
    if (dispatch.n != 1) {
      report_.nacks.push_back(
          {dispatch.request_id, dispatch.epoch, ErrorCode::kUnsupportedParameter, "n is not 1"});
      return;
    }
    Sleeper sleeper;
    sleeper.id = dispatch.request_id;
    sleeper.epoch = dispatch.epoch;
    sleeper.prompt_tokens = static_cast<uint32_t>(dispatch.prompt.size());
    sleeper.max_tokens = dispatch.sampling.max_tokens;
    sleeper.need = BlocksNeeded(sleeper.prompt_tokens, sleeper.max_tokens, 1, kBlockSize);
    report_.reserved_blocks += sleeper.need;
    waiting_.push_back(sleeper);
  }

  void Cancel(const CancelDispatch& cancel) {
    auto drop = [&](const Sleeper& sleeper) {
      if (sleeper.id != cancel.request_id || sleeper.epoch != cancel.epoch) return false;
      report_.reserved_blocks -= sleeper.need;
      return true;
    };
    std::erase_if(waiting_, drop);
    std::erase_if(running_, drop);
  }

  void Work(Time now) {
    Begin(now);
    bool tick = !running_.empty() && now >= next_tick_;
    if (tick) {
      ++report_.step_id;
      report_.step_us += static_cast<uint64_t>(settings_.token_time / kMicrosecond);
      report_.prefill_tokens += std::exchange(new_prompt_tokens_, 0);
      next_tick_ = std::max(next_tick_ + settings_.token_time, now);
    }
    std::erase_if(running_, [&](Sleeper& sleeper) {
      bool ends = now >= EndOf(sleeper);
      if (tick || ends) Emit(sleeper, now);
      if (ends) report_.reserved_blocks -= sleeper.need;
      return ends;
    });
    Begin(now);
    if (changed_ || tick || !report_.runs.empty() || now >= last_report_ + kHeartbeat) Report(now);
    if (draining_ && running_.empty() && waiting_.empty()) {
      dealer_.Send(EncodeWorkerToRouter(Leave{report_.group_incarnation}));
      left_ = true;
    }
  }

  void Begin(Time now) {
    while (!waiting_.empty() && running_.size() < static_cast<size_t>(settings_.slots)) {
      if (running_.empty()) next_tick_ = now + settings_.token_time;
      running_.push_back(waiting_.front());
      running_.back().started = now;
      new_prompt_tokens_ += running_.back().prompt_tokens;
      waiting_.pop_front();
    }
  }

  // The tokens it has slept for since the last time.
  void Emit(Sleeper& sleeper, Time now) {
    auto due = static_cast<uint32_t>(
        std::min<Duration>((now - sleeper.started) / settings_.token_time, sleeper.max_tokens));
    if (due == sleeper.produced) return;
    TokenRun& run = report_.runs.emplace_back();
    run.request_id = sleeper.id;
    run.epoch = sleeper.epoch;
    run.position = sleeper.produced;
    run.token_ids.assign(due - sleeper.produced, 7);
    if (due == sleeper.max_tokens) run.finish_reason = FinishReason::kLength;
    sleeper.produced = due;
  }

  void Report(Time now) {
    report_.running = static_cast<uint32_t>(running_.size() + waiting_.size());
    report_.waiting = static_cast<uint32_t>(waiting_.size());
    report_.used_blocks = 0;
    for (const Sleeper& sleeper : running_) report_.used_blocks += sleeper.Blocks();
    dealer_.Send(EncodeWorkerToRouter(report_));
    report_.runs.clear();
    report_.nacks.clear();
    changed_ = false;
    last_report_ = now;
  }

  Settings settings_;
  Dealer dealer_;
  StepReport report_;
  std::deque<Sleeper> waiting_;
  std::vector<Sleeper> running_;
  uint64_t new_prompt_tokens_ = 0;
  Time next_tick_ = 0;
  Time last_report_ = 0;
  bool started_ = false;
  bool changed_ = false;  // something to tell besides tokens
  bool draining_ = false;
  bool left_ = false;
};

int Main(int argc, char** argv) {
  Settings settings;
  Options options("sleeping_worker", "sleeping_worker --router ENDPOINT [option]...");
  options.String("router", "ENDPOINT", "the router's address for workers", &settings.router);
  options.String("group", "NAME", "group", &settings.group);
  options.String("model", "NAME", "served name, as the router has it", &settings.model);
  options.Count("vocab-size", "N", "as the router has it", &settings.vocab_size, 1, 1 << 30);
  options.Count("max-seq-len", "N", "as the router has it", &settings.max_seq_len, 2, 1 << 30);
  options.Count("kv-blocks", "N", "KV blocks it says it has", &settings.kv_blocks, 1, 1 << 30);
  options.Count("slots", "N", "requests at once", &settings.slots, 1, 1 << 20);
  options.Time("token-time", "time per token (default 10ms)", &settings.token_time,
               {0, 60 * kSecond});
  options.ParseOrExit(argc, argv);
  return Worker(settings).Run();
}

}  // namespace
}  // namespace kvern

int main(int argc, char** argv) { return kvern::Main(argc, argv); }
