// What must hold, seen from outside: every message to a client and every dispatch is compared with
// what the fake model would have said. The letters are those of the invariants in README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cluster/base/time.h"
#include "router/core/router.h"
#include "schemas/messages.h"
#include "tools/sim/options.h"
#include "tools/sim/record.h"
#include "tools/sim/workload.h"

namespace kvern::sim {

// What a client is told that the router does not know (any more).
inline constexpr char kSayHello[] = "the first message must be Hello";
// How the reason begins for which a stream is cancelled that is not read; flow_watch.h judges it.
inline constexpr char kSlowReader[] = "slow reader: ";

class Checker {
 public:
  using Report = std::function<void(const std::string&)>;
  Checker(const SimOptions& options, const std::vector<std::string>& tenants, Report violation);

  // ---- What the world did.
  // Gives the request its id. `client`: the index of who asks.
  void Issued(Time now, uint32_t client, uint32_t tenant, Ask& ask);
  void Arrived(Time now, const RequestId& id);
  void Cancelled(uint32_t client, const RequestId& id);
  // A group has begun it again, `times` in all.
  void Preempted(const RequestId& id, uint32_t times);
  // `heir`: the incarnation of the client's next process over the same connection; 0: none.
  void ClientLost(uint32_t client, const std::vector<RequestId>& open, Incarnation heir);
  // The router has read the Hello of an incarnation.
  void Introduced(uint32_t client, Incarnation incarnation);

  // ---- What the router did.
  void Dispatched(Time now, const Dispatch& dispatch, uint32_t group, uint64_t group_blocks);
  // The router says to a client that its request is lined up.
  void LinedUp(Time now, const RequestId& id);
  // After all that the router said in one turn; its order is not seen.
  void TurnOver();
  // The router says to a client, or its client is gone, so that nobody will say: it has ended.
  // `released`: in this turn its worker let go of it.
  void Ended(Time now, Record& record, bool released);
  // A client read this. Appends the requests that it ends to `ended`.
  void Read(Time now, uint32_t client, const RouterToClient& message,
            std::vector<RequestId>& ended);

  // Requests whose clients were lost since the last call.
  std::vector<RequestId> TakeLost() { return std::exchange(lost_, {}); }

  // L1: everything asked for by clients that still read has its answer.
  void AllAnswered();

  // Null: nobody asked for it.
  Record* Find(const RequestId& id);
  bool HasQuota(uint32_t tenant) const { return has_quota_[tenant]; }
  // The tenant may have a number of blocks at once, and no more.
  bool HasBlockQuota(uint32_t tenant) const { return max_blocks_[tenant] > 0; }
  // KV blocks, worst case.
  uint64_t NeedOf(const Record& record) const;
  // In the order of asking.
  const Records& records() const { return records_; }
  // A request of a process that another one has followed, as the router knows, is about.
  bool any_forgotten() const { return any_forgotten_; }
  uint64_t open() const { return open_; }  // without a terminal answer, their clients still there

 private:
  // What a tenant with a quota of block-seconds may have left at most: what is seen to be used.
  struct Bucket {
    int64_t per_ms = 0;  // 0: no quota. All in 60ths of a block for a millisecond
    int64_t full = 0;
    int64_t left = 0;
    int64_t used = 0;  // in this turn, perhaps after what else is said in it
    int64_t refilled_ms = 0;
  };

  void ReadAccepted(Record& record, const Accepted& accepted);
  void ReadDelta(Time now, Record& record, const Delta& delta);
  void ReadTokens(Record& record, Record::Choice& choice, const Delta& delta);
  void ReadFinish(Record& record, const Record::Choice& choice, const Delta& delta);
  void ReadText(Record& record, const Record::Choice& choice, const Delta& delta);
  void ReadError(Time now, Record& record, const RequestError& error);
  void CheckQuota(const Record& record, const RequestError& error);
  void End(Time now, Record& record);
  void Violate(const char* name, const RequestId& id, const std::string& what);
  void Expect(const RequestId& id) const;  // it will be looked at
  Record* FindFor(uint32_t client, const RequestId& id, const char* what);

  const SimOptions& options_;
  Report violation_;
  const bool silent_clients_;  // a client may be taken for lost
  Records records_;
  bool any_forgotten_ = false;
  std::vector<RequestId> lost_;
  std::vector<bool> has_quota_;           // [tenants]
  std::vector<uint64_t> max_blocks_;      // [tenants] 0: no limit
  std::vector<uint64_t> running_blocks_;  // [tenants] worst cases of those that hold their quota
  std::vector<Bucket> buckets_;           // [tenants]
  uint64_t open_ = 0;
  // By client: what its former processes left, and who came after them.
  std::map<uint32_t, std::vector<std::pair<Incarnation, RequestId>>> left_behind_;
};

}  // namespace kvern::sim
