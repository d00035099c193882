#include "worker/comm/local.h"

#include "cluster/base/check.h"
#include "worker/comm/memory_communicator.h"

namespace kvern {

std::vector<std::unique_ptr<Communicator>> NewLocalGroup(int world) {
  auto memory = GroupMemory::NewPrivate(world);
  KVERN_CHECK(memory.ok()) << memory.status().ToString();
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.push_back(std::make_unique<MemoryCommunicator>(*memory, rank, nullptr));
  }
  return ranks;
}

}  // namespace kvern
