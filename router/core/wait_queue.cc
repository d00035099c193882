#include "router/core/wait_queue.h"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>

#include "cluster/base/check.h"

namespace kvern::router {
namespace {

// A tenant's line in a replay of the order.
struct ReplayedLine {
  uint64_t service = 0;
  size_t place = 0;  // among those that wait: the first of equals is next
  const Request* next = nullptr;
  // The last is next, by std::priority_queue's order.
  bool operator<(const ReplayedLine& other) const {
    return std::tie(service, place) > std::tie(other.service, other.place);
  }
};

}  // namespace

WaitQueue::WaitQueue(uint32_t max_entries, uint64_t max_bytes)
    : max_entries_(max_entries), max_bytes_(max_bytes) {}

bool WaitQueue::HasRoom(uint64_t bytes) const {
  return entries_ < max_entries_ && bytes <= max_bytes_ - bytes_;
}

bool WaitQueue::HasRoomWithout(const Request& gone, uint64_t bytes) const {
  return bytes <= max_bytes_ - (bytes_ - gone.queue_bytes);
}

void WaitQueue::TakeRoom(Request& request, uint64_t bytes) {
  KVERN_CHECK(HasRoom(bytes));
  ++entries_;
  bytes_ += bytes;
  request.queue_bytes = bytes;
}

bool WaitQueue::ResizeRoom(Request& request, uint64_t bytes) {
  uint64_t others = bytes_ - request.queue_bytes;
  if (bytes > max_bytes_ - others) return false;
  bytes_ = others + bytes;
  request.queue_bytes = bytes;
  return true;
}

void WaitQueue::GiveRoomBack(Request& request) {
  KVERN_CHECK(entries_ > 0);
  KVERN_CHECK_LE(request.queue_bytes, bytes_);
  --entries_;
  bytes_ -= request.queue_bytes;
  request.queue_bytes = 0;
}

void WaitQueue::BeginHolding(Tenant& tenant, size_t band) {
  if (tenant.lines[band].held() == 0) holding_[band].push_back(&tenant);
}

void WaitQueue::EndHolding(Tenant& tenant, size_t band) {
  if (tenant.lines[band].held() == 0) std::erase(holding_[band], &tenant);
}

void WaitQueue::PushText(Request& request) {
  Tenant& tenant = *request.tenant;
  BeginHolding(tenant, request.band);
  Line& line = tenant.lines[request.band];
  request.previous_in_line = line.newest_text;
  request.next_in_line = nullptr;
  if (line.newest_text != nullptr) line.newest_text->next_in_line = &request;
  line.newest_text = &request;
  ++line.texts;
  ++tenant.texts;
}

void WaitQueue::EndText(Request& request) {
  Tenant& tenant = *request.tenant;
  Line& line = tenant.lines[request.band];
  Request* previous = request.previous_in_line;
  Request* next = request.next_in_line;
  if (previous != nullptr) previous->next_in_line = next;
  (next == nullptr ? line.newest_text : next->previous_in_line) = previous;
  request.previous_in_line = request.next_in_line = nullptr;
  --line.texts;
  --tenant.texts;
  EndHolding(tenant, request.band);
}

void WaitQueue::RemoveText(Request& request) {
  EndText(request);
  GiveRoomBack(request);
}

void WaitQueue::Push(Request& request) {
  Tenant& tenant = *request.tenant;
  BeginHolding(tenant, request.band);
  Line& line = tenant.lines[request.band];
  std::vector<Tenant*>& active = active_[request.band];
  if (line.entries == 0) {
    uint64_t least = active.empty() ? 0 : UINT64_MAX;
    for (const Tenant* other : active) {
      least = std::min(least, other->lines[request.band].service);
    }
    line.service = std::max({line.service, least, level_[request.band]});
    active.push_back(&tenant);
  }
  request.previous_in_line = line.last;
  request.next_in_line = nullptr;
  (line.last == nullptr ? line.first : line.last->next_in_line) = &request;
  line.last = &request;
  ++line.entries;
  line.blocks += request.expected_blocks;
  line.worst_blocks += request.need.tokens_pool();
  line.prompt_tokens += request.prompt_tokens;
  ++tenant.waiting;
  ++size_;
  expected_blocks_ += request.expected_blocks;
}

void WaitQueue::AdvanceTo(const Request& head) {
  uint64_t& level = level_[head.band];
  level = std::max(level, head.tenant->lines[head.band].service);
}

void WaitQueue::Bypass(Request& larger, uint64_t most_blocks, const Request& head) {
  AdvanceTo(head);
  larger.bypassed = true;
  const uint64_t service = head.tenant->lines[head.band].service;
  for (Tenant* tenant : active_[head.band]) {
    Line& line = tenant->lines[head.band];
    if (FirstWithin(most_blocks, line) == nullptr) line.service = std::max(line.service, service);
  }
}

void WaitQueue::Remove(Request& request) {
  Tenant& tenant = *request.tenant;
  Line& line = tenant.lines[request.band];
  Request* previous = request.previous_in_line;
  Request* next = request.next_in_line;
  (previous == nullptr ? line.first : previous->next_in_line) = next;
  (next == nullptr ? line.last : next->previous_in_line) = previous;
  request.previous_in_line = request.next_in_line = nullptr;
  --line.entries;
  line.blocks -= request.expected_blocks;
  line.worst_blocks -= request.need.tokens_pool();
  line.prompt_tokens -= request.prompt_tokens;
  --tenant.waiting;
  --size_;
  expected_blocks_ -= request.expected_blocks;
  EndHolding(tenant, request.band);
  // Bypass left several with the same service: who was served is the last of them.
  if (line.entries == 0 || request.bypassed) std::erase(active_[request.band], &tenant);
  if (line.entries > 0 && request.bypassed) active_[request.band].push_back(&tenant);
  GiveRoomBack(request);
}

std::vector<Tenant*> WaitQueue::ByService(size_t band) const {
  std::vector<Tenant*> order = active_[band];
  std::stable_sort(order.begin(), order.end(), [band](const Tenant* a, const Tenant* b) {
    return a->lines[band].service < b->lines[band].service;
  });
  return order;
}

const Request* WaitQueue::FirstWithin(uint64_t most_blocks, const Line& line) {
  const Request* r = line.first;
  for (size_t i = 0; r != nullptr && i < kLookedAt; ++i, r = r->next_in_line) {
    if (r->need.tokens_pool() <= most_blocks) return r;
  }
  return nullptr;
}

void WaitQueue::AppendLine(const Line& line, size_t max, uint64_t most_blocks,
                           std::vector<Request*>& out) {
  Request* r = line.first;
  for (size_t i = 0; r != nullptr && i < kLookedAt && out.size() < max; ++i, r = r->next_in_line) {
    if (r->need.tokens_pool() <= most_blocks) out.push_back(r);
  }
}

Ahead WaitQueue::SumOf(const Line& line, uint64_t most_blocks, const Request* end) {
  if (most_blocks == kAnySize && end == nullptr) {
    return {line.blocks, line.prompt_tokens, line.worst_blocks};
  }
  Ahead sum;
  for (const Request* r = line.first; r != end; r = r->next_in_line) {
    if (r->need.tokens_pool() > most_blocks) continue;
    sum.blocks += r->expected_blocks;
    sum.prompt_tokens += r->prompt_tokens;
    sum.own_worst_blocks += r->need.tokens_pool();
  }
  return sum;
}

Ahead WaitQueue::AheadOf(const Request& request, uint64_t most_blocks) const {
  const Tenant& tenant = *request.tenant;
  size_t band = request.band;
  const Request* end = request.phase == Phase::kQueued ? &request : nullptr;
  Ahead ahead = SumOf(tenant.lines[band], most_blocks, end);
  ahead.blocks += request.expected_blocks;
  ahead.prompt_tokens += request.prompt_tokens;
  ahead.own_worst_blocks += request.need.tokens_pool();
  uint64_t fair_blocks = ahead.blocks;
  uint64_t fair_tokens = ahead.prompt_tokens;
  for (size_t b = band; b < kBands; ++b) {
    for (const Tenant* other : active_[b]) {
      if (b == band && other == &tenant) continue;
      const Ahead line = SumOf(other->lines[b], most_blocks);
      if (b > band) {
        ahead.blocks += line.blocks;
        ahead.prompt_tokens += line.prompt_tokens;
        if (other == &tenant) ahead.own_worst_blocks += line.own_worst_blocks;
      } else {
        uint64_t weight = other->config.weight;
        ahead.blocks += std::min(line.blocks, fair_blocks * weight / tenant.config.weight);
        ahead.prompt_tokens +=
            std::min(line.prompt_tokens, fair_tokens * weight / tenant.config.weight);
      }
    }
  }
  return ahead;
}

Request* WaitQueue::NewestOf(const Line& line) {
  return line.newest_text != nullptr ? line.newest_text : line.last;
}

Request* WaitQueue::Excess(const Tenant& tenant, size_t band) const {
  for (size_t b = 0; b < band; ++b) {
    Request* newest = nullptr;
    for (const Tenant* other : holding_[b]) {
      Request* its = NewestOf(other->lines[b]);
      if (newest == nullptr || its->arrival > newest->arrival) newest = its;
    }
    if (newest != nullptr) return newest;
  }
  // Compared as entries / weight, by cross-multiplication.
  const Tenant* most = nullptr;
  for (const Tenant* other : holding_[band]) {
    if (most == nullptr || uint64_t{other->lines[band].held()} * most->config.weight >
                               uint64_t{most->lines[band].held()} * other->config.weight) {
      most = other;
    }
  }
  if (most == nullptr || most == &tenant) return nullptr;
  bool more = uint64_t{most->lines[band].held()} * tenant.config.weight >
              (uint64_t{tenant.lines[band].held()} + 1) * most->config.weight;
  return more ? NewestOf(most->lines[band]) : nullptr;
}

uint64_t WaitQueue::ShareOf(const Tenant& tenant) const {
  uint64_t weights = tenant.config.weight;
  for (size_t band = 0; band < kBands; ++band) {
    for (const Tenant* other : holding_[band]) {
      bool counted = other == &tenant;
      for (size_t b = 0; b < band; ++b) counted = counted || other->lines[b].held() > 0;
      if (!counted) weights += other->config.weight;
    }
  }
  return max_entries_ * uint64_t{tenant.config.weight} / weights;
}

size_t WaitQueue::Position(const Request& request, const May& may) const {
  size_t position = 0;
  std::map<const Tenant*, uint64_t> taken;  // blocks of what was replayed
  for (size_t band = kBands; band-- > request.band;) {
    std::priority_queue<ReplayedLine> lines;
    for (size_t i = 0; i < active_[band].size(); ++i) {
      const Line& line = active_[band][i]->lines[band];
      lines.push({line.service, i, line.first});
    }
    while (!lines.empty()) {
      ReplayedLine line = lines.top();
      lines.pop();
      const Request& next = *line.next;
      if (&next == &request) return position;
      const Tenant& tenant = *next.tenant;
      bool own = &tenant == request.tenant && band == request.band;
      if (!own && !may(next, taken[&tenant])) continue;
      taken[&tenant] += next.need.tokens_pool();
      ++position;
      line.service += ServiceOf(tenant, next.prompt_tokens);
      line.next = next.next_in_line;
      if (line.next != nullptr) lines.push(line);
    }
  }
  KVERN_CHECK(false) << request.id.ToString() << " is not in line";
  return position;
}

Time WaitQueue::OldestArrival() const {
  Time oldest = kTimeMax;
  for (size_t band = 0; band < kBands; ++band) {
    for (const Tenant* tenant : active_[band]) {
      oldest = std::min(oldest, tenant->lines[band].first->arrival);
    }
  }
  return oldest;
}

uint64_t WaitQueue::AuditLine(const Line& line) {
  uint32_t entries = 0;
  uint64_t blocks = 0;
  uint64_t worst_blocks = 0;
  uint64_t prompt_tokens = 0;
  for (const Request* r = line.first; r != nullptr; r = r->next_in_line) {
    ++entries;
    blocks += r->expected_blocks;
    worst_blocks += r->need.tokens_pool();
    prompt_tokens += r->prompt_tokens;
  }
  KVERN_CHECK(entries > 0);
  KVERN_CHECK_EQ(entries, line.entries);
  KVERN_CHECK_EQ(blocks, line.blocks);
  KVERN_CHECK_EQ(worst_blocks, line.worst_blocks);
  KVERN_CHECK_EQ(prompt_tokens, line.prompt_tokens);
  return blocks;
}

void WaitQueue::Audit() const {
  KVERN_CHECK_LE(size_, entries_);
  KVERN_CHECK_LE(entries_, max_entries_);
  KVERN_CHECK_LE(bytes_, max_bytes_);
  uint64_t queued_bytes = 0;
  size_t queued = 0;
  ForEach([&](const Request& request) {
    KVERN_CHECK(request.phase == Phase::kQueued) << "request " << request.id.ToString();
    KVERN_CHECK(!request.answered);
    queued_bytes += request.queue_bytes;
    ++queued;
  });
  KVERN_CHECK_LE(queued_bytes, bytes_);
  KVERN_CHECK_EQ(queued, size_);
  uint64_t expected = 0;
  size_t held = 0;
  for (size_t band = 0; band < kBands; ++band) {
    for (const Tenant* tenant : active_[band]) expected += AuditLine(tenant->lines[band]);
    for (const Tenant* tenant : holding_[band]) held += tenant->lines[band].held();
  }
  KVERN_CHECK_EQ(expected, expected_blocks_);
  KVERN_CHECK_LE(held, entries_);
}

}  // namespace kvern::router
