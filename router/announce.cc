#include "router/announce.h"

#include <poll.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cluster/base/log.h"

namespace kvern {
namespace {

std::string AsLine(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

absl::Status Announcer::Bound(const RouterAddresses& addresses) {
  addresses_ = addresses;
  KVERN_RETURN_IF_ERROR(ready_file_.Clear());
  if (ready_fd_ < 0) return absl::OkStatus();
  return WriteAll(ready_fd_,
                  AsLine({{"endpoint", addresses.endpoint},
                          {"worker_endpoint", addresses.worker_endpoint},
                          {"status", addresses.status},
                          {"pid", getpid()}}),
                  "--ready-fd");
}

absl::Status Announcer::Ready() {
  if (ready_fd_ >= 0) {
    KVERN_RETURN_IF_ERROR(WriteAll(ready_fd_, AsLine({{"ready", true}}), "--ready-fd"));
  }
  KVERN_RETURN_IF_ERROR(ready_file_.Write(addresses_.endpoint, addresses_.status));
  return WriteAll(STDOUT_FILENO, absl::StrCat("ready ", addresses_.endpoint, "\n"), "stdout");
}

void Announcer::Joining(const std::string& group, uint64_t incarnation) {
  Say(AsLine({{"joining", group}, {"incarnation", incarnation}}));
}

void Announcer::GivenUp(const std::string& group, uint64_t incarnation, const std::string& reason) {
  // Together with a group's name, each byte as \u00XX, less than a pipe with room takes at once.
  constexpr size_t kMostReasonBytes = 256;
  Say(AsLine({{"given_up", group},
              {"incarnation", incarnation},
              {"reason", reason.substr(0, kMostReasonBytes)}}));
}

void Announcer::Say(const std::string& line) {
  pollfd entry = {ready_fd_, POLLOUT, 0};
  if (ready_fd_ < 0 || poll(&entry, 1, 0) <= 0 || (entry.revents & POLLOUT) == 0) return;
  absl::Status said = WriteAll(ready_fd_, line, "--ready-fd");
  if (!said.ok()) Log(LogLevel::kWarning, "group_not_announced", {{"error", said.message()}});
}

}  // namespace kvern
