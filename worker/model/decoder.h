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

struct DecoderLimits {
  int64_t max_tokens = 0;      // of a step
  int64_t max_logit_rows = 0;  // of a step
  bool graphs = true;          // record steps that only decode, where the device can
};

class Decoder {
 public:
  // Allocates, or lays out, the workspace for steps within `limits`. All pointers outlive the
  // decoder.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const ModelWeights* weights,
                                                         Device* device, Communicator* comm,
                                                         const DecoderLimits& limits);
  ~Decoder();

  // Tells the device all of the step that is known: of the token ids, those of tokens that are
  // still being drawn may be anything. The step before may still run. `layout` stays alive until
  // the step is done.
  absl::Status Prepare(const BatchLayout& layout);
  // The token ids of the layout prepared last have changed.
  absl::Status SetTokenIds(const BatchLayout& layout);
  // Computes all layers for the layout prepared last, storing keys and values in `cache`. The
  // returned tensor [logit_rows, vocabulary rows of this rank] (float32) is valid until the next
  // call. Errors are those of the communicator: final for the group.
  absl::StatusOr<Tensor> Run(KvCache& cache);

  // Prepare and Run.
  absl::StatusOr<Tensor> Forward(const BatchLayout& layout, KvCache& cache);

  size_t workspace_bytes() const;

  // Steps are computed, or recorded anew, from now on. A communicator ends only after the recorded
  // steps that it is part of.
  void ForgetRecordedSteps();

 private:
  class Impl;
  explicit Decoder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvern
