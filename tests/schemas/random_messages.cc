#include "tests/schemas/random_messages.h"

#include <array>

namespace kvern {
namespace {

uint32_t Small(Rng& rng, uint32_t max) { return static_cast<uint32_t>(rng.Below(max + 1)); }
uint32_t Any32(Rng& rng) { return static_cast<uint32_t>(rng.Next()); }
bool Coin(Rng& rng) { return rng.Chance(1, 2); }
double Measure(Rng& rng) { return UnitInterval(rng.Next()) * 1e6; }
float Real(Rng& rng, float min, float max) {
  float unit = static_cast<float>(UnitInterval(rng.Next()));
  return min + (max - min) * (Coin(rng) ? unit : Coin(rng) ? 0.0f : 1.0f);
}
RequestId Id(Rng& rng) { return {rng.Next(), rng.Next()}; }

std::string Text(Rng& rng, size_t max) {
  static constexpr std::array<std::string_view, 7> kParts = {
      "a", "Zz9", " ", std::string_view("\0", 1), "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
  std::string text;
  size_t target = rng.Below(max + 1);
  for (;;) {
    std::string_view part = kParts[rng.Below(kParts.size())];
    if (text.size() + part.size() > target) return text;
    text += part;
  }
}

template <typename T, typename Make>
std::vector<T> List(Rng& rng, size_t max, Make make) {
  std::vector<T> list;
  if (Coin(rng)) return list;
  size_t count = rng.Below(max + 1);
  for (size_t i = 0; i < count; ++i) list.push_back(make(rng));
  return list;
}
std::vector<uint32_t> Ids(Rng& rng, size_t max) { return List<uint32_t>(rng, max, Any32); }

template <typename T, typename Make>
std::optional<T> Maybe(Rng& rng, Make make) {
  return Coin(rng) ? std::optional<T>(make(rng)) : std::nullopt;
}

std::pair<uint32_t, float> TokenValue(Rng& rng) { return {Any32(rng), Real(rng, -100, 100)}; }

SamplingParams Sampling(Rng& rng) {
  SamplingParams sampling;
  if (rng.Chance(1, 4)) return sampling;
  sampling.temperature = Real(rng, 0, 100);
  sampling.top_k = Any32(rng);
  sampling.top_p = Real(rng, 0.001f, 1);
  sampling.min_p = Real(rng, 0, 1);
  sampling.repetition_penalty = Real(rng, 0.001f, 100);
  sampling.presence_penalty = Real(rng, -2, 2);
  sampling.frequency_penalty = Real(rng, -2, 2);
  sampling.logit_bias =
      List<std::pair<uint32_t, float>>(rng, Coin(rng) ? 3 : kMaxLogitBias, TokenValue);
  sampling.min_tokens = Small(rng, 10);
  sampling.ignore_eos = Coin(rng);
  sampling.stop_token_ids = Ids(rng, kMaxStopTokenIds);
  auto count = [](Rng& r) { return Small(r, kMaxLogprobs); };
  sampling.logprobs = Maybe<uint32_t>(rng, count);
  sampling.prompt_logprobs = Maybe<uint32_t>(rng, count);
  return sampling;
}

ResolvedSampling Resolved(Rng& rng) {
  ResolvedSampling sampling{Sampling(rng)};
  sampling.seed = rng.Next();
  sampling.max_tokens = Any32(rng);
  return sampling;
}

std::vector<TokenLogprob> Logprobs(Rng& rng, size_t num_tokens) {
  std::vector<TokenLogprob> logprobs;
  if (Coin(rng)) return logprobs;
  for (size_t i = 0; i < num_tokens; ++i) {
    TokenLogprob& logprob = logprobs.emplace_back();
    logprob.token_id = Any32(rng);
    logprob.logprob = Real(rng, -1e30f, 0);
    logprob.top = List<std::pair<uint32_t, float>>(rng, kMaxLogprobs, TokenValue);
  }
  return logprobs;
}

GenerateRequest Generate(Rng& rng) {
  GenerateRequest request;
  if (Coin(rng)) request.request_id = Id(rng);
  request.model = Text(rng, kMaxNameBytes);
  switch (rng.Below(3)) {
    case 0:
      request.prompt = Text(rng, 2000);
      break;
    case 1:
      request.prompt_token_ids = Ids(rng, 2000);
      break;
    default:
      request.messages = List<ChatMessage>(rng, 40, [](Rng& r) {
        return ChatMessage{Text(r, 20), Text(r, 200)};
      });
  }
  request.sampling = Sampling(rng);
  request.seed = Maybe<uint64_t>(rng, [](Rng& r) { return r.Next(); });
  request.max_tokens = Maybe<uint32_t>(rng, [](Rng& r) { return Any32(r) | 16; });
  request.n = 1 + Small(rng, kMaxChoices - 1);
  request.stop = List<std::string>(rng, kMaxStopStrings,
                                   [](Rng& r) { return "s" + Text(r, kMaxStopStringBytes - 1); });
  request.service_class = static_cast<ServiceClass>(rng.Below(3));
  request.priority = static_cast<int32_t>(Any32(rng));
  request.ttft_deadline_ms = Maybe<uint32_t>(rng, Any32);
  request.deadline_ms = Maybe<uint32_t>(rng, Any32);
  request.detach_ms = Coin(rng) ? 0 : Any32(rng);
  if (Coin(rng)) {
    for (uint32_t i = 0; i < request.n; ++i) request.resume_positions.push_back(Any32(rng));
  }
  return request;
}

StopReason Reason(Rng& rng, bool may_be_text) {
  switch (rng.Below(may_be_text ? 3 : 2)) {
    case 0:
      return std::monostate();
    case 1:
      return Any32(rng);
    default:
      return Text(rng, kMaxStopStringBytes);
  }
}

Delta OneDelta(Rng& rng) {
  Delta delta;
  delta.request_id = Id(rng);
  delta.choice = Small(rng, kMaxChoices - 1);
  delta.position = Any32(rng);
  delta.token_ids = Ids(rng, 8);
  delta.text = Maybe<std::string>(rng, [](Rng& r) { return Text(r, 40); });
  delta.logprobs = Logprobs(rng, delta.token_ids.size());
  delta.finish_reason = static_cast<FinishReason>(rng.Below(3));
  delta.stop_reason = Reason(rng, true);
  delta.usage = Maybe<Usage>(rng, [](Rng& r) {
    return Usage{Any32(r), Any32(r), Any32(r), Measure(r), Measure(r), Measure(r), Measure(r)};
  });
  return delta;
}

ErrorCode Code(Rng& rng) { return static_cast<ErrorCode>(rng.Below(kLastErrorCode + 1)); }

RequestError Error(Rng& rng) {
  RequestError error{Id(rng), Code(rng), Text(rng, 300), {}};
  auto any = [](Rng& r) { return r.Next(); };
  error.details.retry_after_ms = Maybe<uint64_t>(rng, any);
  error.details.needed_blocks = Maybe<uint64_t>(rng, any);
  error.details.available_blocks = Maybe<uint64_t>(rng, any);
  error.details.needed_total_tokens = Maybe<uint64_t>(rng, any);
  error.details.largest_total_tokens = Maybe<uint64_t>(rng, any);
  error.details.still_open = rng.Chance(1, 2);
  error.details.credit = Maybe<uint32_t>(rng, Any32);
  return error;
}

GroupCapacity Group(Rng& rng) {
  GroupCapacity group{Text(rng, 40), Text(rng, 40), rng.Next(), rng.Next(), rng.Next(), {}};
  group.ranks = List<RankCapacity>(rng, kMaxRanks, [](Rng& r) {
    return RankCapacity{Any32(r), r.Next()};
  });
  return group;
}

std::vector<uint8_t> CommId(Rng& rng) {
  return List<uint8_t>(rng, Coin(rng) ? 3 : kMaxCommIdBytes,
                       [](Rng& r) { return static_cast<uint8_t>(r.Next()); });
}

Join RandomJoin(Rng& rng) {
  constexpr uint64_t kMany = 1ull << 40;
  Join join;
  join.group = "g" + Text(rng, 30);
  join.group_incarnation = rng.Next();
  join.world = 1 + Small(rng, kMaxRanks - 1);
  join.rank = Small(rng, join.world - 1);
  join.build = Text(rng, 30);
  join.weights_fingerprint = rng.Next();
  join.model = Text(rng, 30);
  join.device = Text(rng, 30);
  join.host = Text(rng, 30);
  join.pid = Any32(rng);
  join.kv_blocks = rng.Below(kMany + 1);
  join.bytes_per_token = rng.Below(kMany);
  join.weights_bytes = rng.Below(kMany);
  join.workspace_bytes = rng.Below(kMany);
  join.max_seq_len = Any32(rng);
  join.vocab_size = Any32(rng);
  join.rendezvous = Text(rng, 300);
  join.max_batch_tokens = Any32(rng);
  join.comm_id = CommId(rng);
  join.startup = List<StartupPhase>(rng, 64, [](Rng& r) {
    return StartupPhase{Text(r, 20), Measure(r)};
  });
  return join;
}

TokenRun Run(Rng& rng) {
  TokenRun run;
  run.request_id = Id(rng);
  run.epoch = Any32(rng);
  run.choice = Small(rng, kMaxChoices - 1);
  run.position = Any32(rng);
  run.token_ids = Ids(rng, 8);
  run.logprobs = Logprobs(rng, run.token_ids.size());
  run.finish_reason = static_cast<FinishReason>(rng.Below(3));
  run.stop_reason = Reason(rng, false);
  return run;
}

StepReport Report(Rng& rng) {
  StepReport report;
  report.group_incarnation = rng.Next();
  report.step_id = rng.Next();
  report.acked_command = rng.Next();
  report.used_blocks = Any32(rng);
  report.reserved_blocks = Any32(rng);
  report.running = Any32(rng);
  report.waiting = Any32(rng);
  report.step_us = rng.Next();
  report.prefill_tokens = rng.Next();
  report.preemptions = rng.Next();
  report.recomputed_tokens = rng.Next();
  report.runs = List<TokenRun>(rng, 40, Run);
  report.nacks = List<Nack>(rng, 10, [](Rng& r) {
    return Nack{Id(r), Any32(r), Code(r), Text(r, 100)};
  });
  report.ages = List<RankAge>(rng, kMaxRanks, [](Rng& r) { return RankAge{Any32(r), r.Next()}; });
  return report;
}

Dispatch OneDispatch(Rng& rng) {
  Dispatch dispatch;
  dispatch.request_id = Id(rng);
  dispatch.epoch = Any32(rng);
  dispatch.prompt = Ids(rng, 500);
  dispatch.n = 1 + Small(rng, kMaxChoices - 1);
  dispatch.sampling = Resolved(rng);
  dispatch.eos_ids = Ids(rng, 4);
  dispatch.service_class = static_cast<ServiceClass>(rng.Below(3));
  if (Coin(rng)) {
    for (uint32_t i = 0; i < dispatch.n; ++i) dispatch.emitted.push_back(Ids(rng, 20));
  }
  return dispatch;
}

SequenceStart Start(Rng& rng) {
  SequenceStart start;
  start.slot = Any32(rng);
  start.tokens = Ids(rng, 300);
  start.prompt_tokens = Small(rng, static_cast<uint32_t>(start.tokens.size()));
  start.choice = Small(rng, kMaxChoices - 1);
  start.sampling = Resolved(rng);
  start.eos_ids = Ids(rng, 4);
  return start;
}

}  // namespace

ClientMessage RandomClientMessage(Rng& rng) {
  switch (rng.Below(7)) {
    case 0:
      return Hello{rng.Next(), Text(rng, 40), Text(rng, 40), Coin(rng)};
    case 1:
      return CancelRequest{Id(rng)};
    case 2:
      return KeepAlive{};
    case 3:
      return CapacityQuery{};
    case 4:
      return Consumed{List<StreamConsumed>(rng, Coin(rng) ? 3 : kMaxConsumedStreams, [](Rng& r) {
        return StreamConsumed{Id(r), r.Next()};
      })};
    default:
      return Generate(rng);
  }
}

RouterToClient RandomRouterToClient(Rng& rng) {
  switch (rng.Below(7)) {
    case 0:
      return Welcome{rng.Next(), Text(rng, 40),         Coin(rng),
                     Any32(rng), 1 + Small(rng, 10000), Any32(rng)};
    case 1:
      return Accepted{Id(rng), rng.Next(), Any32(rng), Maybe<uint32_t>(rng, Any32)};
    case 2:
      return Error(rng);
    case 3:
      return KeepAliveReply{Maybe<uint32_t>(rng, Any32)};
    case 4:
      return CapacityReply{1 + Small(rng, 63), List<GroupCapacity>(rng, 10, Group)};
    default:
      return Deltas{List<Delta>(rng, 30, OneDelta)};
  }
}

WorkerToRouter RandomWorkerToRouter(Rng& rng) {
  switch (rng.Below(6)) {
    case 0:
      return RandomJoin(rng);
    case 1:
      return GroupDown{Text(rng, 30), rng.Next(), Text(rng, 300)};
    case 2:
      return Leave{rng.Next()};
    case 3:
      return LeaveSoon{rng.Next()};
    default:
      return Report(rng);
  }
}

RouterToWorker RandomRouterToWorker(Rng& rng) {
  switch (rng.Below(5)) {
    case 0:
      return GroupStart{rng.Next(),     rng.Next(), rng.Next(),
                        Text(rng, 300), Any32(rng), CommId(rng)};
    case 1:
      return JoinRefused{Text(rng, 300)};
    default:
      break;
  }
  Commands commands;
  commands.group_incarnation = rng.Next();
  commands.sequence = rng.Next();
  commands.dispatches = List<Dispatch>(rng, 8, OneDispatch);
  commands.cancels = List<CancelDispatch>(rng, 8, [](Rng& r) {
    return CancelDispatch{Id(r), Any32(r), Coin(r), Small(r, kMaxChoices - 1)};
  });
  commands.drain = Coin(rng);
  return commands;
}

StepPlan RandomPlan(Rng& rng) {
  StepPlan plan;
  plan.step_id = rng.Next();
  plan.previous_samples_hash = rng.Next();
  plan.releases = Ids(rng, 20);
  plan.starts = List<SequenceStart>(rng, 8, Start);
  plan.forks = List<SequenceFork>(rng, 8, [](Rng& r) {
    return SequenceFork{Any32(r), Any32(r), Small(r, kMaxChoices - 1)};
  });
  plan.appends = List<BlockAppend>(rng, 8, [](Rng& r) {
    return BlockAppend{Any32(r), Any32(r), Ids(r, 20)};
  });
  plan.copies = List<BlockCopy>(rng, 8, [](Rng& r) { return BlockCopy{Any32(r), Any32(r)}; });
  plan.rows = List<PlanRow>(rng, 40, [](Rng& r) {
    return PlanRow{Any32(r), Any32(r), Any32(r), Coin(r)};
  });
  plan.stop = Coin(rng);
  return plan;
}

}  // namespace kvern
