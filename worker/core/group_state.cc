#include "worker/core/group_state.h"

#include <algorithm>

#include "cluster/base/check.h"

namespace kvern {

void GroupState::DropSequence(Sequence& sequence) {
  for (BlockId block : sequence.table) pool.Unref(block);
  sequence.table.clear();
  if (!sequence.slot) return;
  by_slot[*sequence.slot] = nullptr;
  to_release.push_back(*sequence.slot);
  sequence.slot.reset();
}

void GroupState::EndSequence(Request& request, size_t index) {
  KVERN_CHECK_LT(index, request.live.size());
  DropSequence(*request.live[index]);
  request.live.erase(request.live.begin() + static_cast<std::ptrdiff_t>(index));
  --running;
  if (!request.live.empty()) return;
  reserved -= request.reserved;
  order.erase(std::find(order.begin(), order.end(), &request));
  requests.Erase(RequestId(request.dispatch.request_id));
}

}  // namespace kvern
