// An open-loop load generator: requests go out when a Poisson process says so, whatever became of
// those before. Each is stamped when it was intended, sent, had its first token and its end; waits
// count from the intention, so a generator that falls behind cannot hide it, and its lag is
// reported. With --concurrency it is a closed loop, to find what a service can do at most.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/base/clock.h"
#include "cluster/base/option_ranges.h"
#include "cluster/base/rng.h"
#include "schemas/codec.h"
#include "tests/bench/dealer.h"

namespace kvern {
namespace {

constexpr Duration kKeepAliveEvery = kSecond;
// A generator that is later than this with one request in a hundred measures itself.
constexpr Duration kLagLimit = 50 * kMillisecond;

struct Settings {
  std::string endpoint;
  int64_t rate = 0;         // requests/s; or
  int64_t concurrency = 0;  // requests under way at all times
  Duration duration = 20 * kSecond;
  Duration patience = 60 * kSecond;
  Duration ttft_deadline = 0;  // 0: the service's default
  Duration good_ttft = 10 * kSecond;
  int64_t clients = 4;
  int64_t prompt_tokens = 64;
  int64_t max_tokens = 32;
  int64_t seed = 1;
};

struct Record {
  Time intended = 0;
  Time sent = 0;
  Time first = 0;  // 0: not yet
  Time last = 0;   // its terminal answer
  uint32_t tokens = 0;
  uint32_t terminals = 0;
  bool broken = false;  // a position was not the next
  ErrorCode code = ErrorCode::kNone;
};

double Ms(Duration duration) { return static_cast<double>(duration) / 1e6; }

nlohmann::json Percentiles(std::vector<Duration> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  auto at = [&](size_t percent) { return Ms(values[(values.size() - 1) * percent / 100]); };
  return {{"p50", at(50)}, {"p90", at(90)}, {"p99", at(99)}, {"max", Ms(values.back())}};
}

class Generator {
 public:
  explicit Generator(const Settings& settings)
      : settings_(settings),
        rng_(static_cast<uint64_t>(settings.seed)),
        context_(std::move(NetContext::Create().value())) {
    incarnation_ = static_cast<Incarnation>(MonotonicNow()) | 1;
    for (int64_t i = 0; i < settings.clients; ++i) {
      sockets_.push_back(
          DealerSocket::Connect(*context_, settings.endpoint, BenchSocketLimits()).value());
      poller_.Add(sockets_.back());
      Send(sockets_.back(), Hello{incarnation_, "", "open_loop"});
    }
  }

  nlohmann::json Run() {
    start_ = MonotonicNow();
    Time end = start_ + settings_.duration;
    next_keep_alive_ = start_ + kKeepAliveEvery;
    next_request_ = start_ + Gap();
    for (;;) {
      Time now = MonotonicNow();
      if (now >= end + settings_.patience || (now >= end && open_ == 0)) break;
      if (now >= next_keep_alive_) KeepAlives(now);
      if (now < end) SendDue(now);
      Time wake = std::min(next_keep_alive_, end + settings_.patience);
      if (now < end) wake = std::min(wake, end);
      if (now < end && settings_.concurrency == 0) wake = std::min(wake, next_request_);
      KVERN_CHECK(poller_.Wait(std::max<Duration>(0, wake - now)).ok());
      ReadAll();
    }
    return Result();
  }

 private:
  void Send(DealerSocket& socket, const ClientMessage& message) {
    std::string body = EncodeClientMessage(message, incarnation_);
    KVERN_CHECK(socket.Send(body).value() == SendResult::kSent) << "the router does not read";
  }

  Duration Gap() {
    if (settings_.rate == 0) return 0;
    double seconds = -std::log(UnitInterval(rng_.Next())) / static_cast<double>(settings_.rate);
    return static_cast<Duration>(seconds * 1e9);
  }

  void SendDue(Time now) {
    if (settings_.concurrency > 0) {
      while (open_ < static_cast<uint64_t>(settings_.concurrency)) SendOne(now);
      return;
    }
    for (; next_request_ <= now; next_request_ += Gap()) SendOne(next_request_);
  }

  void SendOne(Time intended) {
    GenerateRequest request;
    request.request_id = {incarnation_, records_.size() + 1};
    std::vector<uint32_t> ids;
    for (int64_t i = 0; i < settings_.prompt_tokens; ++i) {
      ids.push_back(100 + static_cast<uint32_t>(rng_.Below(1000)));
    }
    request.prompt_token_ids = std::move(ids);
    request.max_tokens = static_cast<uint32_t>(settings_.max_tokens);
    request.sampling.ignore_eos = true;
    request.service_class = ServiceClass::kStandard;
    if (settings_.ttft_deadline > 0) {
      request.ttft_deadline_ms = static_cast<uint32_t>(settings_.ttft_deadline / kMillisecond);
    }
    Record record;
    record.intended = intended;
    record.sent = MonotonicNow();
    records_.push_back(record);
    ++open_;
    Send(sockets_[records_.size() % sockets_.size()], request);
  }

  void KeepAlives(Time now) {
    for (DealerSocket& socket : sockets_) Send(socket, KeepAlive{});
    next_keep_alive_ = now + kKeepAliveEvery;
  }

  void ReadAll() {
    for (DealerSocket& socket : sockets_) {
      while (socket.Receive(&frame_).value() == ReceiveResult::kMessage) {
        Decoded<RouterToClient> decoded = DecodeRouterToClient(frame_.bytes());
        KVERN_CHECK(decoded.ok()) << decoded.error;
        Time now = MonotonicNow();
        if (const auto* error = std::get_if<RequestError>(&decoded.message)) {
          Record& record = Of(error->request_id);
          record.code = error->code;
          End(record, now);
        } else if (const auto* deltas = std::get_if<Deltas>(&decoded.message)) {
          for (const Delta& delta : deltas->deltas) Take(delta, now);
        }
      }
    }
  }

  Record& Of(const RequestId& id) {
    KVERN_CHECK(id.high == incarnation_ && id.low > 0 && id.low <= records_.size())
        << "an answer to nobody's question: " << id.ToString();
    return records_[id.low - 1];
  }

  void Take(const Delta& delta, Time now) {
    Record& record = Of(delta.request_id);
    record.broken |= delta.position != record.tokens || record.terminals > 0;
    record.tokens += static_cast<uint32_t>(delta.token_ids.size());
    if (record.first == 0) record.first = now;
    if (delta.usage) End(record, now);
  }

  void End(Record& record, Time now) {
    if (record.terminals++ > 0) return;
    record.last = now;
    --open_;
  }

  nlohmann::json Result() const {
    std::vector<Duration> ttft, tpot, lag, refusal;
    std::map<std::string, uint64_t> errors;
    uint64_t completed = 0, good = 0, in_window = 0, unanswered = 0, twice = 0, broken = 0;
    for (const Record& record : records_) {
      lag.push_back(record.sent - record.intended);
      unanswered += record.terminals == 0;
      twice += record.terminals > 1;
      broken += record.broken;
      if (record.terminals == 0) continue;
      if (record.code != ErrorCode::kNone) {
        ++errors[std::string(ErrorCodeName(record.code))];
        if (record.code == ErrorCode::kOverloaded) refusal.push_back(record.last - record.sent);
        continue;
      }
      ++completed;
      ttft.push_back(record.first - record.intended);
      if (record.tokens > 1) tpot.push_back((record.last - record.first) / (record.tokens - 1));
      bool is_good = ttft.back() <= settings_.good_ttft &&
                     record.tokens == static_cast<uint32_t>(settings_.max_tokens);
      good += is_good;
      in_window += is_good && record.last <= start_ + settings_.duration;
    }
    double seconds = static_cast<double>(settings_.duration) / 1e9;
    std::vector<Duration> sorted_lag = lag;
    std::sort(sorted_lag.begin(), sorted_lag.end());
    bool on_time = lag.empty() || sorted_lag[(lag.size() - 1) * 99 / 100] <= kLagLimit;
    return {{"sent", records_.size()},
            {"offered_rps", static_cast<double>(records_.size()) / seconds},
            {"completed", completed},
            {"good", good},
            {"goodput_rps", static_cast<double>(good) / seconds},
            {"goodput_in_window_rps", static_cast<double>(in_window) / seconds},
            {"errors", errors},
            {"unanswered", unanswered},
            {"answered_twice", twice},
            {"broken_streams", broken},
            {"ttft_ms", Percentiles(ttft)},
            {"tpot_ms", Percentiles(tpot)},
            {"refusal_ms", Percentiles(refusal)},
            {"lag_ms", Percentiles(lag)},
            {"on_time", on_time}};
  }

  Settings settings_;
  Rng rng_;
  std::unique_ptr<NetContext> context_;
  std::vector<DealerSocket> sockets_;
  Poller poller_;
  Incarnation incarnation_ = 0;
  std::vector<Record> records_;
  uint64_t open_ = 0;
  Time start_ = 0;
  Time next_request_ = 0;
  Time next_keep_alive_ = 0;
  Frame frame_;
};

int Main(int argc, char** argv) {
  Settings settings;
  Options options("open_loop",
                  "open_loop --endpoint ENDPOINT (--rate N | --concurrency N) [option]...");
  options.String("endpoint", "ENDPOINT", "the service", &settings.endpoint);
  constexpr TimeRange kTimes{kMillisecond, 24 * 3600 * kSecond};
  options.Count("rate", "N", "requests/s, a Poisson process", &settings.rate, 1, 1'000'000);
  options.Count("concurrency", "N", "closed loop: so many under way", &settings.concurrency, 1,
                1'000'000);
  options.Time("duration", "requests are sent for so long (default 20s)", &settings.duration,
               kTimes);
  options.Time("patience", "longest wait for the last answers (default 60s)", &settings.patience,
               kTimes);
  options.Time("ttft-deadline", "ttft_deadline_ms of the requests", &settings.ttft_deadline,
               kTtftDeadlineRange);
  options.Time("good-ttft", "a later first token is not good (default 10s)", &settings.good_ttft,
               kTimes);
  options.Count("clients", "N", "connections", &settings.clients, 1, 1000);
  options.Count("prompt-tokens", "N", "per request", &settings.prompt_tokens, 1, 1 << 20);
  options.Count("max-tokens", "N", "per request; all are generated", &settings.max_tokens, 1,
                1 << 20);
  options.Count("seed", "N", "of arrivals and prompts", &settings.seed, 0, INT64_MAX);
  options.Exclusive("rate", "concurrency");
  options.ParseOrExit(argc, argv);
  if (settings.endpoint.empty() || settings.rate + settings.concurrency == 0) {
    std::fprintf(stderr, "open_loop: --endpoint and one of --rate, --concurrency are needed\n");
    return 2;
  }
  std::printf("%s\n", Generator(settings).Run().dump().c_str());
  return 0;
}

}  // namespace
}  // namespace kvern

int main(int argc, char** argv) { return kvern::Main(argc, argv); }
