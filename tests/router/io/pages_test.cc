// The status pages, the server that serves them, and the start-up table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cluster/base/log.h"
#include "router/io/startup_table.h"
#include "router/io/status_pages.h"
#include "router/io/status_server.h"
#include "tests/cluster/base/no_more_threads.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

GroupStatus LiveGroup() {
  GroupStatus group;
  group.name = "a";
  group.model = "tiny";
  group.live = true;
  group.total_blocks = 100;
  group.reserved_blocks = 30;
  group.used_blocks = 20;
  group.drift_blocks = -2;
  group.running = 3;
  group.ages = {{0, 5}, {1, 1500}};
  group.ranks.resize(2);
  for (uint32_t r = 0; r < 2; ++r) {
    Join& rank = group.ranks[r];
    rank.rank = r;
    rank.device = "cpu";
    rank.kv_blocks = 100 + r;
    rank.bytes_per_token = 1536 * (r + 1);
    rank.weights_bytes = 75ull << 20;
    rank.workspace_bytes = 512;
    rank.startup = {{"weights", 0.25}, {"kv", 0.5}};
  }
  return group;
}

// Answers with what the test put in.
class FixedSource : public StatusSource {
 public:
  absl::StatusOr<std::shared_ptr<const StatusSnapshot>> Snapshot() override {
    if (!error.ok()) return error;
    return std::make_shared<const StatusSnapshot>(snapshot);
  }
  absl::StatusOr<RequestStatus> Find(const RequestId& id) override {
    if (!error.ok()) return error;
    if (id.low != 7) return absl::NotFoundError("no such request");
    RequestStatus status;
    status.state = "queued";
    status.needed_blocks = 4;
    status.expected_blocks = 2;
    status.free_blocks = 3;
    status.expected_wait_ms = 1500;
    status.reason = "no group has 4 free blocks";
    status.waits_for = id.high == 0 ? "blocks" : "";
    return status;
  }

  absl::Status error;
  StatusSnapshot snapshot;
};

nlohmann::json Json(const StatusPage& page) { return nlohmann::json::parse(page.body); }

TEST(StatusPagesTest, LiveNeedsNoRouter) {
  FixedSource source;
  source.error = Unavailable("stuck");
  EXPECT_EQ(RespondTo("/live", source).code, 200);
  for (const char* path : {"/ready", "/health/progress", "/metrics", "/v1/capacity",
                           "/v1/requests/00000000000000000000000000000007"}) {
    StatusPage page = RespondTo(path, source);
    EXPECT_EQ(page.code, 503) << path;
    EXPECT_EQ(Json(page)["error"], "stuck");
  }
}

TEST(StatusPagesTest, ReadyMeansALiveGroup) {
  FixedSource source;
  EXPECT_EQ(RespondTo("/ready", source).code, 503);
  source.snapshot.status.groups = {LiveGroup()};
  EXPECT_EQ(RespondTo("/ready", source).code, 200);
  source.snapshot.status.groups[0].live = false;
  EXPECT_EQ(RespondTo("/ready", source).code, 503);
  source.snapshot.status.groups[0].live = true;
  source.snapshot.status.draining = true;
  EXPECT_EQ(RespondTo("/ready", source).code, 503);
}

TEST(StatusPagesTest, AGroupThatDrainsTakesNothing) {
  FixedSource source;
  source.snapshot.status.groups = {LiveGroup()};
  source.snapshot.status.groups[0].draining = true;
  EXPECT_EQ(RespondTo("/ready", source).code, 503);
  EXPECT_EQ(Json(RespondTo("/ready", source))["live_groups"], 0);
  EXPECT_EQ(Json(RespondTo("/health/progress", source))["groups"][0]["draining"], true);
  std::string name = LiveGroup().name;
  std::string metrics = RespondTo("/metrics", source).body;
  auto says = [&](const std::string& gauge, const std::string& labels, const char* value) {
    EXPECT_THAT(metrics, HasSubstr(gauge + "{group=\"" + name + "\"" + labels + "} " + value));
  };
  says("kvern_group_live", "", "0\n");
  says("kvern_group_draining", "", "1\n");
  says("kvern_kv_blocks", ",state=\"free\"", "0\n");
}

TEST(StatusPagesTest, CapacityAddsUp) {
  FixedSource source;
  source.snapshot.capacity.groups = {{"a", "tiny", 100, 30, 20, {{0, 1536}, {1, 3072}}},
                                     {"b", "tiny", 50, 50, 1, {{0, 1536}}}};
  nlohmann::json json = Json(RespondTo("/v1/capacity?pretty", source));
  EXPECT_EQ(json["block_size"], kBlockSize);
  EXPECT_EQ(json["groups"][0]["id"], "a");
  EXPECT_EQ(json["groups"][0]["free_blocks"], 70);
  EXPECT_EQ(json["groups"][0]["ranks"][1]["bytes_per_token"], 3072);
  EXPECT_EQ(json["groups"][1]["free_blocks"], 0);
  EXPECT_EQ(json["total"]["total_blocks"], 150);
  EXPECT_EQ(json["total"]["reserved_blocks"], 80);
  EXPECT_EQ(json["total"]["used_blocks"], 21);
  EXPECT_EQ(json["total"]["free_blocks"], 70);
}

TEST(StatusPagesTest, ProgressShowsAges) {
  FixedSource source;
  source.snapshot.status.groups = {LiveGroup()};
  source.snapshot.status.queue_age = 1500 * kMillisecond;
  nlohmann::json json = Json(RespondTo("/health/progress", source));
  EXPECT_EQ(json["queue_age_ms"], 1500);
  EXPECT_EQ(json["groups"][0]["ranks"][1]["step_age_ms"], 1500);
}

TEST(StatusPagesTest, ARequestIsFoundByItsId) {
  FixedSource source;
  StatusPage page = RespondTo("/v1/requests/00000000000000000000000000000007", source);
  EXPECT_EQ(page.code, 200);
  EXPECT_EQ(Json(page)["state"], "queued");
  EXPECT_EQ(Json(page)["needed_blocks"], 4);
  EXPECT_EQ(Json(page)["expected_blocks"], 2);
  EXPECT_EQ(Json(page)["expected_wait_ms"], 1500);
  EXPECT_EQ(Json(page)["waits_for"], "blocks");
  page = RespondTo("/v1/requests/00000000000000010000000000000007", source);
  EXPECT_EQ(Json(page)["waits_for"], nullptr);
  page = RespondTo("/v1/requests/00000000000000000000000000000007", source);
  EXPECT_EQ(Json(page)["reason"], "no group has 4 free blocks");
  EXPECT_EQ(RespondTo("/v1/requests/00000000000000000000000000000008", source).code, 404);
  EXPECT_EQ(RespondTo("/v1/requests/", source).code, 400);
  StatusPage malformed = RespondTo("/v1/requests/seven", source);
  EXPECT_EQ(malformed.code, 400);
  EXPECT_EQ(Json(malformed)["error"],
            "request_id 'seven' is not 32 hexadecimal digits, not all zero");
  EXPECT_EQ(RespondTo("/v2", source).code, 404);
}

TEST(StatusPagesTest, MetricsHaveTheAgreedNames) {
  FixedSource source;
  StatusSnapshot& snapshot = source.snapshot;
  snapshot.model = "tiny";
  snapshot.status.groups = {LiveGroup()};
  snapshot.status.queue_entries = 6;
  snapshot.status.counters.completed = 9;
  snapshot.status.counters.slow_readers = 7;
  snapshot.status.paused_streams = 8;
  snapshot.status.kept_bytes = 800;
  snapshot.status.counters.errors.resize(kLastErrorCode + 1);
  snapshot.status.counters.errors[static_cast<size_t>(ErrorCode::kNeverFits)] = 2;
  snapshot.status.counters.errors[static_cast<size_t>(ErrorCode::kCancelled)] = 4;
  snapshot.status.counters.cancelled = 5;
  TenantStatus tenant = {"sea\"rch", 12, 11, snapshot.status.counters.errors, 5000, 3, 40};
  snapshot.status.tenants = {tenant, {}};
  snapshot.status.counters.cancel_to_free_seconds = {0.002};
  snapshot.status.counters.ttft_seconds = {0.2, 0.3};
  snapshot.distributions.Observe(snapshot.status.counters);
  snapshot.client_messages.by_failure[static_cast<size_t>(DecodeFailure::kWrongVersion)] = 5;
  snapshot.worker_messages.frames = 4;
  StatusPage page = RespondTo("/metrics", source);
  EXPECT_THAT(page.content_type, StartsWith("text/plain"));
  for (const char* line :
       {"kvern_kv_blocks{group=\"a\",state=\"total\"} 100",
        "kvern_kv_blocks{group=\"a\",state=\"free\"} 70",
        "kvern_kv_blocks{group=\"a\",state=\"used\"} 20",
        "kvern_kv_ledger_drift_blocks{group=\"a\"} -2",
        "kvern_requests_total{outcome=\"completed\"} 9",
        "kvern_requests_total{outcome=\"error\"} 2",
        "kvern_requests_total{outcome=\"cancelled\"} 5",
        "kvern_refused_total{reason=\"never_fits\"} 2",
        "kvern_tenant_requests_total{tenant=\"sea\\\"rch\",outcome=\"accepted\"} 12",
        "kvern_tenant_requests_total{tenant=\"\",outcome=\"completed\"} 0",
        "kvern_tenant_refused_total{tenant=\"sea\\\"rch\",reason=\"never_fits\"} 2",
        "kvern_tenant_service_total{tenant=\"sea\\\"rch\"} 5000",
        "kvern_tenant_waiting{tenant=\"sea\\\"rch\"} 3",
        "kvern_tenant_running_blocks{tenant=\"sea\\\"rch\"} 40",
        "kvern_slow_readers_total 7",
        "kvern_paused_streams 8",
        "kvern_client_buffer_bytes 800",
        "kvern_queue_entries 6",
        "kvern_cancel_to_free_seconds_count 1",
        "kvern_step_age_seconds{group=\"a\",rank=\"1\"} 1.5",
        "kvern_bad_messages_total{socket=\"client\",reason=\"wrong_version\"} 5",
        "kvern_bad_messages_total{socket=\"worker\",reason=\"frames\"} 4",
        "vllm:time_to_first_token_seconds_count{model_name=\"tiny\"} 2",
        "vllm:num_requests_running{model_name=\"tiny\"} 3"}) {
    EXPECT_THAT(page.body, HasSubstr(std::string(line) + "\n"));
  }
  EXPECT_THAT(page.body, Not(HasSubstr("reason=\"cancelled\"")));
}

TEST(StatusPagesTest, ProgressNamesTheRanksThatAreWaitedFor) {
  FixedSource source;
  source.snapshot.status.groups = {LiveGroup(), GroupStatus()};
  source.snapshot.status.groups[1].absent_ranks = {1, 3};
  nlohmann::json groups = Json(RespondTo("/health/progress", source))["groups"];
  EXPECT_EQ(groups[0]["absent_ranks"], nlohmann::json::array());
  EXPECT_EQ(groups[1]["absent_ranks"], nlohmann::json({1, 3}));
}

TEST(StartupTableTest, IsALineWhereLogLinesAreJson) {
  InitLog("kvern-router", LogLevel::kInfo, LogFormat::kJson);
  testing::internal::CaptureStderr();
  ShowStartupTable(LiveGroup(), 8192);
  auto line = nlohmann::json::parse(testing::internal::GetCapturedStderr());
  InitLog("kvern-router", LogLevel::kInfo, LogFormat::kText);
  EXPECT_EQ(line["event"], "startup_table");
  EXPECT_EQ(line["group"], "a");
  EXPECT_EQ(line["total_blocks"], 100);
  EXPECT_EQ(line["ranks"][1]["weights_bytes"], 75 << 20);
  EXPECT_EQ(line["ranks"][1]["startup"]["kv_s"], 0.5);
  EXPECT_EQ(line["fit_at_once"][0], nlohmann::json({{"requests", 3}, {"tokens", 512}}));
}

TEST(StartupTableTest, SaysWhatFits) {
  std::string table = StartupTable(LiveGroup(), 8192);
  EXPECT_THAT(table, HasSubstr("group a: 2 ranks, 100 KV blocks of 16 tokens = 1600 tokens\n"));
  EXPECT_THAT(table, HasSubstr("75.0 MiB"));
  EXPECT_THAT(table, HasSubstr("512 B"));
  EXPECT_THAT(table, HasSubstr("1.5 KiB"));
  EXPECT_THAT(table, HasSubstr("0.75 s (weights 0.25, kv 0.50)"));
  EXPECT_THAT(table, HasSubstr("3 of 512 tokens, 0 of 2048 tokens, 0 of 8192 tokens\n"));
  EXPECT_THAT(StartupTable(LiveGroup(), 300), HasSubstr("at once: 5 of 300 tokens\n"));
}

// ---- The server.

class StatusServerTest : public ::testing::Test {
 protected:
  void SetUp() override { server_ = StatusServer::Start("127.0.0.1:0", &source_).value(); }

  int Connect() {
    std::string address = server_->address();
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    return fd;
  }
  // Reads until the server closes.
  std::string ReadAll(int fd) {
    std::string answer;
    char buffer[4096];
    for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) {
      answer.append(buffer, static_cast<size_t>(got));
    }
    close(fd);
    return answer;
  }
  std::string Ask(const std::string& request) {
    int fd = Connect();
    EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    return ReadAll(fd);
  }

  FixedSource source_;
  std::unique_ptr<StatusServer> server_;
};

TEST_F(StatusServerTest, ServesPages) {
  std::string answer = Ask("GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\n{\"live\":true}\n"));
  EXPECT_THAT(Ask("GET /ready HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.0 503"));
  EXPECT_THAT(Ask("POST /live HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.0 405"));
  std::string head = Ask("HEAD /live HTTP/1.0\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.0 200"));
  EXPECT_THAT(head, Not(HasSubstr("live")));
}

TEST_F(StatusServerTest, KeepsAConnectionOpen) {
  std::string twice =
      Ask("GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
          "GET /nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(twice, HasSubstr("200 OK"));
  EXPECT_THAT(twice, HasSubstr("404 Not Found"));
}

TEST_F(StatusServerTest, GarbageIsRefused) {
  std::string answer = Ask(std::string("\x16\x03\x01 hello\r\n\r\n"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_THAT(answer, HasSubstr("{\"error\":\""));
  std::string long_header = "GET /live HTTP/1.1\r\nX: " + std::string(20'000, 'x') + "\r\n\r\n";
  EXPECT_THAT(Ask(long_header), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Ask("GET /live HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Ask("GET /live HTTP/1.0\r\n\r\n"), HasSubstr("200 OK"));
}

TEST_F(StatusServerTest, IdleConnectionsMakeWay) {
  std::vector<int> open;
  for (int i = 0; i < 64; ++i) open.push_back(Connect());
  // The first one speaks, so the second is idle for longest.
  const std::string request = "GET /live HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_EQ(send(open[0], request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  char byte;
  ASSERT_EQ(read(open[0], &byte, 1), 1);
  EXPECT_THAT(Ask("GET /live HTTP/1.0\r\n\r\n"), HasSubstr("200 OK"));
  EXPECT_EQ(ReadAll(open[1]), "");
  const std::string last = "GET /live HTTP/1.0\r\n\r\n";
  for (size_t kept : {size_t{0}, size_t{2}, size_t{63}}) {
    ASSERT_EQ(send(open[kept], last.data(), last.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(last.size()));
    EXPECT_THAT(ReadAll(open[kept]), HasSubstr("HTTP/1.0 200 OK")) << kept;
    open[kept] = -1;
  }
  for (int fd : open) {
    if (fd >= 0 && fd != open[1]) close(fd);
  }
}

TEST(StatusServerStartTest, RefusesWhatIsNotLoopback) {
  FixedSource source;
  auto code = [&](const char* address) {
    return StatusServer::Start(address, &source).status().code();
  };
  EXPECT_EQ(code("0.0.0.0:0"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("10.0.0.1:80"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("127.0.0.1"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("localhost:80"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("127.0.0.1:99999"), absl::StatusCode::kInvalidArgument);
  {
    NoMoreThreads none;
    EXPECT_EQ(code("127.0.0.1:0"), absl::StatusCode::kResourceExhausted);
  }
  auto first = StatusServer::Start("127.0.0.1:0", &source);
  ASSERT_TRUE(first.ok());
  absl::Status taken = StatusServer::Start((*first)->address(), &source).status();
  // The listening socket may share its port with one that only lingers, never with a live one.
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable) << taken;
}

}  // namespace
}  // namespace kvern
