#include "tests/sim/client.h"

#include <algorithm>
#include <utility>

namespace kvern::sim {

SimClient::SimClient(World* world, PeerId id, uint64_t seed) : world_(world), id_(id), rng_(seed) {}

void SimClient::Start() { Send(Hello{id_, "", "sim"}); }

void SimClient::Ask() {
  if (!alive_ || paused_) return;
  GenerateRequest request = Draw();
  world_->checker().Issued(id_, request);
  RequestId id = request.request_id;
  open_.push_back(id);
  Send(std::move(request));
  if (rng_.Chance(world_->options().cancel_percent, 100)) {
    world_->After(rng_.Between(0, 400) * kMillisecond, [this, id] {
      if (alive_ && !paused_ && Open(id)) Send(CancelRequest{id});
    });
  }
  if (!keeping_alive_) {
    keeping_alive_ = true;
    KeepAliveLoop();
  }
}

GenerateRequest SimClient::Draw() {
  GenerateRequest request;
  request.request_id = {id_, (id_ << 32) + ++asked_};
  DrawLengths(request);
  if (rng_.Chance(1, 4)) request.n = static_cast<uint32_t>(rng_.Between(2, 4));
  if (rng_.Chance(3, 4)) request.seed = rng_.Next();
  if (rng_.Chance(1, 4)) {
    for (int i = 0; i < 2; ++i) {
      std::string stop;
      for (int64_t k = rng_.Between(1, 3); k > 0; --k) {
        stop += static_cast<char>('a' + rng_.Below(26));
      }
      request.stop.push_back(stop);
    }
  }
  SamplingParams& sampling = request.sampling;
  sampling.ignore_eos = rng_.Chance(1, 2);
  if (rng_.Chance(1, 4)) {
    sampling.stop_token_ids = {static_cast<uint32_t>(rng_.Below(kVocab))};
  }
  if (rng_.Chance(1, 6)) sampling.logprobs = static_cast<uint32_t>(rng_.Below(4));
  if (rng_.Chance(1, 3)) {
    request.ttft_deadline_ms = static_cast<uint32_t>(rng_.Between(1, 2000));
  }
  if (rng_.Chance(1, 8)) request.deadline_ms = static_cast<uint32_t>(rng_.Between(1, 2000));
  return request;
}

void SimClient::DrawLengths(GenerateRequest& request) {
  auto prompt = static_cast<size_t>(rng_.Between(1, world_->options().max_prompt));
  if (rng_.Chance(1, 2)) {
    request.prompt_token_ids.emplace(prompt, static_cast<uint32_t>(rng_.Below(kVocab)));
  } else {
    std::string text(prompt, static_cast<char>('a' + rng_.Below(26)));
    if (rng_.Chance(1, 2)) {
      request.prompt = text;
    } else {
      request.messages = {{"user", text}};
    }
  }
  if (rng_.Chance(1, 20)) {  // more than the model, and perhaps more than a group, can hold
    request.max_tokens = static_cast<uint32_t>(rng_.Between(80, 200));
  } else if (rng_.Chance(9, 10)) {
    request.max_tokens = static_cast<uint32_t>(rng_.Between(1, world_->options().max_output));
  }
}

void SimClient::Die() {
  alive_ = false;
  world_->checker().ClientLost(id_);
}

void SimClient::Pause(Duration length) {
  if (!alive_ || paused_) return;
  paused_ = true;
  world_->After(length, [this] {
    paused_ = false;
    for (const RouterToClient& message : std::exchange(unread_, {})) Read(message);
    if (alive_ && !open_.empty()) Send(KeepAlive{});
  });
}

void SimClient::Receive(const RouterToClient& message) {
  if (!alive_) return;
  if (paused_) {
    unread_.push_back(message);
  } else {
    Read(message);
  }
}

void SimClient::Read(const RouterToClient& message) {
  if (!alive_) return;
  world_->checker().Read(id_, message);
  std::erase_if(open_, [&](const RequestId& id) {
    const Seen* seen = world_->checker().Find(id);
    return seen == nullptr || seen->over;
  });
  // Forgotten by the router while idle: introduce ourselves again.
  const auto* error = std::get_if<RequestError>(&message);
  if (error != nullptr && error->message == "the first message must be Hello") Start();
}

void SimClient::KeepAliveLoop() {
  if (!alive_ || open_.empty()) {
    keeping_alive_ = false;
    return;
  }
  if (!paused_) Send(KeepAlive{});
  world_->After(kSecond, [this] { KeepAliveLoop(); });
}

void SimClient::Send(ClientMessage message) {
  RouterEvent event = ClientSaid{};
  std::get<ClientSaid>(event).client = id_;
  std::get<ClientSaid>(event).message = std::move(message);
  world_->ToRouter(link_, std::move(event), [this] { return alive_; });
}

bool SimClient::Open(const RequestId& id) const {
  return std::find(open_.begin(), open_.end(), id) != open_.end();
}

}  // namespace kvern::sim
