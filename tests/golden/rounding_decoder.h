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

  // The logits after the last of `ids`, [vocab_size]. Of the values that lie near the edge between
  // two bf16 values, where a sum of float32 may fall to the other side, number `tipped` in the
  // order of computation does.
  std::vector<float> LastLogits(const std::vector<uint32_t>& ids, int tipped = -1);
  // How many such values the last call met.
  int values_at_edges() const { return values_at_edges_; }

 private:
  using Vector = std::vector<double>;
  using Rows = std::vector<Vector>;  // of tokens

  double Round(double value);
  Vector Read(const std::string& name, bool rounded) const;
  // bf16(x) times a weight matrix, plus its bias if it has one: rounded with the result when that
  // is rounded, else kept as float32.
  Rows Project(const Rows& x, const std::string& name, bool biased, bool rounded);
  Rows Norm(const Rows& x, const std::string& name);
  void Rotate(Vector& row, size_t position, uint32_t heads, uint32_t first);
  Rows Attend(Rows& q, Rows& k, const Rows& v);
  void Layer(uint32_t layer, Rows& hidden);
  static void Add(Rows& hidden, const Rows& delta);

  const Checkpoint& checkpoint_;
  int tipped_ = -1;
  int values_at_edges_ = 0;
};

}  // namespace kvern
