#include "cluster/launch/router_process.h"

#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

namespace kvern {
namespace {

// Short lines are agreed on; one of more than this is not a router's.
constexpr size_t kMaxLineBytes = 64 * 1024;
// Of one call: others are to be watched, too.
constexpr int kMaxReads = 16;

}  // namespace

absl::StatusOr<RouterProcess> RouterProcess::Start(const LaunchConfig& config) {
  KVERN_ASSIGN_OR_RETURN(Pipe ready, Pipe::Create());
  KVERN_ASSIGN_OR_RETURN(ChildProcess process,
                         ChildProcess::Spawn(RouterArguments(config), &ready.write));
  return RouterProcess(std::move(process), std::move(ready.read));
}

absl::Status RouterProcess::ReadReady() {
  char buffer[4096];
  for (int reads = 0; ready_.valid() && reads < kMaxReads; ++reads) {
    ssize_t got = read(ready_.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      ready_.Reset();
      break;
    }
    partial_.append(buffer, static_cast<size_t>(got));
    size_t newline;
    while ((newline = partial_.find('\n')) != std::string::npos) {
      KVERN_RETURN_IF_ERROR(ReadyLine(partial_.substr(0, newline)));
      partial_.erase(0, newline + 1);
    }
    if (partial_.size() > kMaxLineBytes) return Internal("ready line longer than agreed");
  }
  return absl::OkStatus();
}

absl::Status RouterProcess::ReadyLine(const std::string& line) {
  nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return Internal("ready line is not a JSON object: ", line);
  auto text = [&](const char* key) {
    auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (json.contains("ready")) {
    all_live_ = true;
    return absl::OkStatus();
  }
  if (json.contains("joining") || json.contains("given_up")) {
    auto incarnation = json.find("incarnation");
    if (incarnation == json.end() || !incarnation->is_number_unsigned()) {
      return Internal("ready line lacks incarnation: ", line);
    }
    auto number = incarnation->get<uint64_t>();
    if (json.contains("joining")) {
      joining_.push_back({text("joining"), number});
    } else {
      given_up_.push_back({text("given_up"), number, text("reason")});
    }
    return absl::OkStatus();
  }
  RouterAddresses addresses{text("endpoint"), text("worker_endpoint"), text("status")};
  if (addresses.endpoint.empty() || addresses.worker_endpoint.empty()) {
    return Internal("ready line lacks endpoint or worker_endpoint: ", line);
  }
  addresses_ = std::move(addresses);
  return absl::OkStatus();
}

}  // namespace kvern
