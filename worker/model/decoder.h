// One rank's share of a Llama-family model: from the tokens of a step to this rank's logits.
// Written once over Ops and Communicator; knows no device.
#pragma once

#include <cstdint>
#include <memory>

#include "cluster/base/status.h"
#include "worker/comm/communicator.h"
#include "worker/device/device.h"
#include "worker/model/weights.h"

namespace kvern {

class Decoder {
 public:
  // Allocates the workspace for steps of up to `max_tokens` tokens and `max_logit_rows` rows of
  // logits. All pointers outlive the decoder.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const ModelWeights* weights,
                                                         Device* device, Communicator* comm,
                                                         int64_t max_tokens,
                                                         int64_t max_logit_rows);
  ~Decoder();

  // Computes all layers for the batch, storing keys and values in `cache`. The returned tensor
  // [logit_rows, vocabulary rows of this rank] (float32) is valid until the next call.
  // Errors are those of the communicator: final for the group.
  absl::StatusOr<Tensor> Forward(const BatchLayout& layout, KvCache& cache);

  size_t workspace_bytes() const;

 private:
  class Impl;
  explicit Decoder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvern
