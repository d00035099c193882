// Messages with random legal values, for round trips through the codec.
#pragma once

#include "cluster/base/rng.h"
#include "schemas/messages.h"

namespace kvern {

ClientMessage RandomClientMessage(Rng& rng);
RouterToClient RandomRouterToClient(Rng& rng);
WorkerToRouter RandomWorkerToRouter(Rng& rng);
RouterToWorker RandomRouterToWorker(Rng& rng);
StepPlan RandomPlan(Rng& rng);

}  // namespace kvern
