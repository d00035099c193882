// Round trips through the router with a worker that does no work, beside a bare ZeroMQ broker that
// forwards the same messages: what the router adds to the sockets.
//
// Each of client, router (or broker) and worker has a thread and a context of its own, as if they
// were processes. Limits to compare with: 50,000 round trips/s, round-trip time 1.5 times the
// broker's.
#include <benchmark/benchmark.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "cluster/base/check.h"
#include "cluster/net/poller.h"
#include "router/io/router_loop.h"
#include "schemas/codec.h"
#include "tests/bench/dealer.h"

namespace kvern {
namespace {

constexpr char kAny[] = "tcp://127.0.0.1:0";
constexpr uint32_t kBlocks = 1u << 20;

// ---- The router and its worker.

Join JoinOfNoWork() {
  Join join;
  join.group = "bench";
  join.group_incarnation = 1;
  join.world = 1;
  join.model = "none";
  join.kv_blocks = kBlocks;
  join.max_seq_len = 4096;
  join.vocab_size = 1000;
  return join;
}

// Answers each dispatch with one token at once. A report for each message, as an engine has for
// each step.
void WorkWithoutWork(const std::string& endpoint, const std::atomic<bool>& stop) {
  Dealer dealer(endpoint);
  dealer.Send(EncodeWorkerToRouter(JoinOfNoWork()));
  StepReport report;
  report.group_incarnation = 1;
  Frame frame;
  while (!stop) {
    report.runs.clear();
    if (dealer.Receive(&frame, kSecond)) {
      Decoded<RouterToWorker> decoded = DecodeRouterToWorker(frame.bytes());
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
  RouterUnderTest()
      : context_(std::move(NetContext::Create().value())),
        ports_(std::move(RouterPorts::Bind(*context_, kAny, kAny).value())) {
    RouterConfig config;
    config.model = "none";
    config.max_seq_len = 4096;
    config.vocab_size = 1000;
    config.router_incarnation = 1;
    config.client_lease = 1000 * kSecond;
    loop_ = std::make_unique<RouterLoop>(config, 1, RouterText(), ports_.get());
    loop_thread_ = std::thread([this] { KVERN_CHECK(loop_->Run().ok()); });
    worker_thread_ = std::thread([this] { WorkWithoutWork(ports_->worker_endpoint(), stop_); });
    client_ = std::make_unique<Dealer>(ports_->endpoint());
    client_->Send(EncodeClientMessage(Hello{1, "", "bench"}));
  }
  ~RouterUnderTest() {
    stop_ = true;
    worker_thread_.join();
    loop_->Stop();
    loop_thread_.join();
  }

  void Send() {
    GenerateRequest request;
    request.request_id = {1, ++last_id_};
    request.prompt_token_ids.emplace(16, 5u);
    request.max_tokens = 1;
    request.seed = 1;
    client_->Send(EncodeClientMessage(request, 1));
  }
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

 private:
  std::unique_ptr<NetContext> context_;
  std::unique_ptr<RouterPorts> ports_;
  std::unique_ptr<RouterLoop> loop_;
  std::atomic<bool> stop_ = false;
  std::thread loop_thread_;
  std::thread worker_thread_;
  std::unique_ptr<Dealer> client_;
  uint64_t last_id_ = 0;
  Frame frame_;
};

// ---- The broker: forwards bodies between one worker and any clients.

class BrokerUnderTest {
 public:
  BrokerUnderTest()
      : context_(std::move(NetContext::Create().value())),
        front_(RouterSocket::Bind(*context_, kAny, BenchSocketLimits()).value()),
        back_(RouterSocket::Bind(*context_, kAny, BenchSocketLimits()).value()) {
    GenerateRequest request;
    request.request_id = {1, 1};
    request.prompt_token_ids.emplace(16, 5u);
    body_ = EncodeClientMessage(request);
    broker_thread_ = std::thread([this] { Forward(); });
    worker_thread_ = std::thread([this] { Echo(); });
    client_ = std::make_unique<Dealer>(front_.endpoint());
  }
  ~BrokerUnderTest() {
    stop_ = true;
    worker_thread_.join();
    broker_thread_.join();
  }

  void Send() { client_->Send(body_); }
  size_t Receive() {
    client_->Receive(&frame_);
    return 1;
  }

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
  void Echo() {
    Dealer dealer(back_.endpoint());
    dealer.Send("hello");
    Frame frame;
    while (!stop_) {
      if (dealer.Receive(&frame, 100 * kMillisecond)) dealer.Send(std::string(frame.text()));
    }
  }

  std::unique_ptr<NetContext> context_;
  RouterSocket front_;
  RouterSocket back_;
  std::string body_;
  std::atomic<bool> stop_ = false;
  std::thread broker_thread_;
  std::thread worker_thread_;
  std::unique_ptr<Dealer> client_;
  Frame frame_;
};

// One request at a time: the time of an iteration is the round-trip time.
template <typename Service>
void RoundTripTime(benchmark::State& state) {
  Service service;
  for (auto _ : state) {
    service.Send();
    while (service.Receive() == 0) {
    }
  }
  state.SetItemsProcessed(state.iterations());
}

// `window` requests under way at all times.
template <typename Service>
void RoundTrips(benchmark::State& state) {
  Service service;
  const auto window = static_cast<size_t>(state.range(0));
  size_t under_way = 0;
  uint64_t done = 0;
  for (auto _ : state) {
    for (; under_way < window; ++under_way) service.Send();
    size_t ended = service.Receive();
    under_way -= ended;
    done += ended;
  }
  while (under_way > 0) under_way -= service.Receive();
  state.SetItemsProcessed(static_cast<int64_t>(done));
}

BENCHMARK(RoundTripTime<BrokerUnderTest>)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(RoundTripTime<RouterUnderTest>)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(RoundTrips<BrokerUnderTest>)->Arg(256)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(RoundTrips<RouterUnderTest>)->Arg(256)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvern

BENCHMARK_MAIN();
