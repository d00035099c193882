// Runs a scheduler by a script of text lines and shows what it does as text.
//
//   config blocks=N [budget=N] [slots=N] [samples=N] [seq=N] [plans=N]   a new scheduler
//   accept ID [standard] prompt=N [max=N] [n=N] [epoch=N] [emitted=A,B/C] [eos=N] [stop=N] [...]
//   cancel ID [epoch=N] [choice=N]
//   plan                        prints the plan
//   commit [TOKEN ...]          of the oldest plan in flight: the drawn tokens, one for each row
//                               that draws; prints the report
//   step [TOKEN ...]            plan and commit; the last token stands for all further rows
//   show                        prints the counts
//   totals                      prints what was preempted and computed since the start
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "worker/core/scheduler.h"

namespace kvern {

class SchedulerScript {
 public:
  // The output of one line; every line ends with an audit.
  std::string Run(const std::string& line);

 private:
  using Words = std::map<std::string, std::string>;
  void Config(const Words& words);
  void Accept(const std::string& name, const Words& words);
  void Cancel(const std::string& name, const Words& words);
  void Totals();
  void Plan();
  void Commit(std::vector<uint32_t> tokens, bool repeat_last);
  void PrintRun(const TokenRun& run);
  void PrintEffects(const WorkerEffects& effects);
  std::string NameOf(const RequestId& id) const;

  std::unique_ptr<Scheduler> scheduler_;
  std::map<std::string, RequestId> ids_;
  std::deque<StepPlan> plans_;  // in flight
  std::ostringstream out_;
};

}  // namespace kvern
