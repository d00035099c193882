#include "tests/worker/engine/group_runs.h"

#include <gtest/gtest.h>

#include "kernels/simt/runtime/enqueue.h"
#include "tests/worker/engine/message_box.h"

namespace kvern {

std::shared_ptr<const Checkpoint> OpenModel(const std::string& name) {
  auto checkpoint = Checkpoint::Open("tests/golden/tiny/" + name);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

RankConfig ConfigOf(const Shape& shape) {
  RankConfig config;
  config.world = shape.world;
  config.gpu = shape.gpu;
  config.batch_invariant = shape.batch_invariant;
  config.threads = shape.threads;
  config.kv_dtype = DType::kF32;
  config.kv_blocks = shape.kv_blocks;
  config.max_batch_tokens = shape.max_batch_tokens;
  config.plans_in_flight = shape.plans_in_flight;
  return config;
}

Runs RunRequests(const Shape& shape, const std::vector<Dispatch>& requests, StepReport* last,
                 std::vector<Join>* joins, const Canceller& cancel) {
  for (uint32_t rank = 0; rank < shape.world && shape.late_stream >= 0; ++rank) {
    simt::MakeStreamLate(static_cast<int>(rank), shape.late_stream);
  }
  MessageBox box;
  absl::Status end;
  auto group = LocalGroup::Open(
      OpenModel(shape.model), ConfigOf(shape),
      [&](WorkerToRouter message) { box.Put(std::move(message)); },
      [&](absl::Status status) { end = status; });
  EXPECT_TRUE(group.ok()) << group.status();
  EXPECT_EQ((*group)->joins().size(), shape.world);
  if (joins != nullptr) *joins = (*group)->joins();
  (*group)->Start(GroupStart{1, 5, shape.kv_blocks, "", 10000, (*group)->joins()[0].comm_id});
  uint64_t sequence = 0;
  (*group)->Push(Commands{5, ++sequence, requests, {}, true});
  Runs runs;
  while (true) {
    WorkerToRouter message = box.Take();
    if (std::holds_alternative<Leave>(message)) break;
    const StepReport& report = std::get<StepReport>(message);
    if (last != nullptr) *last = report;
    for (const Nack& nack : report.nacks) ADD_FAILURE() << nack.message;
    for (const TokenRun& run : report.runs) {
      runs[{run.request_id.low, run.choice}].push_back(run);
    }
    std::vector<CancelDispatch> cancels;
    if (cancel != nullptr) cancels = cancel(report);
    if (!cancels.empty()) (*group)->Push(Commands{5, ++sequence, {}, std::move(cancels), false});
  }
  group->reset();
  EXPECT_TRUE(end.ok()) << end;
  return runs;
}

Answers RunGroup(const Shape& shape, const std::vector<Dispatch>& requests, StepReport* last,
                 std::vector<Join>* joins) {
  Answers answers;
  for (const auto& [key, runs] : RunRequests(shape, requests, last, joins)) {
    Tokens& tokens = answers[key];
    for (const TokenRun& run : runs) {
      EXPECT_EQ(run.position, tokens.size());
      tokens.insert(tokens.end(), run.token_ids.begin(), run.token_ids.end());
    }
  }
  return answers;
}

Dispatch NewRequest(uint64_t id, Tokens prompt, uint32_t max_tokens, float temperature) {
  Dispatch dispatch;
  dispatch.request_id = {0, id};
  dispatch.prompt = std::move(prompt);
  dispatch.sampling.max_tokens = max_tokens;
  dispatch.sampling.temperature = temperature;
  dispatch.sampling.seed = 1000 + id;
  dispatch.sampling.ignore_eos = true;
  return dispatch;
}

Tokens Prompt(uint32_t length, uint32_t salt) {
  Tokens prompt;
  for (uint32_t i = 0; i < length; ++i) prompt.push_back((i * 37 + salt * 101 + 5) % 256);
  return prompt;
}

}  // namespace kvern
