// Streams of clients that give credit: how far the router runs ahead of what it was told is taken,
// how long it holds a stream back, and why it gives one up. Sees a turn when it is taken. The
// letters are those of README.md.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "router/core/router.h"
#include "tools/sim/checker.h"
#include "tools/sim/front_end.h"
#include "tools/sim/options.h"

namespace kvern::sim {

// How often each happened: a run in which nothing was held back proves nothing.
struct FlowCounts {
  uint64_t paused = 0;
  uint64_t resumed = 0;
  uint64_t timed_out = 0;  // streams given up because nothing was taken
  uint64_t crowded = 0;    // because their client left too much unread
};

class FlowWatch {
 public:
  // All outlive the watch.
  FlowWatch(const SimOptions& options, FrontEnd& front_end, Checker& checker,
            Checker::Report violation);

  // The router is about to read this.
  void Hears(Time now, const ClientSaid& said);
  // What it said in one turn, after all that it read in it.
  void Take(Time now, const RouterEffects& effects);
  // Looks at all streams, and at the sums of the router.
  void CheckFully(Time now, const RouterStatus& status);

  const FlowCounts& counts() const { return counts_; }

 private:
  struct Stream {
    PeerId client = 0;
    uint64_t sent = 0;      // tokens
    uint64_t consumed = 0;  // of these, as the router was told
    bool believed = true;   // no lie of its client is about
    Time moved = 0;         // when some were sent, or it was told that some were taken
    bool paused = false;    // when it was last looked at
    Time paused_at = 0;     // when it was first seen so
  };

  void Sends(Time now, const Delta& delta);
  void Ends(Time now, const RequestError& error);
  // Its worker is through with it: its tenant does not pay for it any more.
  void NoteUnread(Time now, const RequestId& id);
  void Look(Time now, const RequestId& id, bool paused, Stream& stream);
  void Violate(const char* name, const RequestId& id, const std::string& what);

  const SimOptions& options_;
  FrontEnd& front_end_;
  Checker& checker_;
  Checker::Report violation_;
  std::set<PeerId> givers_;  // clients that give credit
  std::map<RequestId, Stream> streams_;
  FlowCounts counts_;
};

}  // namespace kvern::sim
