// Whole groups over tiny models in one process: requests in, what they said out.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/local_group.h"

namespace kvern {

using Tokens = std::vector<uint32_t>;
using ChoiceKey = std::pair<uint64_t, uint32_t>;  // request and choice
using Answers = std::map<ChoiceKey, Tokens>;
using Runs = std::map<ChoiceKey, std::vector<TokenRun>>;

struct Shape {
  const char* model = "llama_9h_3kv";
  uint32_t world = 1;
  uint32_t max_batch_tokens = 512;
  int threads = 1;
  uint64_t kv_blocks = 400;
  const GpuBackend* gpu = nullptr;
  bool batch_invariant = false;
  uint32_t plans_in_flight = 0;  // 0: the device's
  int late_stream = -1;          // of each emulated GPU: 0 computes, 1 copies, -1: none
};

// What is cancelled after this report.
using Canceller = std::function<std::vector<CancelDispatch>(const StepReport&)>;

std::shared_ptr<const Checkpoint> OpenModel(const std::string& name);
RankConfig ConfigOf(const Shape& shape);

// Runs the requests together and returns all that the leader reported of them, in order; `last` is
// set to the last report.
Runs RunRequests(const Shape& shape, const std::vector<Dispatch>& requests,
                 StepReport* last = nullptr, std::vector<Join>* joins = nullptr,
                 const Canceller& cancel = nullptr);
// Only the tokens; `joins` is set to what the ranks said of themselves.
Answers RunGroup(const Shape& shape, const std::vector<Dispatch>& requests,
                 StepReport* last = nullptr, std::vector<Join>* joins = nullptr);

Dispatch NewRequest(uint64_t id, Tokens prompt, uint32_t max_tokens, float temperature);
Tokens Prompt(uint32_t length, uint32_t salt);

}  // namespace kvern
