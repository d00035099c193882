#include "worker/comm/nccl/nccl_communicator.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cluster/base/check.h"
#include "cluster/base/clock.h"
#include "cluster/base/threads.h"
#include "kernels/cuda/launch.h"

namespace kvern::inline KVERN_GPU_BUILD {
namespace {

// An ordered sum gathers pieces of this many values of each rank: 4 MiB.
constexpr size_t kPieceValues = 1 << 20;
// How long an abort may take before the process ends instead: aborts that never return are on
// record (NCCL's issues 549, 829, 1013), and a group that has failed ends as a whole anyway.
constexpr auto kAbortPatience = std::chrono::seconds(2);
// And how long the end of one that works: unmapping what many GPUs share takes seconds, and nobody
// waits for this rank.
constexpr auto kLeavePatience = std::chrono::seconds(20);

// What each rank tells the others of its attempt to connect.
struct Report {
  int32_t failed;
  char reason[252];
};

// `comm`: whose last error has more to say; null: none.
absl::Status ResultStatus(ncclResult_t result, ncclComm_t comm, const char* what) {
  if (result == ncclSuccess) return absl::OkStatus();
  std::string detail = ncclGetErrorString(result);
  const char* last = ncclGetLastError(comm);
  if (last != nullptr && *last != '\0') absl::StrAppend(&detail, ": ", last);
  // NCCL says that CUDA failed, and not how.
  const cudaError_t cuda = cudaPeekAtLastError();
  if (result == ncclUnhandledCudaError && cuda != cudaSuccess) {
    absl::StrAppend(&detail, ": ", cudaGetErrorName(cuda));
  }
  return Unavailable("NCCL, ", what, ": ", detail);
}

// Returns when `comm` is gone. One that is not within `patience` still uses what it was given, so
// the process ends then, at once and with nothing given back; whoever leaves says who it is, and
// why it left.
void AbortWithin(std::chrono::seconds patience, ncclComm_t comm, int device,
                 const std::string& whoever) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  absl::StatusOr<std::thread> abort = StartThread([&] {
    cudaSetDevice(device);
    ncclCommAbort(comm);
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  });
  if (!abort.ok()) {  // on this one it might never return
    std::fprintf(stderr, "kvern: NCCL cannot be aborted, this process ends: %s: %s\n",
                 std::string(abort.status().message()).c_str(), whoever.c_str());
    _exit(1);
  }
  std::unique_lock lock(mutex);
  if (!changed.wait_for(lock, patience, [&] { return done; })) {
    std::fprintf(stderr, "kvern: NCCL did not abort within %lld s, this process ends: %s\n",
                 static_cast<long long>(patience.count()), whoever.c_str());
    _exit(1);
  }
  lock.unlock();
  abort->join();
}

}  // namespace

absl::StatusOr<std::vector<uint8_t>> NcclCommunicator::NewId() {
  ncclUniqueId id = {};
  KVERN_RETURN_IF_ERROR(ResultStatus(ncclGetUniqueId(&id), nullptr, "making a unique id"));
  return std::vector<uint8_t>(std::begin(id.internal), std::end(id.internal));
}

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::Meet(
    CudaContext& context, std::unique_ptr<Communicator> control, std::span<const uint8_t> id,
    std::unique_ptr<Buffer> gathered, Duration timeout) {
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(context, std::move(control), std::move(gathered)));
  KVERN_CHECK(made->gathered_ == nullptr ||
              made->gathered_->bytes() >= GatheredBytes(made->world()));
  made->met_ = made->MeetPeers(id, timeout);
  KVERN_RETURN_IF_ERROR(made->met_);
  context.SetWatch([self = made.get()](int64_t waited) { return self->Look(waited); });
  return std::unique_ptr<Communicator>(std::move(made));
}

absl::Status NcclCommunicator::MeetPeers(std::span<const uint8_t> id, Duration timeout) {
  Report mine = {};
  const absl::Status connected = Connect(id, timeout);
  mine.failed = connected.ok() ? 0 : 1;
  std::snprintf(mine.reason, sizeof(mine.reason), "%s", std::string(connected.message()).c_str());
  // Who fails at once waits for those who wait for it in Connect: its reason is what they are to
  // tell. A rank that never comes is named by the other communicator.
  control_->SetTimeout(2 * timeout);
  std::vector<Report> all(static_cast<size_t>(world()));
  const absl::Status told = control_->AllGather(&mine, sizeof(mine), all.data());
  std::string failures;
  if (!told.ok()) absl::StrAppend(&failures, "; ", told.message());
  for (size_t r = 0; told.ok() && r < all.size(); ++r) {
    if (all[r].failed != 0) absl::StrAppend(&failures, "; rank ", r, ": ", all[r].reason);
  }
  if (failures.empty()) return absl::OkStatus();
  const std::string text = absl::StrCat("NCCL did not connect the ranks", failures);
  return absl::IsDeadlineExceeded(connected) ? absl::DeadlineExceededError(text)
                                             : absl::UnavailableError(text);
}

size_t NcclCommunicator::GatheredBytes(int world) {
  return kPieceValues * sizeof(float) * static_cast<size_t>(world);
}

NcclCommunicator::~NcclCommunicator() {
  context_.SetWatch(nullptr);
  if (comm_ == nullptr) return;
  absl::Status left = met_.ok() ? context_.status() : met_;
  if (left.ok() && aborted_.load()) left = Unavailable("the group was aborted");
  const absl::string_view why = left.ok() ? "which had nothing left to do" : left.message();
  AbortWithin(left.ok() ? kLeavePatience : kAbortPatience, comm_, context_.index(),
              absl::StrCat("rank ", rank(), " of ", world(), ", ", why));
}

absl::Status NcclCommunicator::Connect(std::span<const uint8_t> id, Duration timeout) {
  ncclUniqueId unique_id = {};
  if (id.size() != sizeof(unique_id.internal)) {
    return InvalidArgument("the id to connect by has ", id.size(), " bytes, NCCL's has ",
                           sizeof(unique_id.internal));
  }
  std::memcpy(unique_id.internal, id.data(), id.size());
  context_.Enter();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result = ncclCommInitRankConfig(&comm_, world(), unique_id, rank(), &config);
  if (result != ncclSuccess && result != ncclInProgress) return CallStatus(result, "connecting");
  return Settle(timeout, "connecting");
}

absl::Status NcclCommunicator::Settle(Duration timeout, const char* what) {
  const Time deadline = timeout == kTimeMax ? kTimeMax : MonotonicNow() + timeout;
  while (true) {
    ncclResult_t state = ncclSuccess;
    KVERN_RETURN_IF_ERROR(CallStatus(ncclCommGetAsyncError(comm_, &state), "asking for errors"));
    if (state != ncclInProgress) return CallStatus(state, what);
    if (aborted_.load()) return Unavailable("the group was aborted");
    KVERN_RETURN_IF_ERROR(control_->CheckPeers());
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("NCCL, ", what, ": not done within ", timeout / kMillisecond, " ms"));
    }
    sched_yield();
  }
}

absl::Status NcclCommunicator::CallStatus(ncclResult_t result, const char* what) {
  return ResultStatus(result, comm_, what);
}

absl::Status NcclCommunicator::Called(ncclResult_t result, const char* what) {
  return result == ncclInProgress ? Settle(timeout_.load(), what) : CallStatus(result, what);
}

absl::Status NcclCommunicator::Look(Duration waited) {
  if (aborted_.load()) return Unavailable("the group was aborted");
  ncclResult_t state = ncclSuccess;
  KVERN_RETURN_IF_ERROR(CallStatus(ncclCommGetAsyncError(comm_, &state), "asking for errors"));
  if (state != ncclInProgress) KVERN_RETURN_IF_ERROR(CallStatus(state, "a sum over the ranks"));
  // Of a wait that is over nothing depends on the peers.
  if (waited > 0) KVERN_RETURN_IF_ERROR(control_->CheckPeers());
  const Duration timeout = timeout_.load();
  if (waited < timeout) return absl::OkStatus();
  return Unavailable("a step with sums over the ranks did not end within ", timeout / kMillisecond,
                     " ms: some rank hangs");
}

absl::Status NcclCommunicator::AllReduceSum(Tensor data) {
  KVERN_CHECK(data.dtype == DType::kF32 && (data.stride == data.cols || data.rows <= 1));
  KVERN_RETURN_IF_ERROR(context_.status());
  if (aborted_.load()) return Unavailable("the group was aborted");
  const auto count = static_cast<size_t>(data.rows * data.cols);
  if (count == 0 || world() == 1) return absl::OkStatus();
  if (gathered_ != nullptr) return SumInOrder(data.f32(), count);
  const ncclResult_t result =
      ncclAllReduce(data.data, data.data, count, ncclFloat32, ncclSum, comm_, context_.stream());
  return Called(result, "a sum over the ranks");
}

absl::Status NcclCommunicator::SumInOrder(float* data, size_t count) {
  for (size_t done = 0; done < count;) {
    const size_t piece = std::min(kPieceValues, count - done);
    const ncclResult_t result =
        ncclAllGather(data + done, gathered_->data(), piece, ncclFloat32, comm_, context_.stream());
    KVERN_RETURN_IF_ERROR(Called(result, "gathering from the ranks"));
    gpu::AddOrderedArgs args;
    args.in = static_cast<const float*>(gathered_->data());
    args.ranks = world();
    args.count = static_cast<int64_t>(piece);
    args.out = data + done;
    KVERN_RETURN_IF_ERROR(
        CudaStatus(gpu::LaunchAddOrdered(args, context_.stream()), "add_ordered"));
    done += piece;
  }
  return absl::OkStatus();
}

void NcclCommunicator::SetTimeout(Duration timeout) {
  timeout_ = timeout;
  control_->SetTimeout(timeout);
}

void NcclCommunicator::Abort() {
  aborted_ = true;
  control_->Abort();
}

}  // namespace kvern::inline KVERN_GPU_BUILD
