// Round trips through the router with a worker that does no work, beside a bare ZeroMQ broker that
// forwards the same messages: what the router adds to the sockets, at prompts of several lengths.
//
// Each of client, router (or broker) and worker has a thread and a context of its own, as if they
// were processes. Limits to compare with: round-trip time 1.5 times the broker's; with 64 in flight
// 0.4 times its requests/s; CPU per request (cpu_us: of the router's or the broker's own thread,
// io_us: of ZeroMQ's thread for its sockets, text_us: of the threads that tokenise) above the
// broker's the same at all lengths of prompts of token ids, and linear in the length of text.
#include <benchmark/benchmark.h>
#include <pthread.h>
#include <sys/types.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "cluster/base/check.h"
#include "cluster/base/machine.h"
#include "cluster/net/poller.h"
#include "router/io/router_loop.h"
#include "router/served_model.h"
#include "schemas/codec.h"
#include "tests/bench/dealer.h"

namespace kvern {
namespace {

constexpr char kAny[] = "tcp://127.0.0.1:0";
constexpr uint32_t kBlocks = 1u << 20;

double Seconds(clockid_t clock) {
  timespec used;
  KVERN_CHECK_EQ(clock_gettime(clock, &used), 0);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

// Those of this process whose names begin so.
std::set<pid_t> Threads(std::string_view name_begins) {
  std::set<pid_t> threads;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name.starts_with(name_begins)) threads.insert(std::stoi(task.path().filename()));
  }
  return threads;
}

// What another thread of this process used so far, in seconds.
double CpuOf(pid_t thread) {
  // How the kernel numbers the clock of a thread's CPU time, see pthread_getcpuclockid.
  return Seconds(static_cast<clockid_t>((~static_cast<uint32_t>(thread) << 3) | 6));
}

// The I/O thread of the one context that comes to have its first socket between the watch's
// construction and Find.
class IoThreadWatch {
 public:
  void Find() {
    while (thread_ == 0) {  // A thread gives itself its name, a moment after its start.
      for (pid_t thread : Threads(kName)) {
        if (!before_.contains(thread)) thread_ = thread;
      }
    }
  }
  double Cpu() const { return CpuOf(thread_); }

 private:
  static constexpr std::string_view kName = "ZMQbg/IO";
  std::set<pid_t> before_ = Threads(kName);
  pid_t thread_ = 0;
};

// Used so far, in seconds: by the router's or the broker's own thread, by its sockets' thread, and
// by the threads that tokenise.
struct Cpu {
  double own = 0;
  double io = 0;
  double text = 0;
};
Cpu UsedCpu(std::thread& own, const IoThreadWatch& io) {
  clockid_t clock;
  KVERN_CHECK_EQ(pthread_getcpuclockid(own.native_handle(), &clock), 0);
  return {Seconds(clock), io.Cpu(), 0};
}

void CountCpu(benchmark::State& state, const Cpu& before, const Cpu& after, uint64_t requests) {
  auto each = static_cast<double>(requests);
  state.counters["cpu_us"] = (after.own - before.own) * 1e6 / each;
  state.counters["io_us"] = (after.io - before.io) * 1e6 / each;
  if (after.text > 0) state.counters["text_us"] = (after.text - before.text) * 1e6 / each;
}

// ---- Requests

enum class Input : int64_t { kIds, kText };

// Encoded requests to send in turn: encoding is the client's work. None is sent again before it has
// been answered, as far fewer are under way.
std::vector<std::string> MakeBodies(Input input, size_t prompt_bytes) {
  constexpr size_t kTotalBytes = 32u << 20;
  std::string text;
  while (text.size() < prompt_bytes) text += "The quick brown fox jumps over a lazy dog; ";
  text.resize(prompt_bytes);
  std::vector<std::string> bodies(std::clamp<size_t>(kTotalBytes / prompt_bytes, 512, 4096));
  for (size_t i = 0; i < bodies.size(); ++i) {
    GenerateRequest request;
    request.request_id = {1, i + 1};
    if (input == Input::kIds) {
      request.prompt_token_ids = std::vector<uint32_t>(prompt_bytes / sizeof(uint32_t), 5u);
    } else {
      request.prompt = text;
    }
    request.max_tokens = 1;
    request.seed = 1;
    request.service_class = ServiceClass::kStandard;
    bodies[i] = EncodeClientMessage(request, 1);
  }
  return bodies;
}

// The tokenizer of the real model (tools/fetch_model), for prompts of text.
const ServedModel& Model() {
  static const ServedModel* model = [] {
    const char* path = std::getenv("KVERN_MODEL");
    ServedModelOptions options;
    options.path = path != nullptr ? path : "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    absl::StatusOr<std::unique_ptr<ServedModel>> loaded = LoadServedModel(options);
    KVERN_CHECK(loaded.ok()) << loaded.status().message();
    return loaded->release();
  }();
  return *model;
}

// ---- The router and its worker.

constexpr uint32_t kMaxSeqLen = 1u << 20;

Join JoinOfNoWork(const RouterConfig& config) {
  Join join;
  join.group = "bench";
  join.group_incarnation = 1;
  join.world = 1;
  join.model = "none";
  join.kv_blocks = kBlocks;
  join.max_seq_len = config.max_seq_len;
  join.vocab_size = config.vocab_size;
  return join;
}

// Answers each dispatch with one token at once. A report for each message, as an engine has for
// each step.
void WorkWithoutWork(const std::string& endpoint, const RouterConfig& config,
                     const std::atomic<bool>& stop) {
  Dealer dealer(endpoint);
  dealer.Send(EncodeWorkerToRouter(JoinOfNoWork(config)));
  StepReport report;
  report.group_incarnation = 1;
  Frame frame;
  while (!stop) {
    report.runs.clear();
    if (dealer.Receive(&frame, kSecond)) {
      Decoded<RouterToWorker> decoded = dealer.Decode(frame);
      KVERN_CHECK(decoded.ok()) << decoded.error;
      if (const auto* commands = std::get_if<Commands>(&decoded.message)) {
        report.acked_command = commands->sequence;
        for (const Dispatch& dispatch : commands->dispatches) {
          TokenRun& run = report.runs.emplace_back();
          run.request_id = dispatch.request_id;
          run.epoch = dispatch.epoch;
          run.token_ids = {7};
          run.finish_reason = FinishReason::kLength;
        }
      }
    }
    ++report.step_id;
    dealer.Send(EncodeWorkerToRouter(report));
  }
}

class RouterUnderTest {
 public:
  RouterUnderTest(Input input, size_t prompt_bytes)
      : bodies_(MakeBodies(input, prompt_bytes)),
        context_(std::move(NetContext::Create().value())),
        ports_(std::move(RouterPorts::Bind(*context_, kAny, kAny).value())) {
    io_.Find();
    config_.model = "none";
    config_.max_seq_len = kMaxSeqLen;
    config_.vocab_size = 1000;
    config_.router_incarnation = 1;
    config_.client_lease = 1000 * kSecond;
    RouterText text;
    if (input == Input::kText) {
      text = Model().Text();
      config_.has_tokenizer = true;
      config_.vocab_size = Model().vocab_size;
    }
    const std::set<pid_t> before = Threads("");
    loop_ = std::make_unique<RouterLoop>(config_, 1, std::move(text), ports_.get());
    for (pid_t thread : Threads("")) {
      if (!before.contains(thread)) text_threads_.push_back(thread);
    }
    loop_thread_ = std::thread([this] { KVERN_CHECK(loop_->Run().ok()); });
    worker_thread_ =
        std::thread([this] { WorkWithoutWork(ports_->worker_endpoint(), config_, stop_); });
    client_ = std::make_unique<Dealer>(ports_->endpoint());
    client_->Send(EncodeClientMessage(Hello{1, "", "bench"}));
  }
  ~RouterUnderTest() {
    stop_ = true;
    worker_thread_.join();
    loop_->Stop();
    loop_thread_.join();
  }

  void Send() { client_->Send(bodies_[next_++ % bodies_.size()]); }
  // How many requests the next message ends.
  size_t Receive() {
    client_->Receive(&frame_);
    Decoded<RouterToClient> decoded = DecodeRouterToClient(frame_.bytes());
    KVERN_CHECK(decoded.ok()) << decoded.error;
    const auto* error = std::get_if<RequestError>(&decoded.message);
    KVERN_CHECK(error == nullptr) << error->message;
    const auto* deltas = std::get_if<Deltas>(&decoded.message);
    return deltas == nullptr ? 0 : deltas->deltas.size();
  }
  Cpu Used() {
    Cpu used = UsedCpu(loop_thread_, io_);
    for (pid_t thread : text_threads_) used.text += CpuOf(thread);
    return used;
  }

 private:
  std::vector<std::string> bodies_;
  size_t next_ = 0;
  RouterConfig config_;
  std::vector<pid_t> text_threads_;
  IoThreadWatch io_;
  std::unique_ptr<NetContext> context_;
  std::unique_ptr<RouterPorts> ports_;
  std::unique_ptr<RouterLoop> loop_;
  std::atomic<bool> stop_ = false;
  std::thread loop_thread_;
  std::thread worker_thread_;
  std::unique_ptr<Dealer> client_;
  Frame frame_;
};

// ---- The broker: forwards bodies between one worker and any clients.

class BrokerUnderTest {
 public:
  BrokerUnderTest(Input input, size_t prompt_bytes)
      : bodies_(MakeBodies(input, prompt_bytes)),
        context_(std::move(NetContext::Create().value())),
        front_(RouterSocket::Bind(*context_, kAny, BenchSocketLimits()).value()),
        back_(RouterSocket::Bind(*context_, kAny, BenchSocketLimits()).value()) {
    io_.Find();
    broker_thread_ = std::thread([this] { Forward(); });
    worker_thread_ = std::thread([this] { Echo(); });
    client_ = std::make_unique<Dealer>(front_.endpoint());
  }
  ~BrokerUnderTest() {
    stop_ = true;
    worker_thread_.join();
    broker_thread_.join();
  }

  void Send() { client_->Send(bodies_[next_++ % bodies_.size()]); }
  size_t Receive() {
    client_->Receive(&frame_);
    return 1;
  }
  Cpu Used() { return UsedCpu(broker_thread_, io_); }

 private:
  // A body travels to the worker and back behind the routing id of its client.
  void Forward() {
    Poller poller;
    poller.Add(front_);
    poller.Add(back_);
    std::string worker;
    std::string id;
    Frame frame;
    while (!stop_) {
      KVERN_CHECK(poller.Wait(100 * kMillisecond).ok());
      while (back_.Receive(&id, &frame).value() == ReceiveResult::kMessage) {
        if (worker.empty()) {
          worker = id;  // Its hello.
          continue;
        }
        std::string_view text = frame.text();
        size_t id_size = static_cast<unsigned char>(text[0]);
        std::string body(text.substr(1 + id_size));
        KVERN_CHECK(front_.Send(text.substr(1, id_size), body).value() == SendResult::kSent);
      }
      while (!worker.empty() && front_.Receive(&id, &frame).value() == ReceiveResult::kMessage) {
        std::string body;
        body.reserve(1 + id.size() + frame.text().size());
        body.push_back(static_cast<char>(id.size()));
        body.append(id).append(frame.text());
        KVERN_CHECK(back_.Send(worker, body).value() == SendResult::kSent);
      }
    }
  }
  // An answer is as long as that of one token, however long the prompt was.
  void Echo() {
    constexpr size_t kAnswerBytes = 128;
    Dealer dealer(back_.endpoint());
    dealer.Send("hello");
    Frame frame;
    while (!stop_) {
      if (!dealer.Receive(&frame, 100 * kMillisecond)) continue;
      dealer.Send(std::string(frame.text().substr(0, kAnswerBytes)));
    }
  }

  std::vector<std::string> bodies_;
  size_t next_ = 0;
  IoThreadWatch io_;
  std::unique_ptr<NetContext> context_;
  RouterSocket front_;
  RouterSocket back_;
  std::atomic<bool> stop_ = false;
  std::thread broker_thread_;
  std::thread worker_thread_;
  std::unique_ptr<Dealer> client_;
  Frame frame_;
};

// range: input, bytes of the prompt. One request at a time: the time of an iteration is the
// round-trip time.
template <typename Service>
void RoundTripTime(benchmark::State& state) {
  Service service(static_cast<Input>(state.range(0)), static_cast<size_t>(state.range(1)));
  auto round_trip = [&] {
    service.Send();
    while (service.Receive() == 0) {
    }
  };
  round_trip();  // connects
  Cpu before = service.Used();
  for (auto _ : state) round_trip();
  state.SetItemsProcessed(state.iterations());
  CountCpu(state, before, service.Used(), static_cast<uint64_t>(state.iterations()));
}

// range: input, bytes of the prompt, requests under way at all times.
template <typename Service>
void RoundTrips(benchmark::State& state) {
  Service service(static_cast<Input>(state.range(0)), static_cast<size_t>(state.range(1)));
  const auto window = static_cast<size_t>(state.range(2));
  size_t under_way = 0;
  uint64_t done = 0;
  Cpu before = service.Used();
  for (auto _ : state) {
    for (; under_way < window; ++under_way) service.Send();
    size_t ended = service.Receive();
    under_way -= ended;
    done += ended;
  }
  while (under_way > 0) under_way -= service.Receive();
  state.SetItemsProcessed(static_cast<int64_t>(done));
  CountCpu(state, before, service.Used(), done);
}

// The broker does not look into a message: ids and text are the same to it.
void Prompts(benchmark::internal::Benchmark* bench, bool text, std::vector<int64_t> windows) {
  bench->ArgNames(windows.empty() ? std::vector<std::string>{"text", "bytes"}
                                  : std::vector<std::string>{"text", "bytes", "window"});
  for (int64_t input = 0; input <= (text ? 1 : 0); ++input) {
    for (int64_t bytes : {200, 20'000, 220'000}) {
      if (windows.empty()) bench->Args({input, bytes});
      for (int64_t window : windows) bench->Args({input, bytes, window});
    }
  }
  bench->UseRealTime()->Unit(benchmark::kMicrosecond);
}
void BrokerTime(benchmark::internal::Benchmark* bench) { Prompts(bench, false, {}); }
void RouterTime(benchmark::internal::Benchmark* bench) { Prompts(bench, true, {}); }
void Windows(benchmark::internal::Benchmark* bench) { Prompts(bench, false, {64}); }

BENCHMARK(RoundTripTime<BrokerUnderTest>)->Apply(BrokerTime);
BENCHMARK(RoundTripTime<RouterUnderTest>)->Apply(RouterTime);
BENCHMARK(RoundTrips<BrokerUnderTest>)->Apply(Windows);
BENCHMARK(RoundTrips<RouterUnderTest>)->Apply(Windows);

}  // namespace
}  // namespace kvern

int main(int argc, char** argv) {
  kvern::KeepFreedMemory();  // as kvern-router does
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
