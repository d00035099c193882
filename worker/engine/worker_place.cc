#include "worker/engine/worker_place.h"

#include <cstring>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "schemas/worker_messages.h"

namespace kvern {
namespace {

const char* Get(const Options::Lookup& lookup, const char* name) {
  const char* text = lookup(name);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

// A number and who said it: a variable, or an option.
struct Said {
  int64_t value = 0;
  std::string by;
};

absl::StatusOr<Said> FirstSet(const Options::Lookup& lookup,
                              std::initializer_list<const char*> names, int64_t min, int64_t max,
                              Said otherwise) {
  for (const char* name : names) {
    const char* text = Get(lookup, name);
    if (text == nullptr) continue;
    absl::StatusOr<int64_t> value = ParseInteger(text, min, max);
    if (!value.ok()) return InvalidArgument(name, ": ", value.status().message());
    return Said{*value, name};
  }
  return otherwise;
}

absl::StatusOr<std::string> RouterFromMaster(const Options::Lookup& lookup) {
  const char* address = Get(lookup, "MASTER_ADDR");
  const char* port = Get(lookup, "MASTER_PORT");
  if (address == nullptr || port == nullptr) {
    return InvalidArgument("--router: needed, or MASTER_ADDR and MASTER_PORT (see --help)");
  }
  absl::StatusOr<int64_t> number = ParseInteger(port, 1, 65535);
  if (!number.ok()) return InvalidArgument("MASTER_PORT: ", number.status().message());
  std::string host = address;
  if (host.find(':') != std::string::npos && host[0] != '[') host = absl::StrCat("[", host, "]");
  return absl::StrCat("tcp://", host, ":", *number);
}

}  // namespace

absl::Status CompletePlace(const Options::Lookup& lookup, WorkerPlace& place) {
  if (place.router.empty()) {
    KVERN_ASSIGN_OR_RETURN(place.router, RouterFromMaster(lookup));
  }
  Said rank = {place.rank, "--rank"};
  if (place.rank < 0) {
    KVERN_ASSIGN_OR_RETURN(rank, FirstSet(lookup,
                                          {"RANK", "LWS_WORKER_INDEX", "SLURM_PROCID",
                                           "OMPI_COMM_WORLD_RANK", "PMI_RANK"},
                                          0, kMaxRanks - 1, {0, "--rank"}));
    place.rank = rank.value;
  }
  Said world = {place.world, "--world"};
  if (place.world < 0) {
    KVERN_ASSIGN_OR_RETURN(world, FirstSet(lookup,
                                           {"WORLD_SIZE", "LWS_GROUP_SIZE", "SLURM_NTASKS",
                                            "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"},
                                           1, kMaxRanks, {1, "--world"}));
    place.world = world.value;
  }
  // A cluster that shows each process one GPU has numbered it 0, whatever the process's number is.
  const char* visible = Get(lookup, "CUDA_VISIBLE_DEVICES");
  if (place.gpu_index < 0 && visible != nullptr && std::strchr(visible, ',') == nullptr) {
    place.gpu_index = 0;
  }
  if (place.gpu_index < 0) {
    KVERN_ASSIGN_OR_RETURN(
        Said gpu, FirstSet(lookup, {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"}, 0,
                           kMaxGpuIndex, {place.rank, ""}));
    place.gpu_index = gpu.value;
  }
  if (place.rank < place.world) return absl::OkStatus();
  return InvalidArgument(rank.by, ": ", place.rank, ", allowed: 0 to ", place.world - 1, " (",
                         world.by, " is ", place.world, ")");
}

}  // namespace kvern
