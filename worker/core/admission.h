// Whether a group can take a dispatch. The router has admitted it already: a refusal here means
// that the router's ledger and the worker's count differ, or that the message is wrong.
#pragma once

#include <optional>
#include <vector>

#include "worker/core/group_state.h"

namespace kvern {

// Why the dispatch is refused, or nothing.
std::optional<Nack> CheckDispatch(const GroupState& state, const Dispatch& dispatch);

// The choices that still have to run: all, or in a later epoch those whose earlier output does not
// end in a stop token and is shorter than max_tokens.
std::vector<uint32_t> UnfinishedChoices(const Dispatch& dispatch);

// Of each token for which FinishOf says kStop: bit (token modulo 64). Other tokens share those
// bits.
uint64_t EndingBits(const Dispatch& dispatch);

// Why a choice whose newest token is `token`, and which then has `output` tokens, is over; kNone
// when it is not. `stop_reason` is set to the stop id when it was one.
FinishReason FinishOf(const Dispatch& dispatch, uint32_t token, size_t output,
                      StopReason& stop_reason);

}  // namespace kvern
