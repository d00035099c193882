#include "worker/core/group_state.h"

#include <algorithm>

#include "cluster/base/check.h"

namespace kvern {
namespace {

// Where a request of this age is, or belongs, in a list ordered by age.
template <typename List>
auto Place(List& list, const Request& request) {
  return std::lower_bound(list.begin(), list.end(), &request,
                          [](const Request* a, const Request* b) { return a->age < b->age; });
}

template <typename List>
void Remove(List& list, const Request& request) {
  auto it = Place(list, request);
  KVERN_CHECK(it != list.end() && *it == &request);
  list.erase(it);
}

}  // namespace

const Request* GroupState::Oldest() const {
  const Request* oldest = started.empty() ? nullptr : started.front();
  for (const std::deque<Request*>* list : {&waiting, &waiting_guaranteed}) {
    if (list->empty()) continue;
    if (oldest == nullptr || list->front()->age < oldest->age) oldest = list->front();
  }
  return oldest;
}

void GroupState::AddWaiting(Request& request) {
  bool by_class = request.dispatch.service_class == ServiceClass::kGuaranteed;
  std::deque<Request*>& list = by_class ? waiting_guaranteed : waiting;
  list.insert(Place(list, request), &request);
  not_started += static_cast<uint32_t>(request.live.size());
}

BlockId GroupState::Allocate(Request& request) {
  KVERN_CHECK_LT(request.held, request.committed);
  ++request.held;
  return pool.Allocate();
}

void GroupState::Unref(Request& request, BlockId block) {
  pool.Unref(block);
  if (pool.refs(block) == 0) --request.held;  // Requests do not share blocks.
}

void GroupState::DropSequence(Sequence& sequence) {
  for (BlockId block : sequence.table) Unref(*sequence.request, block);
  sequence.table.clear();
  if (!sequence.slot) return;
  by_slot[*sequence.slot] = nullptr;
  to_release.push_back(*sequence.slot);
  sequence.slot.reset();
}

void GroupState::EndSequence(Request& request, size_t index) {
  KVERN_CHECK_LT(index, request.live.size());
  DropSequence(*request.live[index]);
  if (!in_flight.empty()) {
    request.live[index]->request = nullptr;
    in_flight[in_flight.size() - 1].over.push_back(std::move(request.live[index]));
  }
  request.live.erase(request.live.begin() + static_cast<std::ptrdiff_t>(index));
  --running;
  if (!request.started) --not_started;
  if (!request.live.empty()) return;
  bool by_class = request.dispatch.service_class == ServiceClass::kGuaranteed;
  reserved -= request.reserved;
  if (by_class) reserved_by_class -= request.reserved;
  if (request.started) {
    committed -= request.committed;
    if (request.guaranteed) owed -= request.reserved;
    Remove(started, request);
  } else {
    Remove(by_class ? waiting_guaranteed : waiting, request);
  }
  requests.Erase(RequestId(request.dispatch.request_id));
}

}  // namespace kvern
