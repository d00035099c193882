// The part of NCCL that this project uses, for emulated devices: the real names, signatures and
// values (NCCL 2.28). Ranks are threads of one process or processes of one host.
//
// As with the real library, only non-blocking communicators are worth using (a blocking call waits
// for peers without end), the order of a sum changes with its size, a rank that hangs is never
// reported, every error but ncclInvalidArgument is final for the communicator, and a collective
// answers ncclInProgress: until ncclCommGetAsyncError says ncclSuccess it is not in the stream, and
// the next one is ncclInvalidArgument. Where the real one would wait for ever for a graph that
// holds its collectives, ncclCommAbort and ncclCommDestroy end the process and say so.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstddef>

#define NCCL_VERSION_CODE 22809
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_UNDEF_INT INT_MIN

inline namespace kvern_emulated_cuda {

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};
enum ncclDataType_t { ncclInt8 = 0, ncclUint8 = 1, ncclFloat32 = 7, ncclFloat = 7 };
enum ncclRedOp_t { ncclSum = 0 };

struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};
struct ncclConfig_t {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};
#define NCCL_CONFIG_INITIALIZER \
  { sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT }

struct ncclComm;
using ncclComm_t = ncclComm*;

const char* ncclGetErrorString(ncclResult_t result);
// Of the newest error of `comm`, more than the code says.
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
// Non-blocking (config->blocking = 0) only, others are ncclInvalidArgument: answers ncclInProgress,
// ncclCommGetAsyncError says when it is done.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream);

}  // namespace kvern_emulated_cuda
