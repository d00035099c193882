#include "cluster/launch/router_link.h"

#include <utility>

#include "schemas/codec.h"

namespace kvern {
namespace {

// The router has nothing to say to the launcher.
constexpr int64_t kMaxMessageBytes = 64 << 10;
// A group that died just before the launcher ends is worth a moment.
constexpr int kLingerMs = 200;

}  // namespace

absl::StatusOr<std::unique_ptr<RouterLink>> RouterLink::Connect(const std::string& worker_endpoint,
                                                                Incarnation incarnation) {
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<NetContext> context, NetContext::Create());
  SocketOptions options;
  options.max_message_bytes = kMaxMessageBytes;
  options.linger_ms = kLingerMs;
  KVERN_ASSIGN_OR_RETURN(DealerSocket socket,
                         DealerSocket::Connect(*context, worker_endpoint, options));
  return std::unique_ptr<RouterLink>(
      new RouterLink(std::move(context), std::move(socket), incarnation));
}

absl::Status RouterLink::SendGroupDown(const GroupDown& down) {
  std::string body = EncodeWorkerToRouter(down, incarnation_);
  KVERN_ASSIGN_OR_RETURN(SendResult sent, socket_.Send(body));
  if (sent != SendResult::kSent) return Unavailable("the router takes no messages");
  return absl::OkStatus();
}

}  // namespace kvern
