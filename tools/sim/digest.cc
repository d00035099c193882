#include "tools/sim/digest.h"

#include <algorithm>
#include <cstring>

namespace kvern::sim {

void Digest::Add(std::string_view text) {
  Add(text.size());
  for (size_t i = 0; i < text.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min(sizeof(word), text.size() - i));
    Add(word);
  }
}

void Digest::Add(const RequestId& id) {
  Add(id.high);
  Add(id.low);
}

void Digest::Add(const Delta& delta) {
  Add(delta.request_id);
  Add(uint64_t{delta.choice} << 32 | delta.position);
  for (uint32_t token : delta.token_ids) Add(token);
  if (delta.text) Add(std::string_view(*delta.text));
  Add(static_cast<uint64_t>(delta.finish_reason));
  if (delta.usage) Add(delta.usage->completion_tokens);
}

void Digest::Add(const Dispatch& dispatch) {
  Add(dispatch.request_id);
  Add(uint64_t{dispatch.epoch} << 32 | dispatch.n);
  Add(dispatch.prompt.size());
  Add(dispatch.sampling.seed);
  Add(dispatch.sampling.max_tokens);
  Add(static_cast<uint64_t>(dispatch.service_class));
}

void Digest::Add(const RouterToClient& message) {
  Add(message.index());
  if (const auto* deltas = std::get_if<Deltas>(&message)) {
    for (const Delta& delta : deltas->deltas) Add(delta);
  } else if (const auto* accepted = std::get_if<Accepted>(&message)) {
    Add(accepted->request_id);
    Add(accepted->seed);
  } else if (const auto* error = std::get_if<RequestError>(&message)) {
    Add(error->request_id);
    Add(static_cast<uint64_t>(error->code));
    Add(std::string_view(error->message));
    Add(error->details.retry_after_ms.value_or(0));
  }
}

void Digest::Add(const RouterToWorker& message) {
  Add(message.index());
  if (const auto* commands = std::get_if<Commands>(&message)) {
    Add(commands->sequence);
    for (const Dispatch& dispatch : commands->dispatches) Add(dispatch);
    for (const CancelDispatch& cancel : commands->cancels) {
      Add(cancel.request_id);
      Add(cancel.all_choices ? kMaxChoices : cancel.choice);
    }
    Add(commands->drain ? 1 : 0);
  } else if (const auto* start = std::get_if<GroupStart>(&message)) {
    Add(start->group_incarnation);
    Add(start->kv_blocks);
    for (uint8_t byte : start->comm_id) Add(byte);
  }
}

void Digest::Add(const RouterEffects& effects) {
  for (const ToClient& to : effects.to_clients) {
    Add(to.client);
    Add(to.message);
  }
  for (const ToWorker& to : effects.to_workers) {
    Add(to.worker);
    Add(to.message);
  }
  for (const Tokenize& tokenize : effects.tokenize) Add(tokenize.request_id);
  for (const RequestId& id : effects.withdrawn) Add(id);
  for (const Note& note : effects.notes) Add(std::string_view(note.event));
}

}  // namespace kvern::sim
