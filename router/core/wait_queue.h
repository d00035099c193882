// Requests that wait: who is next, within bounds of entries and bytes. Room is taken before any
// work is done on a request (tokenising) and given back once, when it is dispatched or ends.
//
// Order: the highest band; in it the tenant with the least service for its weight; of that tenant
// the oldest. A tenant that begins to wait is lifted to the least served of those that wait
// already, and to what the last head had been served, so that nobody saves up service by being
// idle: neither while others wait, nor while nobody has to, nor beside one that waits for its own
// quota.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "router/core/request.h"
#include "router/core/tenants.h"

namespace kvern::router {

// As a limit of blocks: none.
inline constexpr uint64_t kAnySize = UINT64_MAX;

// What is served before a request that joins the line now, itself included.
struct Ahead {
  uint64_t blocks = 0;
  uint64_t prompt_tokens = 0;
  uint64_t own_worst_blocks = 0;  // at worst, of its tenant alone: what counts for its quota
};

// Invariants: queued requests <= entries() <= max_entries; bytes() <= max_bytes.
class WaitQueue {
 public:
  WaitQueue(uint32_t max_entries, uint64_t max_bytes);

  // Room for one more request whose input has `bytes`?
  bool HasRoom(uint64_t bytes) const;
  // Would there be, if `gone` gave its room back?
  bool HasRoomWithout(const Request& gone, uint64_t bytes) const;

  // REQUIRES: HasRoom(bytes). Sets request.queue_bytes.
  void TakeRoom(Request& request, uint64_t bytes);
  // The input has become `bytes` long. False, and nothing changes, if that is beyond the bound.
  bool ResizeRoom(Request& request, uint64_t bytes);
  void GiveRoomBack(Request& request);

  // A request that has its room is being tokenised; not any more; and it gives its room back. O(1).
  void PushText(Request& request);
  void EndText(Request& request);
  void RemoveText(Request& request);

  // Lines up a request that has its room; its tenant, band and expected_blocks are set.
  void Push(Request& request);
  // It is the first of its band, and served, or passed by one of its band that is: whoever begins
  // to wait later has had no less.
  void AdvanceTo(const Request& head);
  // Likewise of those that need at most `most_blocks`, for groups that `larger`, the head of all,
  // cannot use: who waits only for what is larger has no claim on what is served there. O(tenants
  // that wait).
  void Bypass(Request& larger, uint64_t most_blocks, const Request& head);
  // Takes it out of the line and gives its room back. O(1).
  void Remove(Request& request);

  // The next up to `max` requests in order, `out` cleared first, of those that need at most
  // `most_blocks`; with a limit, of the first kLookedAt of each line. Tenants whose oldest of them
  // `may` not run are left out. Every candidate but the first comes after it by the order above, so
  // the list is what may be tried when the first does not fit. O(tenants that wait + max).
  template <typename May>
  void Candidates(size_t max, uint64_t most_blocks, May may, std::vector<Request*>& out) const {
    out.clear();
    for (size_t band = kBands; band-- > 0 && out.size() < max;) {
      if (active_[band].empty()) continue;
      std::vector<Tenant*> order = ByService(band);
      for (Tenant* tenant : order) {
        const Request* oldest = FirstWithin(most_blocks, tenant->lines[band]);
        if (oldest == nullptr || !may(*oldest)) continue;
        AppendLine(tenant->lines[band], max, most_blocks, out);
        if (out.size() >= max) break;
      }
    }
  }

  // Whether a tenant's oldest request of this band or a higher one `may` run, so that one of this
  // band that joins the line now is not the next. O(tenants that wait), mostly O(1).
  template <typename May>
  bool AnyBefore(size_t band, May may) const {
    for (size_t b = band; b < kBands; ++b) {
      for (const Tenant* tenant : active_[b]) {
        if (may(*tenant->lines[b].first)) return true;
      }
    }
    return false;
  }

  // What goes before a request (which may be in line or not) and itself, when the service is shared
  // by weight, of those that need at most `most_blocks`. O(tenants that wait + position), with a
  // limit O(requests in line).
  Ahead AheadOf(const Request& request, uint64_t most_blocks = kAnySize) const;

  // The request to give up so that one of `tenant` and `band` may wait: the newest of the lowest
  // band below; else, in the same band, of the tenant that has most for its weight, if that is more
  // than `tenant` would have. What is being tokenised counts, and is newer than what is in line.
  // Null: the newcomer itself. O(tenants that have entries).
  Request* Excess(const Tenant& tenant, size_t band) const;

  // Calls visit(request) for all in line: by band, then tenant, then age.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (size_t band = kBands; band-- > 0;) {
      for (Tenant* tenant : active_[band]) {
        for (Request* r = tenant->lines[band].first; r != nullptr; r = r->next_in_line) visit(*r);
      }
    }
  }

  // A tenant's part of the entries, by weight, among those that have any and itself. O(tenants that
  // have entries).
  uint64_t ShareOf(const Tenant& tenant) const;

  // How many would be dispatched before a request in line if the groups had room for all: the order
  // replayed, each charged for its prompt as when it is dispatched. `may(r, more)`: within its
  // quota if `more` blocks of its tenant ran, those replayed so far; from the first of a line that
  // may not, the line is left out. The request's own line is never. O(ahead * log(tenants)).
  using May = std::function<bool(const Request&, uint64_t more)>;
  size_t Position(const Request& request, const May& may) const;
  Time OldestArrival() const;  // kTimeMax when empty

  uint64_t expected_blocks() const { return expected_blocks_; }  // of all in line
  size_t size() const { return size_; }                          // in line
  bool empty() const { return size_ == 0; }
  uint32_t entries() const { return entries_; }  // in line or being tokenised
  uint64_t bytes() const { return bytes_; }

  // Dies if an invariant is broken.
  void Audit() const;

 private:
  // Of a line, where only some are wanted.
  static constexpr size_t kLookedAt = 64;

  // Before and after the tenant has more, or less, in that band.
  void BeginHolding(Tenant& tenant, size_t band);
  void EndHolding(Tenant& tenant, size_t band);
  static Request* NewestOf(const Line& line);
  std::vector<Tenant*> ByService(size_t band) const;
  // Of a line's requests, or of those before `end`.
  static Ahead SumOf(const Line& line, uint64_t most_blocks, const Request* end = nullptr);
  static const Request* FirstWithin(uint64_t most_blocks, const Line& line);
  static void AppendLine(const Line& line, size_t max, uint64_t most_blocks,
                         std::vector<Request*>& out);
  // Counts its requests again; their expected blocks.
  static uint64_t AuditLine(const Line& line);

  uint32_t max_entries_;
  uint64_t max_bytes_;
  uint32_t entries_ = 0;
  uint64_t bytes_ = 0;
  size_t size_ = 0;
  uint64_t expected_blocks_ = 0;
  // Tenants with requests in line, by band, in the order in which they began to wait.
  std::array<std::vector<Tenant*>, kBands> active_;
  // Likewise, tenants with entries: in line or being tokenised.
  std::array<std::vector<Tenant*>, kBands> holding_;
  // Service of the last head's tenant at its turn, by band; never falls. What start-time fair
  // queueing (Goyal, Vin, Cheng, SIGCOMM 1996) calls virtual time.
  std::array<uint64_t, kBands> level_ = {};
};

}  // namespace kvern::router
