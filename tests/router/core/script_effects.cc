// From effects to lines of text.
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/router/core/script.h"

namespace kvern {
namespace {

std::string IdText(const RequestId& id) {
  return id.high == 0 ? absl::StrCat(id.low) : id.ToString();
}

std::string TokensText(std::span<const uint32_t> tokens) {
  if (tokens.size() > 16) return absl::StrCat("(", tokens.size(), " tokens)");
  return absl::StrJoin(tokens, ",");
}

std::string ReasonText(const StopReason& reason) {
  if (const auto* id = std::get_if<uint32_t>(&reason)) return absl::StrCat("(", *id, ")");
  if (const auto* text = std::get_if<std::string>(&reason))
    return absl::StrCat("(\"", *text, "\")");
  return "";
}

std::string DeltaText(const Delta& delta) {
  std::string out =
      absl::StrCat("  id=", IdText(delta.request_id), " choice=", delta.choice,
                   " position=", delta.position, " tokens=", TokensText(delta.token_ids));
  if (delta.text) absl::StrAppend(&out, " text=\"", *delta.text, "\"");
  if (!delta.logprobs.empty()) {
    absl::StrAppend(&out, " logprobs=", delta.logprobs.size(), "x",
                    delta.logprobs.front().top.size());
  }
  if (delta.finish_reason == FinishReason::kStop) {
    absl::StrAppend(&out, " finish=stop", ReasonText(delta.stop_reason));
  }
  if (delta.finish_reason == FinishReason::kLength) absl::StrAppend(&out, " finish=length");
  if (delta.usage) {
    absl::StrAppend(&out, "\n    usage prompt=", delta.usage->prompt_tokens,
                    " completion=", delta.usage->completion_tokens,
                    " queue_ms=", delta.usage->queue_ms, " ttft_ms=", delta.usage->ttft_ms,
                    " tpot_ms=", delta.usage->tpot_ms, " itl_ms_max=", delta.usage->itl_ms_max);
  }
  return out + "\n";
}

std::string ErrorText(const RequestError& error, bool credits) {
  std::string out = absl::StrCat("error id=", IdText(error.request_id), " ",
                                 ToAbsl(ErrorCodeName(error.code)), ": ", error.message);
  auto add = [&](const char* name, const std::optional<uint64_t>& value) {
    if (value) absl::StrAppend(&out, " ", name, "=", *value);
  };
  add("retry_after_ms", error.details.retry_after_ms);
  add("needed_blocks", error.details.needed_blocks);
  add("available_blocks", error.details.available_blocks);
  add("needed_total_tokens", error.details.needed_total_tokens);
  add("largest_total_tokens", error.details.largest_total_tokens);
  if (credits) add("credit", error.details.credit);
  if (error.details.still_open) out += " still_open";
  return out + "\n";
}

struct ClientText {
  bool credits = false;

  std::string Credit(const std::optional<uint32_t>& credit) const {
    return credits && credit ? absl::StrCat(" credit=", *credit) : "";
  }
  std::string operator()(const Welcome& m) const {
    return absl::StrCat("welcome model=", m.model, " tokenizer=", m.has_tokenizer ? 1 : 0,
                        " max_seq_len=", m.max_seq_len, " keep_alive_ms=", m.keep_alive_ms,
                        m.stream_window > 0 ? absl::StrCat(" window=", m.stream_window) : "", "\n");
  }
  std::string operator()(const Accepted& m) const {
    return absl::StrCat("accepted id=", IdText(m.request_id), " seed=", m.seed,
                        " prompt_tokens=", m.prompt_tokens, Credit(m.credit), "\n");
  }
  std::string operator()(const Deltas& m) const {
    std::string out = "deltas\n";
    for (const Delta& delta : m.deltas) out += DeltaText(delta);
    return out;
  }
  std::string operator()(const RequestError& m) const { return ErrorText(m, credits); }
  std::string operator()(const KeepAliveReply& m) const {
    return absl::StrCat("keepalive reply", Credit(m.credit), "\n");
  }
  std::string operator()(const CapacityReply& m) const {
    std::string out = absl::StrCat("capacity block_size=", m.block_size, "\n");
    for (const GroupCapacity& group : m.groups) {
      absl::StrAppend(&out, "  group=", group.id, " total=", group.total_blocks,
                      " reserved=", group.reserved_blocks, " used=", group.used_blocks,
                      " ranks=", group.ranks.size(), "\n");
    }
    return out;
  }
};

struct WorkerText {
  std::string operator()(const GroupStart& m) const {
    return absl::StrCat("start incarnation=", m.group_incarnation, " kv_blocks=", m.kv_blocks,
                        " rendezvous=", m.rendezvous, " lease_ms=", m.lease_ms,
                        m.comm_id.empty() ? "" : " comm_id=",
                        std::string(m.comm_id.begin(), m.comm_id.end()), "\n");
  }
  std::string operator()(const JoinRefused& m) const {
    return absl::StrCat("refused: ", m.reason, "\n");
  }
  std::string operator()(const Commands& m) const {
    std::string out = absl::StrCat("commands ", m.sequence, "\n");
    for (const CancelDispatch& cancel : m.cancels) {
      absl::StrAppend(&out, "  cancel id=", IdText(cancel.request_id), " epoch=", cancel.epoch,
                      cancel.all_choices ? std::string(" all choices")
                                         : absl::StrCat(" choice=", cancel.choice),
                      "\n");
    }
    for (const Dispatch& dispatch : m.dispatches) {
      absl::StrAppend(&out, "  dispatch id=", IdText(dispatch.request_id),
                      " epoch=", dispatch.epoch, " prompt=", TokensText(dispatch.prompt),
                      " n=", dispatch.n, " max_tokens=", dispatch.sampling.max_tokens,
                      " seed=", dispatch.sampling.seed, "\n");
    }
    return out + (m.drain ? "  drain\n" : "");
  }
};

std::string TokenizeText(const Tokenize& tokenize) {
  std::string input;
  if (const auto* text = std::get_if<std::string>(&tokenize.input)) {
    input = absl::StrCat("prompt \"", *text, "\"");
  } else {
    input = absl::StrCat(std::get<std::vector<ChatMessage>>(tokenize.input).size(), " messages");
  }
  return absl::StrCat("tokenize id=", IdText(tokenize.request_id), " ", input, "\n");
}

}  // namespace

std::string EffectsText(const RouterEffects& effects, bool credits) {
  std::string out;
  for (const ToClient& to : effects.to_clients) {
    absl::StrAppend(&out, "client ", to.client, " <- ",
                    std::visit(ClientText{credits}, to.message));
  }
  for (const ToWorker& to : effects.to_workers) {
    absl::StrAppend(&out, "worker ", to.worker, " <- ", std::visit(WorkerText{}, to.message));
  }
  for (const Tokenize& tokenize : effects.tokenize) out += TokenizeText(tokenize);
  for (const RequestId& id : effects.withdrawn) {
    absl::StrAppend(&out, "withdraw the text of id=", IdText(id), "\n");
  }
  for (const GroupGivenUp& start : effects.given_up) {
    absl::StrAppend(&out, "given up group=", start.group, " incarnation=", start.incarnation, "\n");
  }
  for (const Note& note : effects.notes) {
    absl::StrAppend(&out, note.warning ? "warning " : "note ", note.event);
    for (const auto& [key, value] : note.fields) absl::StrAppend(&out, " ", key, "=", value);
    out += "\n";
  }
  return out;
}

std::string ErrorsText(const std::vector<uint64_t>& errors) {
  std::string out = "errors";
  for (size_t code = 0; code < errors.size(); ++code) {
    if (errors[code] == 0) continue;
    absl::StrAppend(&out, " ", ToAbsl(ErrorCodeName(static_cast<ErrorCode>(code))), "=",
                    errors[code]);
  }
  return out + "\n";
}

std::string TenantsText(const RouterStatus& status) {
  std::string out = "tenants\n";
  for (const TenantStatus& tenant : status.tenants) {
    absl::StrAppend(&out, "  tenant=", tenant.name, " accepted=", tenant.accepted,
                    " completed=", tenant.completed, " service=", tenant.service,
                    " waiting=", tenant.waiting, " running_blocks=", tenant.running_blocks, " ",
                    ErrorsText(tenant.errors));
  }
  return out;
}

std::string StatusText(const RouterStatus& status) {
  std::string out = absl::StrCat(
      "status queue=", status.queue_entries, " bytes=", status.queue_bytes,
      " clients=", status.clients, " accepted=", status.counters.accepted,
      " completed=", status.counters.completed, " cancelled=", status.counters.cancelled,
      " stale=", status.counters.stale_runs, "\n");
  if (status.counters.stale_group_messages > 0) {
    absl::StrAppend(&out, "  stale_group_messages=", status.counters.stale_group_messages, "\n");
  }
  if (status.paused_streams > 0 || status.counters.slow_readers > 0) {
    absl::StrAppend(&out, "  paused=", status.paused_streams, " kept_bytes=", status.kept_bytes,
                    " slow_readers=", status.counters.slow_readers, "\n");
  }
  for (const GroupStatus& group : status.groups) {
    absl::StrAppend(&out, "  group=", group.name, group.live ? " live" : " not live",
                    group.draining ? " draining" : "", " total=", group.total_blocks,
                    " reserved=", group.reserved_blocks, " used=", group.used_blocks,
                    " drift=", group.drift_blocks, " running=", group.running);
    for (const RankAge& age : group.ages) {
      absl::StrAppend(&out, " age=", age.rank, "/", age.step_age_ms);
    }
    out += "\n";
  }
  for (double seconds : status.counters.cancel_to_free_seconds) {
    absl::StrAppend(&out, "  cancel_to_free_seconds=", seconds, "\n");
  }
  return out;
}

}  // namespace kvern
