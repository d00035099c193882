#include "worker/engine/plan_channel.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "schemas/codec.h"

namespace kvern {
namespace {

// An order, or its beginning: most plans fit into it, so that most orders take one broadcast.
struct Frame {
  uint64_t bytes = 0;   // of the whole plan; 0: there is none
  uint64_t finish = 0;  // 1: finish a step. With neither it is a keep-alive.
  std::byte head[1008] = {};
};

}  // namespace

absl::Status PlanChannel::Send(const StepPlan& plan, bool finish) {
  if (comm_->world() == 1) return absl::OkStatus();
  std::string encoded = EncodePlan(plan);
  if (encoded.size() > kMaxPlanBytes) {
    return Internal("plan of step ", plan.step_id, " has ", encoded.size(), " bytes, limit ",
                    kMaxPlanBytes);
  }
  Frame frame;
  frame.bytes = encoded.size();
  frame.finish = finish ? 1 : 0;
  size_t head = std::min(encoded.size(), sizeof(frame.head));
  std::memcpy(frame.head, encoded.data(), head);
  KVERN_RETURN_IF_ERROR(comm_->Broadcast(&frame, sizeof(frame), 0));
  if (head == encoded.size()) return absl::OkStatus();
  return comm_->Broadcast(encoded.data() + head, encoded.size() - head, 0);
}

absl::Status PlanChannel::SendFinish() {
  if (comm_->world() == 1) return absl::OkStatus();
  Frame frame;
  frame.finish = 1;
  return comm_->Broadcast(&frame, sizeof(frame), 0);
}

absl::Status PlanChannel::KeepAlive() {
  if (comm_->world() == 1) return absl::OkStatus();
  Frame frame;
  KVERN_RETURN_IF_ERROR(comm_->Broadcast(&frame, sizeof(frame), 0));
  return comm_->Barrier();
}

absl::StatusOr<PlanChannel::Order> PlanChannel::Receive() {
  Frame frame;
  KVERN_RETURN_IF_ERROR(comm_->Broadcast(&frame, sizeof(frame), 0));
  Order order;
  order.finish = frame.finish != 0;
  if (frame.bytes == 0) {
    if (!order.finish) KVERN_RETURN_IF_ERROR(comm_->Barrier());
    return order;
  }
  if (frame.bytes > kMaxPlanBytes) {
    return Internal("a plan of ", frame.bytes, " bytes was announced, limit ", kMaxPlanBytes);
  }
  size_t head = std::min<size_t>(frame.bytes, sizeof(frame.head));
  bytes_.assign(frame.head, frame.head + head);
  bytes_.resize(frame.bytes);
  if (head < frame.bytes) {
    KVERN_RETURN_IF_ERROR(comm_->Broadcast(bytes_.data() + head, frame.bytes - head, 0));
  }
  Decoded<StepPlan> decoded = DecodePlan(bytes_);
  if (!decoded.ok()) return Internal("the plan after step ", last_step_, ": ", decoded.error);
  if (decoded.message.step_id != last_step_ + 1) {
    return Internal("plan of step ", decoded.message.step_id, " came after step ", last_step_);
  }
  last_step_ = decoded.message.step_id;
  order.plan = std::move(decoded.message);
  return order;
}

}  // namespace kvern
