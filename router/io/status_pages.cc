#include "router/io/status_pages.h"

#include <nlohmann/json.hpp>

namespace kvern {
namespace {

using Json = nlohmann::ordered_json;

// Names come from peers and were checked to be UTF-8; replacing is for what slips through.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

StatusPage ErrorPage(int code, std::string_view message) {
  return {code, "application/json", Dump({{"error", message}})};
}

StatusPage StatusError(const absl::Status& status) {
  int code = status.code() == absl::StatusCode::kNotFound ? 404 : 503;
  return ErrorPage(code, ToStd(status.message()));
}

double Milliseconds(Duration duration) { return static_cast<double>(duration) / kMillisecond; }

StatusPage Ready(const StatusSnapshot& snapshot) {
  size_t live = 0;
  for (const GroupStatus& group : snapshot.status.groups) {
    live += group.live && !group.draining ? 1 : 0;
  }
  bool ready = live > 0 && !snapshot.status.draining;
  return {ready ? 200 : 503, "application/json",
          Dump({{"ready", ready}, {"live_groups", live}, {"draining", snapshot.status.draining}})};
}

StatusPage Progress(const StatusSnapshot& snapshot) {
  Json groups = Json::array();
  for (const GroupStatus& group : snapshot.status.groups) {
    Json ranks = Json::array();
    for (const RankAge& age : group.ages) {
      ranks.push_back({{"rank", age.rank}, {"step_age_ms", age.step_age_ms}});
    }
    groups.push_back({{"id", group.name},
                      {"live", group.live},
                      {"absent_ranks", group.absent_ranks},
                      {"draining", group.draining},
                      {"running", group.running},
                      {"report_age_ms", Milliseconds(group.report_age)},
                      {"ranks", ranks}});
  }
  return {200, "application/json",
          Dump({{"queue_entries", snapshot.status.queue_entries},
                {"queue_age_ms", Milliseconds(snapshot.status.queue_age)},
                {"groups", groups}})};
}

StatusPage Capacity(const StatusSnapshot& snapshot) {
  Json groups = Json::array();
  uint64_t total = 0;
  uint64_t reserved = 0;
  uint64_t used = 0;
  for (const GroupCapacity& group : snapshot.capacity.groups) {
    Json ranks = Json::array();
    for (const RankCapacity& rank : group.ranks) {
      ranks.push_back({{"rank", rank.rank}, {"bytes_per_token", rank.bytes_per_token}});
    }
    groups.push_back({{"id", group.id},
                      {"model", group.model},
                      {"total_blocks", group.total_blocks},
                      {"reserved_blocks", group.reserved_blocks},
                      {"used_blocks", group.used_blocks},
                      {"free_blocks", group.total_blocks - group.reserved_blocks},
                      {"ranks", ranks}});
    total += group.total_blocks;
    reserved += group.reserved_blocks;
    used += group.used_blocks;
  }
  return {200, "application/json",
          Dump({{"block_size", snapshot.capacity.block_size},
                {"groups", groups},
                {"total",
                 {{"total_blocks", total},
                  {"reserved_blocks", reserved},
                  {"used_blocks", used},
                  {"free_blocks", total - reserved}}}})};
}

StatusPage Request(std::string_view text, StatusSource& source) {
  absl::StatusOr<RequestId> id = RequestId::Parse(text);
  if (!id.ok()) return ErrorPage(400, ToStd(id.status().message()));
  absl::StatusOr<RequestStatus> request = source.Find(*id);
  if (!request.ok()) return StatusError(request.status());
  Json json = {{"request_id", id->ToString()},
               {"state", request->state},
               {"needed_blocks", request->needed_blocks},
               {"expected_blocks", request->expected_blocks},
               {"free_blocks", request->free_blocks},
               {"queue_position", request->queue_position},
               {"group", request->group},
               {"reason", request->reason}};
  json["waits_for"] = nullptr;
  if (!request->waits_for.empty()) json["waits_for"] = request->waits_for;
  json["expected_wait_ms"] = nullptr;
  if (request->expected_wait_ms) json["expected_wait_ms"] = *request->expected_wait_ms;
  return {200, "application/json", Dump(json)};
}

}  // namespace

StatusPage RespondTo(std::string_view path, StatusSource& source) {
  constexpr std::string_view kRequests = "/v1/requests/";
  path = path.substr(0, path.find('?'));
  // Answered without the loop: it says that the process serves its status port, nothing more.
  if (path == "/live") return {200, "application/json", Dump({{"live", true}})};
  if (path.starts_with(kRequests)) return Request(path.substr(kRequests.size()), source);
  using Page = StatusPage (*)(const StatusSnapshot&);
  Page page = nullptr;
  if (path == "/ready") page = Ready;
  if (path == "/health/progress") page = Progress;
  if (path == "/v1/capacity") page = Capacity;
  bool metrics = path == "/metrics";
  if (page == nullptr && !metrics) {
    return ErrorPage(404,
                     "not found, there are: /live, /ready, /health/progress, /metrics, "
                     "/v1/capacity, /v1/requests/ID");
  }
  absl::StatusOr<std::shared_ptr<const StatusSnapshot>> snapshot = source.Snapshot();
  if (!snapshot.ok()) return StatusError(snapshot.status());
  if (metrics) return {200, "text/plain; version=0.0.4; charset=utf-8", MetricsPage(**snapshot)};
  return page(**snapshot);
}

}  // namespace kvern
