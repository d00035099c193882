// From a line of a script to an event.
#include "absl/strings/str_split.h"
#include "cluster/base/check.h"
#include "tests/router/core/script.h"

namespace kvern {
namespace {

std::vector<std::string> Split(const std::string& text, char separator) {
  return absl::StrSplit(text, separator);
}

RequestId Id(uint64_t low) { return {0, low}; }

uint32_t ToU32(const std::string& text) { return static_cast<uint32_t>(std::stoul(text)); }

ErrorCode ParseCode(const std::string& name) {
  for (uint8_t code = 0; code <= kLastErrorCode; ++code) {
    if (ErrorCodeName(ErrorCode{code}) == name) return ErrorCode{code};
  }
  KVERN_CHECK(false) << name;
  return ErrorCode::kInternal;
}

GenerateRequest ParseGenerate(Words& words) {
  auto optional = [&](const std::string& key) -> std::optional<uint32_t> {
    if (!words.Has(key)) return std::nullopt;
    return static_cast<uint32_t>(words.Number(key));
  };
  GenerateRequest request;
  request.request_id = Id(words.Number("id"));
  request.model = words.Text("model");
  if (words.Has("prompt")) request.prompt = words.Text("prompt");
  if (words.Has("ids")) request.prompt_token_ids = ParseTokens(words.Text("ids"));
  const std::string role = words.Text("role", "user");
  for (const std::string& content : words.All("message")) {
    if (!request.messages) request.messages.emplace();
    request.messages->push_back({role, content});
  }
  request.max_tokens = optional("max_tokens");
  request.n = static_cast<uint32_t>(words.Number("n", 1));
  if (words.Text("seed") != "drawn") request.seed = words.Number("seed", 5);
  request.stop = words.All("stop");
  request.ttft_deadline_ms = optional("ttft_deadline_ms");
  request.deadline_ms = optional("deadline_ms");
  request.detach_ms = static_cast<uint32_t>(words.Number("detach_ms"));
  request.priority = static_cast<int32_t>(words.Number("priority"));
  request.service_class = ServiceClass{static_cast<uint8_t>(words.Number("class"))};
  if (words.Has("resume")) request.resume_positions = ParseTokens(words.Text("resume"));
  SamplingParams& sampling = request.sampling;
  if (words.Has("temperature")) sampling.temperature = std::stof(words.Text("temperature"));
  if (words.Has("top_p")) sampling.top_p = std::stof(words.Text("top_p"));
  sampling.min_tokens = static_cast<uint32_t>(words.Number("min_tokens"));
  sampling.logprobs = optional("logprobs");
  sampling.prompt_logprobs = optional("prompt_logprobs");
  if (words.Has("stop_ids")) sampling.stop_token_ids = ParseTokens(words.Text("stop_ids"));
  return request;
}

ClientMessage ParseClientMessage(Words& words) {
  std::string kind = words.Next();
  if (kind == "hello") {
    bool credit = words.Number("gives_credit") != 0;
    return Hello{words.Number("incarnation", 1), words.Text("tenant"), "", credit};
  }
  if (kind == "generate") return ParseGenerate(words);
  if (kind == "cancel") return CancelRequest{Id(words.Number("id"))};
  if (kind == "keepalive") return KeepAlive{};
  if (kind == "consumed") {
    Consumed consumed;
    for (const std::string& stream : words.All("stream")) {
      std::vector<std::string> parts = Split(stream, '/');
      consumed.streams.push_back({Id(std::stoull(parts.at(0))), std::stoull(parts.at(1))});
    }
    return consumed;
  }
  KVERN_CHECK(kind == "capacity") << kind;
  return CapacityQuery{};
}

Join ParseJoin(Words& words) {
  Join join;
  join.group = words.Text("group", "a");
  join.group_incarnation = words.Number("incarnation", 1);
  join.rank = static_cast<uint32_t>(words.Number("rank"));
  join.world = static_cast<uint32_t>(words.Number("world", 1));
  join.build = words.Text("build", "0.1");
  join.weights_fingerprint = words.Number("fingerprint", 77);
  join.model = words.Text("model", "tiny");
  join.kv_blocks = words.Number("kv_blocks", 8);
  join.bytes_per_token = words.Number("bytes_per_token", 64);
  join.max_seq_len = static_cast<uint32_t>(words.Number("max_seq_len", 256));
  join.vocab_size = static_cast<uint32_t>(words.Number("vocab", 100));
  join.max_batch_tokens = static_cast<uint32_t>(words.Number("batch_tokens"));
  join.rendezvous = words.Text("rendezvous");
  const std::string comm_id = words.Text("comm_id");
  join.comm_id.assign(comm_id.begin(), comm_id.end());
  return join;
}

// "7/1/0/4:5,6/length": request 7, epoch 1, choice 0, position 4, tokens, and how it ended: length,
// eos, or a stop id's number. A further "/K" gives every token K logprobs.
TokenRun ParseRun(const std::string& text) {
  std::vector<std::string> parts = Split(text, '/');
  KVERN_CHECK_GE(parts.size(), 4u) << text;
  std::vector<std::string> tokens = Split(parts[3], ':');
  TokenRun run;
  run.request_id = Id(std::stoull(parts[0]));
  run.epoch = ToU32(parts[1]);
  run.choice = ToU32(parts[2]);
  run.position = ToU32(tokens[0]);
  run.token_ids = ParseTokens(tokens.at(1));
  if (parts.size() > 4 && parts[4] == "length") run.finish_reason = FinishReason::kLength;
  if (parts.size() > 4 && parts[4] == "eos") run.finish_reason = FinishReason::kStop;
  if (parts.size() > 4 && !parts[4].empty() && parts[4][0] >= '0' && parts[4][0] <= '9') {
    run.finish_reason = FinishReason::kStop;
    run.stop_reason = ToU32(parts[4]);
  }
  if (parts.size() > 5) {
    for (uint32_t id : run.token_ids) {
      TokenLogprob logprob{id, -0.5f, {}};
      for (uint32_t k = 0; k < ToU32(parts[5]); ++k) logprob.top.push_back({k, -0.5f});
      run.logprobs.push_back(logprob);
    }
  }
  return run;
}

StepReport ParseReport(Words& words) {
  StepReport report;
  report.group_incarnation = words.Number("incarnation", 1);
  report.step_id = words.Number("step");
  report.acked_command = words.Number("acked");
  report.reserved_blocks = words.Number("reserved");
  report.used_blocks = words.Number("used", report.reserved_blocks);
  report.step_us = words.Number("step_us");
  report.prefill_tokens = words.Number("prefill");
  report.recomputed_tokens = words.Number("recomputed");
  for (const std::string& age : words.All("age")) {
    std::vector<std::string> parts = Split(age, '/');
    report.ages.push_back({ToU32(parts.at(0)), std::stoull(parts.at(1))});
  }
  for (const std::string& run : words.All("run")) report.runs.push_back(ParseRun(run));
  for (const std::string& nack : words.All("nack")) {
    std::vector<std::string> parts = Split(nack, '/');
    report.nacks.push_back({Id(std::stoull(parts.at(0))), ToU32(parts.at(1)),
                            ParseCode(parts.at(2)), "the worker's reason"});
  }
  return report;
}

}  // namespace

std::vector<uint32_t> ParseTokens(const std::string& text) {
  if (text.empty()) return {};
  std::vector<std::string> repeated = Split(text, 'x');
  if (repeated.size() == 2) {
    return std::vector<uint32_t>(ToU32(repeated[1]), ToU32(repeated[0]));
  }
  std::vector<uint32_t> tokens;
  for (const std::string& token : Split(text, ',')) tokens.push_back(ToU32(token));
  return tokens;
}

RouterEvent ParseEvent(const std::string& line) {
  if (line == "tick") return Tick{};
  if (line == "drain") return BeginDrain{};
  Words words(line);
  std::string who = words.Next();
  if (who == "absent") return Absent{static_cast<Duration>(words.Number("ms")) * kMillisecond};
  if (who == "tokenized") {
    ErrorCode error = ParseCode(words.Text("error", "none"));
    return Tokenized{Id(words.Number("id")), ParseTokens(words.Text("ids")), error,
                     error == ErrorCode::kNone ? "" : "the text pool's reason"};
  }
  PeerId peer = std::stoull(words.Next());
  if (who == "client") {
    if (line.ends_with(" unreachable")) return ClientUnreachable{peer};
    return ClientSaid{peer, ParseClientMessage(words)};
  }
  KVERN_CHECK(who == "worker") << line;
  std::string kind = words.Next();
  if (kind == "unreachable") return WorkerUnreachable{peer};
  if (kind == "join") return WorkerSaid{peer, ParseJoin(words)};
  if (kind == "report") return WorkerSaid{peer, ParseReport(words)};
  if (kind == "leave") return WorkerSaid{peer, Leave{words.Number("incarnation", 1)}};
  if (kind == "leave_soon") return WorkerSaid{peer, LeaveSoon{words.Number("incarnation", 1)}};
  KVERN_CHECK(kind == "down") << line;
  return WorkerSaid{peer, GroupDown{words.Text("group", "a"), words.Number("incarnation", 1),
                                    words.Text("reason", "rank 0 exited")}};
}

}  // namespace kvern
