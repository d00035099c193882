#include "router/core/clients.h"

#include "cluster/base/check.h"

namespace kvern::router {

Client* ClientTable::Find(PeerId id) {
  std::unique_ptr<Client>* client = clients_.Find(id);
  return client == nullptr ? nullptr : client->get();
}

const Client* ClientTable::Find(PeerId id) const {
  const std::unique_ptr<Client>* client = clients_.Find(id);
  return client == nullptr ? nullptr : client->get();
}

Client* ClientTable::LongestQuiet() {
  for (const auto& [quiet_since, id] : idle_) {
    Client* client = Find(id);
    if (client->pending.empty()) return client;
  }
  return nullptr;
}

Client& ClientTable::Add(PeerId id, Time now) {
  KVERN_CHECK(!full());
  auto client = std::make_unique<Client>();
  client->id = id;
  client->quiet_since = now;
  idle_.insert({now, id});
  return *clients_.Insert(id, std::move(client));
}

void ClientTable::Heard(Client& client, Time now) {
  if (!client.open.empty()) return;
  idle_.erase({client.quiet_since, client.id});
  client.quiet_since = now;
  idle_.insert({now, client.id});
}

void ClientTable::Remove(Client& client) {
  KVERN_CHECK(client.open.empty());
  idle_.erase({client.quiet_since, client.id});
  clients_.Erase(client.id);
}

void ClientTable::Open(Client& client, Request& request) {
  if (client.open.empty()) idle_.erase({client.quiet_since, client.id});
  request.client_index = client.open.size();
  client.open.push_back(&request);
}

void ClientTable::Close(Client& client, Request& request, Time now) {
  KVERN_CHECK(client.open.at(request.client_index) == &request);
  client.open[request.client_index] = client.open.back();
  client.open[request.client_index]->client_index = request.client_index;
  client.open.pop_back();
  if (client.open.empty()) {
    KVERN_CHECK_EQ(client.kept_bytes, 0u);
    client.quiet_since = now;
    idle_.insert({now, client.id});
  }
}

void ClientTable::Append(Client& client, Delta&& delta, uint64_t bytes) {
  if (client.pending.empty()) {
    dirty_.push_back(client.id);
    client.pending.reserve(client.last_pending);
  }
  client.pending_bytes += bytes;
  client.pending.push_back(std::move(delta));
}

}  // namespace kvern::router
