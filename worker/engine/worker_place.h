// Which rank of which group a process is, where the command line leaves it open: from what those
// who start processes on clusters put into the environment.
#pragma once

#include <cstdint>
#include <string>

#include "cluster/base/options.h"
#include "cluster/base/status.h"

namespace kvern {

// More GPUs than a host has.
inline constexpr int64_t kMaxGpuIndex = 4095;

struct WorkerPlace {
  std::string router;  // empty: not said
  int64_t rank = -1;   // -1: not said
  int64_t world = -1;
  int64_t gpu_index = -1;  // of this host's GPUs
};

// Fills in what is not said. The first variable that is set counts, in this order:
//   rank    RANK, LWS_WORKER_INDEX, SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK, else 0
//   world   WORLD_SIZE, LWS_GROUP_SIZE, SLURM_NTASKS, OMPI_COMM_WORLD_SIZE, PMI_SIZE, else 1
//   GPU     0 if CUDA_VISIBLE_DEVICES names one alone, LOCAL_RANK, SLURM_LOCALID,
//           OMPI_COMM_WORLD_LOCAL_RANK, else the rank
//   router  tcp://MASTER_ADDR:MASTER_PORT, else an error
// InvalidArgument names the option or the variable, the value and what is allowed.
absl::Status CompletePlace(const Options::Lookup& lookup, WorkerPlace& place);

}  // namespace kvern
