#include "tests/worker/core/scheduler_script.h"

#include "absl/strings/str_join.h"
#include "cluster/base/check.h"

namespace kvern {
namespace {

uint32_t Number(const std::map<std::string, std::string>& words, const std::string& key,
                uint32_t otherwise) {
  auto it = words.find(key);
  return it == words.end() ? otherwise : static_cast<uint32_t>(std::stoul(it->second));
}

std::vector<uint32_t> Numbers(const std::string& text) {
  std::vector<uint32_t> numbers;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    numbers.push_back(static_cast<uint32_t>(std::stoul(part)));
  }
  return numbers;
}

const char* FinishName(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

void PrintPlan(const StepPlan& plan, std::ostream& out) {
  out << "step " << plan.step_id << "\n";
  if (!plan.releases.empty())
    out << "  release slots " << absl::StrJoin(plan.releases, " ") << "\n";
  for (const SequenceStart& start : plan.starts) {
    out << "  start slot " << start.slot << ": choice " << start.choice << ", "
        << start.prompt_tokens << " prompt tokens";
    size_t earlier = start.tokens.size() - start.prompt_tokens;
    if (earlier > 0) out << " and " << earlier << " said before";
    out << "\n";
  }
  for (const SequenceFork& fork : plan.forks) {
    out << "  fork slot " << fork.to << " from slot " << fork.from << ": choice " << fork.choice
        << "\n";
  }
  for (const BlockAppend& append : plan.appends) {
    out << "  blocks of slot " << append.slot << " from " << append.first << ": "
        << absl::StrJoin(append.blocks, " ") << "\n";
  }
  for (const BlockCopy& copy : plan.copies) {
    out << "  copy block " << copy.from << " to " << copy.to << "\n";
  }
  for (const PlanRow& row : plan.rows) {
    out << "  row slot " << row.slot << ": tokens " << row.start << ".."
        << row.start + row.count - 1 << (row.sample ? ", draw" : "") << "\n";
  }
}

}  // namespace

std::string SchedulerScript::Run(const std::string& line) {
  out_.str("");
  std::istringstream in(line);
  std::string command;
  in >> command;
  std::vector<std::string> bare;
  Words words;
  for (std::string word; in >> word;) {
    size_t equals = word.find('=');
    if (equals == std::string::npos) {
      if (!bare.empty()) words[word] = "";  // the first is a name
      bare.push_back(word);
    } else {
      words[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  if (command == "config") Config(words);
  if (command == "accept") Accept(bare.at(0), words);
  if (command == "cancel") Cancel(bare.at(0), words);
  if (command == "plan" || command == "step") Plan();
  if (command == "commit" || command == "step") {
    std::vector<uint32_t> tokens;
    for (const std::string& word : bare) tokens.push_back(static_cast<uint32_t>(std::stoul(word)));
    if (!plans_.empty()) Commit(std::move(tokens), command == "step");
  }
  if (command == "show") {
    out_ << "used " << scheduler_->used_blocks() << ", reserved " << scheduler_->reserved_blocks()
         << ", running " << scheduler_->running();
    if (scheduler_->waiting() > 0) out_ << ", waiting " << scheduler_->waiting();
    out_ << (scheduler_->idle() ? ", idle" : "") << "\n";
  }
  if (command == "totals") Totals();
  scheduler_->Audit();
  return out_.str();
}

void SchedulerScript::Config(const Words& words) {
  SchedulerConfig config;
  config.num_blocks = Number(words, "blocks", 64);
  config.max_batch_tokens = Number(words, "budget", 64);
  config.max_sequences = Number(words, "slots", 16);
  config.max_sample_rows = Number(words, "samples", 16);
  config.max_seq_len = Number(words, "seq", 4096);
  config.vocab_size = 1000;
  config.plans_in_flight = Number(words, "plans", 1);
  plans_.clear();
  scheduler_ = std::make_unique<Scheduler>(config);
}

void SchedulerScript::Totals() {
  StepReport report;
  scheduler_->FillReport(report);
  out_ << report.preemptions << " preemptions, " << report.prefill_tokens << " tokens of prefill, "
       << report.recomputed_tokens << " of them again\n";
}

void SchedulerScript::Accept(const std::string& name, const Words& words) {
  auto [id, is_new] = ids_.try_emplace(name, RequestId{0, ids_.size() + 1});
  Dispatch dispatch;
  dispatch.request_id = id->second;
  dispatch.epoch = Number(words, "epoch", 0);
  dispatch.prompt = std::vector<uint32_t>(Number(words, "prompt", 1), Number(words, "token", 7));
  dispatch.n = Number(words, "n", 1);
  if (words.count("standard") > 0) dispatch.service_class = ServiceClass::kStandard;
  if (words.count("batch") > 0) dispatch.service_class = ServiceClass::kBatch;
  dispatch.sampling.max_tokens = Number(words, "max", 4);
  dispatch.sampling.ignore_eos = words.count("ignore_eos") > 0;
  dispatch.eos_ids = {Number(words, "eos", 0)};
  if (words.count("stop") > 0) dispatch.sampling.stop_token_ids = Numbers(words.at("stop"));
  if (words.count("logprobs") > 0) dispatch.sampling.logprobs = Number(words, "logprobs", 0);
  if (words.count("emitted") > 0) {
    std::istringstream in(words.at("emitted") + "/");
    for (std::string part; std::getline(in, part, '/');) dispatch.emitted.push_back(Numbers(part));
  }
  WorkerEffects effects;
  scheduler_->Accept(0, dispatch, effects);
  PrintEffects(effects);
}

void SchedulerScript::Cancel(const std::string& name, const Words& words) {
  CancelDispatch cancel;
  auto id = ids_.find(name);
  cancel.request_id = id == ids_.end() ? RequestId{9, 9} : id->second;
  cancel.epoch = Number(words, "epoch", 0);
  cancel.all_choices = words.count("choice") == 0;
  cancel.choice = Number(words, "choice", 0);
  WorkerEffects effects;
  scheduler_->Cancel(0, cancel, effects);
  PrintEffects(effects);
}

void SchedulerScript::Plan() {
  StepPlan plan;
  if (!scheduler_->Plan(0, plan)) {
    out_ << "nothing to run\n";
    return;
  }
  PrintPlan(plan, out_);
  plans_.push_back(std::move(plan));
}

void SchedulerScript::Commit(std::vector<uint32_t> tokens, bool repeat_last) {
  StepResult result;
  const StepPlan& plan = plans_.front();
  result.step_id = plan.step_id;
  size_t next = 0;
  for (const PlanRow& row : plan.rows) {
    if (!row.sample) continue;
    if (repeat_last && next == tokens.size() && next > 0) --next;
    KVERN_CHECK_LT(next, tokens.size()) << "the script gives too few tokens";
    result.samples.push_back({row.slot, tokens[next], {tokens[next], -1.0f, {}}});
    ++next;
  }
  plans_.pop_front();
  WorkerEffects effects;
  scheduler_->Commit(0, result, effects);
  PrintEffects(effects);
}

void SchedulerScript::PrintRun(const TokenRun& run) {
  out_ << NameOf(run.request_id);
  if (run.epoch > 0) out_ << " epoch " << run.epoch;
  out_ << " choice " << run.choice << " position " << run.position << ": "
       << absl::StrJoin(run.token_ids, " ");
  if (!run.logprobs.empty()) out_ << " (logprob " << run.logprobs[0].logprob << ")";
  if (run.finish_reason != FinishReason::kNone) out_ << ", " << FinishName(run.finish_reason);
  if (const uint32_t* id = std::get_if<uint32_t>(&run.stop_reason)) out_ << " by " << *id;
  out_ << "\n";
}

void SchedulerScript::PrintEffects(const WorkerEffects& effects) {
  for (const Nack& nack : effects.nacks) {
    out_ << "refused " << NameOf(nack.request_id) << ": " << ErrorCodeName(nack.code) << ", "
         << nack.message << "\n";
  }
  for (const TokenRun& run : effects.runs) PrintRun(run);
}

std::string SchedulerScript::NameOf(const RequestId& id) const {
  for (const auto& [name, known] : ids_) {
    if (known == id) return name;
  }
  return "unknown";
}

}  // namespace kvern
