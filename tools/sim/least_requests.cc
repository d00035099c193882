#include "tools/sim/least_requests.h"

#include <algorithm>
#include <utility>

#include "cluster/base/check.h"
#include "cluster/capacity/kv_budget.h"

namespace kvern::sim {

void LeastRequests::Step(Time /*now*/, RouterEvent&& event, RouterEffects& effects) {
  if (auto* said = std::get_if<ClientSaid>(&event)) {
    OnClient(said->client, said->message, effects);
  } else if (auto* worker = std::get_if<WorkerSaid>(&event)) {
    if (const auto* join = std::get_if<Join>(&worker->message)) {
      OnJoin(worker->worker, *join, effects);
    } else if (auto* report = std::get_if<StepReport>(&worker->message)) {
      OnReport(worker->worker, *report, effects);
    } else if (std::holds_alternative<Leave>(worker->message)) {
      GroupOf(worker->worker)->left = true;
    }
  } else if (std::holds_alternative<BeginDrain>(event)) {
    draining_ = true;
    for (Group& group : groups_) group.pending.drain = true;
  }
}

void LeastRequests::Flush(Time /*now*/, RouterEffects& effects) {
  for (Group& group : groups_) {
    Commands& pending = group.pending;
    if (!group.live || group.left) continue;
    if (pending.dispatches.empty() && pending.cancels.empty() && !pending.drain) continue;
    pending.group_incarnation = group.incarnation;
    pending.sequence = ++group.sequence;
    effects.to_workers.push_back({group.peers[0], std::exchange(pending, Commands())});
  }
}

void LeastRequests::OnClient(PeerId client, ClientMessage& message, RouterEffects& effects) {
  if (std::holds_alternative<Hello>(message)) {
    Welcome welcome;
    welcome.router_incarnation = config_.router_incarnation;
    welcome.model = config_.model;
    welcome.max_seq_len = config_.max_seq_len;
    effects.to_clients.push_back({client, std::move(welcome)});
  } else if (auto* request = std::get_if<GenerateRequest>(&message)) {
    OnGenerate(client, *request, effects);
  } else if (const auto* cancel = std::get_if<CancelRequest>(&message)) {
    OnCancel(client, cancel->request_id, effects);
  } else if (std::holds_alternative<KeepAlive>(message)) {
    effects.to_clients.push_back({client, KeepAliveReply{}});
  }
}

void LeastRequests::OnGenerate(PeerId client, GenerateRequest& message, RouterEffects& effects) {
  bool live = std::any_of(groups_.begin(), groups_.end(), [](const Group& g) { return g.live; });
  if (!live) {
    early_.emplace_back(client, std::move(message));
  } else if (!RefuseTooLarge(client, message, effects)) {
    Dispatch(client, message, effects);
  }
}

bool LeastRequests::RefuseTooLarge(PeerId client, const GenerateRequest& message,
                                   RouterEffects& effects) {
  uint64_t prompt = message.prompt_token_ids->size();
  uint64_t need = BlocksNeeded(prompt, *message.max_tokens, message.n, kBlockSize);
  uint64_t largest = 0;
  for (const Group& group : groups_) largest = std::max(largest, group.blocks);
  if (need <= largest && prompt + *message.max_tokens <= config_.max_seq_len) return false;
  RequestError error{message.request_id, ErrorCode::kNeverFits, "larger than any group", {}};
  error.details.needed_blocks = need;
  error.details.available_blocks = largest;
  effects.to_clients.push_back({client, std::move(error)});
  return true;
}

void LeastRequests::Dispatch(PeerId client, GenerateRequest& message, RouterEffects& effects) {
  size_t least = groups_.size();
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (!groups_[i].live) continue;
    if (least == groups_.size() || groups_[i].requests < groups_[least].requests) least = i;
  }
  kvern::Dispatch dispatch;
  dispatch.request_id = message.request_id;
  dispatch.epoch = 1;
  dispatch.prompt = *std::move(message.prompt_token_ids);
  dispatch.n = message.n;
  static_cast<SamplingParams&>(dispatch.sampling) = std::move(message.sampling);
  dispatch.sampling.seed = *message.seed;
  dispatch.sampling.max_tokens = *message.max_tokens;
  dispatch.eos_ids = config_.eos_ids;
  dispatch.service_class = ServiceClass::kStandard;
  auto prompt_tokens = static_cast<uint32_t>(dispatch.prompt.size());
  open_.Insert(message.request_id, {client, least, prompt_tokens, message.n, 0});
  ++groups_[least].requests;
  effects.to_clients.push_back(
      {client, Accepted{message.request_id, dispatch.sampling.seed, prompt_tokens, {}}});
  groups_[least].pending.dispatches.push_back(std::move(dispatch));
}

void LeastRequests::OnCancel(PeerId client, const RequestId& id, RouterEffects& effects) {
  Open* open = open_.Find(id);
  if (open == nullptr || open->client != client) return;
  Group& group = groups_[open->group];
  group.pending.cancels.push_back({id, 1, /*all_choices=*/true, 0});
  --group.requests;
  open_.Erase(id);
  effects.to_clients.push_back({client, RequestError{id, ErrorCode::kCancelled, "cancelled", {}}});
}

void LeastRequests::OnJoin(PeerId peer, const Join& join, RouterEffects& effects) {
  auto found = std::find_if(groups_.begin(), groups_.end(),
                            [&](const Group& group) { return group.name == join.group; });
  if (found == groups_.end()) {
    Group group;
    group.name = join.group;
    group.incarnation = join.group_incarnation;
    group.peers.resize(join.world);
    group.blocks = join.kv_blocks;
    found = groups_.insert(groups_.end(), std::move(group));
  }
  found->peers[join.rank] = peer;
  found->blocks = std::min(found->blocks, join.kv_blocks);
  if (join.rank == 0) found->comm_id = join.comm_id;
  if (++found->joined < join.world) return;
  GroupStart start;
  start.router_incarnation = config_.router_incarnation;
  start.group_incarnation = found->incarnation;
  start.kv_blocks = found->blocks;
  start.comm_id = found->comm_id;
  for (PeerId rank : found->peers) effects.to_workers.push_back({rank, start});
}

LeastRequests::Group* LeastRequests::GroupOf(PeerId peer) {
  for (Group& group : groups_) {
    if (group.peers[0] == peer) return &group;
  }
  KVERN_CHECK(false) << "nobody's peer " << peer;
  return nullptr;
}

void LeastRequests::OnReport(PeerId peer, StepReport& report, RouterEffects& effects) {
  Group& group = *GroupOf(peer);
  group.live = true;
  for (auto& [client, message] : std::exchange(early_, {})) OnGenerate(client, message, effects);
  for (TokenRun& run : report.runs) OnRun(run, effects);
  report.runs.clear();
  group.report = std::move(report);
}

void LeastRequests::OnRun(TokenRun& run, RouterEffects& effects) {
  Open* open = open_.Find(run.request_id);
  if (open == nullptr) return;  // cancelled
  open->tokens += static_cast<uint32_t>(run.token_ids.size());
  Delta delta;
  delta.request_id = run.request_id;
  delta.choice = run.choice;
  delta.position = run.position;
  delta.token_ids = std::move(run.token_ids);
  delta.finish_reason = run.finish_reason;
  delta.stop_reason = std::move(run.stop_reason);
  PeerId client = open->client;
  if (delta.finish_reason != FinishReason::kNone && --open->choices_left == 0) {
    delta.usage.emplace();
    delta.usage->prompt_tokens = open->prompt_tokens;
    delta.usage->completion_tokens = open->tokens;
    --groups_[open->group].requests;
    open_.Erase(delta.request_id);
  }
  effects.to_clients.push_back({client, Deltas{{std::move(delta)}}});
}

bool LeastRequests::Drained() const {
  return draining_ &&
         std::all_of(groups_.begin(), groups_.end(), [](const Group& group) { return group.left; });
}

RouterStatus LeastRequests::Status(Time /*now*/) {
  RouterStatus status;
  for (const Group& group : groups_) {
    GroupStatus& shown = status.groups.emplace_back();
    shown.name = group.name;
    shown.live = group.live && !group.left;
    shown.total_blocks = group.blocks;
    // It keeps no ledger: what the group says of itself is all that is known.
    shown.reserved_blocks = group.report.used_blocks;
    shown.worst_case_blocks = UINT64_MAX;
    shown.used_blocks = group.report.used_blocks;
  }
  return status;
}

absl::StatusOr<RequestStatus> LeastRequests::Find(const RequestId& id) {
  if (open_.Find(id) == nullptr) return absl::NotFoundError("not open");
  RequestStatus status;
  status.state = "running";
  return status;
}

void LeastRequests::Audit() const {
  uint64_t requests = 0;
  for (const Group& group : groups_) requests += group.requests;
  KVERN_CHECK_EQ(requests, open_.size());
}

}  // namespace kvern::sim
