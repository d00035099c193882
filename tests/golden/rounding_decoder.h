// A decoder in plain float64 that rounds to bf16 where the GPU path does: what that path must give,
// but for the order of its sums and what a last bit of those turns over.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schemas/files/checkpoint.h"

namespace kvern {

class RoundingDecoder {
 public:
  // REQUIRES: a checkpoint of tests/golden.
  explicit RoundingDecoder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // The logits after the last of `ids`, [vocab_size].
  std::vector<float> LastLogits(const std::vector<uint32_t>& ids) const;

 private:
  using Vector = std::vector<double>;
  using Rows = std::vector<Vector>;  // of tokens

  Vector Read(const std::string& name, bool rounded) const;
  // bf16(x) times a weight matrix, plus its bias if it has one: rounded with the result when that
  // is rounded, else kept as float32.
  Rows Project(const Rows& x, const std::string& name, bool biased, bool rounded) const;
  Rows Norm(const Rows& x, const std::string& name) const;
  void Rotate(Vector& row, size_t position, uint32_t heads, uint32_t first) const;
  Rows Attend(Rows& q, Rows& k, const Rows& v) const;
  void Layer(uint32_t layer, Rows& hidden) const;
  static void Add(Rows& hidden, const Rows& delta);

  const Checkpoint& checkpoint_;
};

}  // namespace kvern
