// What clients say, and what happens when they fall silent.
#include "absl/strings/str_cat.h"
#include "router/core/router_impl.h"

namespace kvern::router {
namespace {

// A live client with open requests speaks three times within its lease.
constexpr int kKeepAlivesPerLease = 3;

}  // namespace

void RouterImpl::OnHello(PeerId peer, const Hello& hello) {
  Client* client = clients_.Find(peer);
  bool known = client != nullptr && client->incarnation == hello.client_incarnation;
  if (client != nullptr && !known) {
    CancelAll(*client, "the client restarted", /*tell=*/false);
  }
  if (client == nullptr) client = AddClient(peer);
  if (client == nullptr) {
    Refusal refusal =
        Overloaded(absl::StrCat(clients_.size(), " clients are connected, the most that may be"));
    ++counters_.errors[static_cast<size_t>(refusal.code)];
    out_->to_clients.push_back(
        {peer, RequestError{{}, refusal.code, std::move(refusal.message), refusal.details}});
    return;
  }
  client->incarnation = hello.client_incarnation;
  // Not taken back by a repeated Hello: paused streams would have no way to go on.
  if (!known) client->gives_credit = hello.gives_credit;
  if (client->tenant == nullptr) client->tenant = &tenants_.Of(hello.tenant);
  client->last_heard = Listened();
  clients_.Heard(*client, now_);
  Welcome welcome;
  welcome.router_incarnation = config_.router_incarnation;
  welcome.model = config_.model;
  welcome.has_tokenizer = config_.has_tokenizer;
  welcome.max_seq_len = config_.max_seq_len;
  welcome.keep_alive_ms =
      static_cast<uint32_t>(config_.client_lease / kKeepAlivesPerLease / kMillisecond);
  if (client->gives_credit) welcome.stream_window = config_.stream_window;
  SendToClient(peer, std::move(welcome));
}

Client* RouterImpl::AddClient(PeerId peer) {
  if (clients_.full()) {
    Client* quiet = clients_.LongestQuiet();
    if (quiet == nullptr) return nullptr;
    ForgetClient(*quiet);
  }
  return &clients_.Add(peer, now_);
}

void RouterImpl::ForgetClient(Client& client) {
  timers_.Remove({client.lease_at, TimerKind::kClient, 0, client.id});
  clients_.Remove(client);
}

void RouterImpl::OnCancel(Client& client, const CancelRequest& message) {
  std::unique_ptr<Request>* found = requests_.Find(message.request_id);
  // Unknown: it just ended. Another client's: not this one's to cancel, nor to know of.
  if (found == nullptr || (*found)->answered || (*found)->client != client.id) return;
  Fail(**found, {ErrorCode::kCancelled, "cancelled by the client", {}});
}

void RouterImpl::ArmClientLease(Client& client, Duration left) {
  if (client.lease_at != kTimeMax) return;
  client.lease_at = now_ + left;
  timers_.Add({client.lease_at, TimerKind::kClient, 0, client.id});
}

void RouterImpl::OnClientTimer(const Timer& timer) {
  Client* client = clients_.Find(timer.low);
  if (client == nullptr) return;
  client->lease_at = kTimeMax;
  if (client->open.empty()) return;
  Duration silent = Silence(client->last_heard, heard_.clients, config_.client_lease);
  if (silent < config_.client_lease) return ArmClientLease(*client, config_.client_lease - silent);
  // It may only have been paused, so it keeps its entry and is told.
  CancelAll(*client, absl::StrCat("the client was silent for ", silent / kMillisecond, " ms"),
            /*tell=*/true);
}

void RouterImpl::CancelAll(Client& client, const std::string& why, bool tell) {
  if (client.open.empty()) return;
  AddNote(true, "client_lost",
          {{"client", absl::StrCat(client.id)},
           {"reason", why},
           {"open_requests", absl::StrCat(client.open.size())}});
  while (!client.open.empty()) {
    Request& request = *client.open.back();
    if (tell) {
      Fail(request, {ErrorCode::kCancelled, why, {}});
    } else {
      ++counters_.cancelled;
      CloseForClient(request);
      Abandon(request);
    }
  }
}

void RouterImpl::SendToClient(PeerId peer, RouterToClient message) {
  // What was delivered before must also be read before.
  if (Client* client = clients_.Find(peer)) FlushDeltas(*client);
  out_->to_clients.push_back({peer, std::move(message)});
}

void RouterImpl::FlushDeltas(Client& client) {
  if (client.pending.empty()) return;
  client.last_pending = client.pending.size();
  out_->to_clients.push_back({client.id, Deltas{std::move(client.pending)}});
  client.pending.clear();
  client.pending_bytes = 0;
}

}  // namespace kvern::router
