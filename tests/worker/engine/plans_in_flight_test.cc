// With two plans in flight a request says what it says with one: tokens, log-probabilities and ends
// are the same bits, on the CPU and on a GPU, however the steps differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "kernels/simt/runtime/enqueue.h"
#include "tests/worker/engine/group_runs.h"
#include "tests/worker/engine/message_box.h"

namespace kvern {
namespace {

struct Where {
  const char* name;
  const GpuBackend* gpu;
  uint32_t world;
  int late_stream = -1;
};

class PlansInFlight : public ::testing::TestWithParam<Where> {
 protected:
  Shape ShapeOf(uint32_t plans) const {
    Shape shape;
    shape.world = GetParam().world;
    shape.gpu = GetParam().gpu;
    shape.batch_invariant = true;
    shape.late_stream = GetParam().late_stream;
    shape.plans_in_flight = plans;
    return shape;
  }

  // The same with one and two, which is returned; `last` is set to the last report with two.
  Runs Agree(const Shape& one, const std::vector<Dispatch>& requests, StepReport* last = nullptr) {
    Shape two = one;
    two.plans_in_flight = 2;
    Runs expected = RunRequests(one, requests);
    Runs runs = RunRequests(two, requests, last);
    EXPECT_EQ(runs, expected);
    return runs;
  }
};

// Of every kind of sampling, some with log-probabilities and several choices.
std::vector<Dispatch> Mixed(uint32_t count, uint32_t max_tokens) {
  std::vector<Dispatch> requests;
  for (uint32_t i = 0; i < count; ++i) {
    requests.push_back(NewRequest(i + 1, Prompt(1 + i * 11 % 40, i), 1 + i * 5 % max_tokens,
                                  i % 3 == 0 ? 0.0f : 1));
    ResolvedSampling& sampling = requests.back().sampling;
    if (i % 4 == 1) requests.back().n = 3;
    if (i % 4 == 2) sampling.logprobs = i % 3;
    if (i % 5 == 2) sampling.top_p = 0.8f;
    if (i % 2 == 1) sampling.repetition_penalty = 1.3f;
    if (i % 7 == 3) sampling.frequency_penalty = 0.7f;
  }
  requests[0].prompt = Prompt(32, 3);  // ends with a block
  requests[0].n = 2;
  return requests;
}

TEST_P(PlansInFlight, SayTheSame) {
  std::vector<Dispatch> requests = Mixed(12, 12);
  Shape shape = ShapeOf(1);
  Runs whole = Agree(shape, requests);
  EXPECT_EQ(whole.size(), 12u + 1 + 3 * 2);
  shape.max_batch_tokens = 9;  // prompts in chunks, and not every choice in every step
  EXPECT_EQ(Agree(shape, requests), whole);
}

// A stop id that the request would say after some tokens: what is computed after it is dropped.
TEST_P(PlansInFlight, StopAtTheSameToken) {
  std::vector<Dispatch> requests = Mixed(8, 12);
  Answers whole = RunGroup(ShapeOf(1), requests);
  size_t stops = 0;
  for (Dispatch& request : requests) {
    const Tokens& said = whole[{request.request_id.low, 0}];
    request.sampling.stop_token_ids = {said[said.size() / 2]};
  }
  for (const auto& [key, runs] : Agree(ShapeOf(1), requests)) {
    if (runs.back().finish_reason == FinishReason::kStop) ++stops;
  }
  EXPECT_GE(stops, 8u);
}

// One plan where the host computes, two where a GPU does: there a stop id is seen a step too late.
TEST_P(PlansInFlight, TheDeviceDecides) {
  Dispatch request = NewRequest(1, Prompt(20, 1), 12, 0);
  StepReport last;
  const Tokens said = RunGroup(ShapeOf(0), {request}, &last)[{1, 0}];
  EXPECT_EQ(last.step_id, 12u);
  request.sampling.stop_token_ids = {said[3]};
  const Tokens until_stop = RunGroup(ShapeOf(0), {request}, &last)[{1, 0}];
  ASSERT_LE(until_stop.size(), 4u);
  EXPECT_EQ(last.step_id, until_stop.size() + (GetParam().gpu == nullptr ? 0 : 1));
}

// Preempted at other moments than with one plan, as the scheduler knows less when it plans.
TEST_P(PlansInFlight, SayTheSameInASmallPool) {
  std::vector<Dispatch> requests = Mixed(6, 30);
  for (Dispatch& request : requests) request.service_class = ServiceClass::kStandard;
  Runs roomy = RunRequests(ShapeOf(1), requests);
  Shape shape = ShapeOf(1);
  shape.kv_blocks = 8;
  StepReport last;
  EXPECT_EQ(Agree(shape, requests, &last), roomy);
  EXPECT_GT(last.preemptions, 0u);
  EXPECT_GT(last.recomputed_tokens, 0u);
  EXPECT_EQ(last.used_blocks, 0u);
}

// What is cancelled in the middle says no more; the others do not notice.
TEST_P(PlansInFlight, ACancelDisturbsNobody) {
  std::vector<Dispatch> requests = Mixed(8, 12);
  requests[4].sampling.max_tokens = 40;
  requests[5].sampling.max_tokens = 40;
  requests[5].n = 3;
  Runs whole = RunRequests(ShapeOf(1), requests);
  bool cancelled = false;
  auto cancel = [&](const StepReport& report) -> std::vector<CancelDispatch> {
    if (cancelled || report.step_id < 5) return {};
    cancelled = true;
    return {{requests[4].request_id, 0, true, 0}, {requests[5].request_id, 0, false, 1}};
  };
  StepReport last;
  Runs runs = RunRequests(ShapeOf(2), requests, &last, nullptr, cancel);
  EXPECT_TRUE(cancelled);
  for (auto& [key, expected] : whole) {
    if (key == ChoiceKey(5, 0) || key == ChoiceKey(6, 1)) {
      ASSERT_LT(runs[key].size(), expected.size());
      expected.resize(runs[key].size());
    }
    EXPECT_EQ(runs[key], expected) << "request " << key.first << " choice " << key.second;
  }
  EXPECT_EQ(last.used_blocks, 0u);
  EXPECT_EQ(last.reserved_blocks, 0u);
}

// A GPU of two fails while one step runs and the next is prepared: both ranks end, with its error.
TEST(OnTwoGpus, AGpuThatFailsEndsTheGroup) {
  Shape shape;
  shape.world = 2;
  shape.gpu = &EmulatedBackend();
  MessageBox box;
  std::promise<absl::Status> ended;
  auto group = LocalGroup::Open(
      OpenModel(shape.model), ConfigOf(shape),
      [&](WorkerToRouter message) { box.Put(std::move(message)); },
      [&](absl::Status status) { ended.set_value(std::move(status)); });
  ASSERT_TRUE(group.ok()) << group.status();
  (*group)->Start(GroupStart{1, 5, shape.kv_blocks, "", 10000, (*group)->joins()[0].comm_id});
  (*group)->Push(Commands{5, 1, {NewRequest(1, Prompt(20, 1), 400, 0)}, {}, true});
  box.TakeReportWhere([](const StepReport& report) { return report.step_id >= 3; });
  simt::BreakDevice(1, cudaErrorLaunchFailure);
  const absl::Status status = ended.get_future().get();
  simt::BreakDevice(1, cudaSuccess);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("cudaErrorLaunchFailure"));
}

INSTANTIATE_TEST_SUITE_P(On, PlansInFlight,
                         ::testing::Values(Where{"cpu", nullptr, 1}, Where{"cpu", nullptr, 2},
                                           Where{"emulated", &EmulatedBackend(), 1},
                                           Where{"emulated", &EmulatedBackend(), 2},
                                           Where{"computes_late", &EmulatedBackend(), 1, 0},
                                           Where{"copies_late", &EmulatedBackend(), 1, 1}),
                         [](const auto& test) {
                           return test.param.name + std::to_string(test.param.world);
                         });

}  // namespace
}  // namespace kvern
