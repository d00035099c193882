#include <nccl.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "kernels/simt/runtime/enqueue.h"
#include "kernels/simt/runtime/nccl_group.h"
#include "kernels/simt/runtime/state.h"
#include "kernels/simt/runtime/stream.h"

namespace kvern::simt {
namespace {

// Shared by the handle and by what its streams still have to do.
struct CommState {
  std::atomic<bool> aborted{false};
  std::mutex mutex;
  ncclResult_t status = ncclInProgress;
  std::string error;
  std::shared_ptr<NcclGroup> group;  // null until joined
};

void Fail(CommState& state, const NcclFailure& failure) {
  const std::lock_guard lock(state.mutex);
  if (state.status != ncclSuccess && state.status != ncclInProgress) return;
  state.status = failure.code == ncclSuccess ? ncclInternalError : failure.code;
  state.error = failure.text;
}

void JoinGroup(const std::shared_ptr<CommState>& state, const ncclUniqueId& id, int ranks, int rank,
               int device) {
  NcclFailure failure;
  std::shared_ptr<NcclGroup> group =
      NcclGroup::Join(id, ranks, rank, device, state->aborted, failure);
  if (group == nullptr) {
    Fail(*state, failure);
    return;
  }
  const std::lock_guard lock(state->mutex);
  state->group = std::move(group);
  state->status = ncclSuccess;
}

// An abort that has not even told its kernels to end yet, for as long as a test wants it so.
void BeginAbort(int device) {
  DeviceState& state = Device(device);
  std::unique_lock lock(state.mutex);
  ++state.aborts_begun;
  state.abort_let_go.wait(lock, [&] { return !state.aborts_held; });
}

void EndAbort(int device) {
  DeviceState& state = Device(device);
  const std::lock_guard lock(state.mutex);
  ++state.aborts_ended;
}

// On the stream's thread.
void RunCall(CommState& state, const NcclCall& call, const void* send, void* receive) {
  std::shared_ptr<NcclGroup> group;
  {
    const std::lock_guard lock(state.mutex);
    const bool usable = state.status == ncclSuccess || state.status == ncclInProgress;
    if (!usable || state.aborted.load()) return;
    group = state.group;
  }
  NcclFailure failure;
  if (!group->Run(call, send, receive, state.aborted, failure)) Fail(state, failure);
}

}  // namespace
}  // namespace kvern::simt

inline namespace kvern_emulated_cuda {

struct ncclComm {
  std::shared_ptr<kvern::simt::CommState> state = std::make_shared<kvern::simt::CommState>();
  // Held by every graph with a collective of this communicator.
  std::shared_ptr<const int> recorded = std::make_shared<const int>(0);
  std::thread joining;
  int rank = 0;
  int ranks = 0;
  int device = 0;
};

namespace {

ncclResult_t Enqueue(ncclComm_t comm, const kvern::simt::NcclCall& call, const void* send,
                     void* receive, cudaStream_t stream) {
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->device != kvern::simt::CurrentDevice()) return ncclInvalidUsage;
  {
    const std::lock_guard lock(comm->state->mutex);
    if (comm->state->group == nullptr) return ncclInvalidUsage;  // not initialised
    // "Attempt to use communicator before the previous operation returned ncclSuccess".
    if (comm->state->status == ncclInProgress) return ncclInvalidArgument;
    if (comm->state->status != ncclSuccess) return comm->state->status;
    // A non-blocking communicator hands every collective to a thread of its own.
    comm->state->status = ncclInProgress;
  }
  const cudaError_t error =
      kvern::simt::EnqueueTask(stream, [state = comm->state, call, send, receive] {
        kvern::simt::RunCall(*state, call, send, receive);
      });
  if (error != cudaSuccess) return ncclUnhandledCudaError;
  kvern::simt::HoldInGraph(stream, comm->recorded);
  return ncclInProgress;
}

// The real one polls until all graphs that hold its collectives are destroyed (commDestroySync,
// since 2.26): for ever, where that is left to whoever comes after this call.
void CheckNoGraphIsLeft(const ncclComm& comm) {
  if (comm.recorded.use_count() == 1) return;
  std::fprintf(
      stderr,
      "emulated NCCL: the communicator of rank %d of %d, device %d, ends before the graphs "
      "that its collectives are recorded in (%ld are left): NCCL would wait for them\n",
      comm.rank, comm.ranks, comm.device, comm.recorded.use_count() - 1);
  std::abort();
}

bool IsKnown(ncclDataType_t type) {
  return type == ncclInt8 || type == ncclUint8 || type == ncclFloat32;
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) {
  if (comm == nullptr) return "";
  const std::lock_guard lock(comm->state->mutex);
  return comm->state->error.c_str();  // set once
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (id == nullptr) return ncclInvalidArgument;
  return kvern::simt::NcclGroup::MakeId(*id) ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (comm == nullptr || config == nullptr || config->size != sizeof(ncclConfig_t) ||
      config->blocking != 0 || ranks < 1 || ranks > kvern::simt::kMaxNcclRanks || rank < 0 ||
      rank >= ranks) {
    return ncclInvalidArgument;
  }
  if (kvern::simt::Broken() != cudaSuccess) return ncclUnhandledCudaError;
  auto made = std::make_unique<ncclComm>();
  made->rank = rank;
  made->ranks = ranks;
  made->device = kvern::simt::CurrentDevice();
  made->joining = std::thread([state = made->state, id, ranks, rank, device = made->device] {
    kvern::simt::JoinGroup(state, id, ranks, rank, device);
  });
  *comm = made.release();
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (comm == nullptr || error == nullptr) return ncclInvalidArgument;
  const std::lock_guard lock(comm->state->mutex);
  *error = comm->state->status;
  // Enqueuing takes a moment; then the status is what it was.
  const bool joined = comm->state->group != nullptr;
  if (comm->state->status == ncclInProgress && joined) comm->state->status = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclInvalidArgument;
  CheckNoGraphIsLeft(*comm);
  const int device = comm->device;
  kvern::simt::BeginAbort(device);
  comm->state->aborted = true;
  std::shared_ptr<kvern::simt::NcclGroup> group;
  {
    const std::lock_guard lock(comm->state->mutex);
    group = comm->state->group;
  }
  if (group != nullptr) group->Ring();
  comm->joining.join();
  delete comm;
  kvern::simt::EndAbort(device);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclInvalidArgument;
  CheckNoGraphIsLeft(*comm);
  comm->joining.join();  // without end when a peer never comes, as the real one
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32 || op != ncclSum) return ncclInvalidArgument;
  return Enqueue(comm, {kvern::simt::NcclCall::kAllReduce, ncclFloat32, count, 0, 0}, send, receive,
                 stream);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  if (!IsKnown(type)) return ncclInvalidArgument;
  return Enqueue(comm,
                 {kvern::simt::NcclCall::kAllGather, static_cast<uint32_t>(type), send_count, 0, 0},
                 send, receive, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  if (!IsKnown(type) || comm == nullptr || root < 0 || root >= comm->ranks) {
    return ncclInvalidArgument;
  }
  return Enqueue(comm,
                 {kvern::simt::NcclCall::kBroadcast, static_cast<uint32_t>(type), count, root, 0},
                 send, receive, stream);
}

}  // namespace kvern_emulated_cuda
