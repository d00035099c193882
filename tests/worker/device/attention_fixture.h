// Sequences with random queries, keys and values on a CPU device, and what attention must give for
// them.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cluster/base/check.h"
#include "kernels/cpu/packed.h"
#include "kernels/reference/attention.h"
#include "tests/kernels/random_data.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/device/ops.h"

namespace kvern {

struct AttentionShape {
  int64_t kv_heads = 1;
  int64_t group = 1;
  int64_t head_dim = 64;
  DType dtype = DType::kF32;
  std::vector<int64_t> lengths;  // tokens of each sequence
};

inline Tensor View(std::vector<float>& values, int64_t rows, int64_t cols) {
  return {values.data(), DType::kF32, rows, cols, cols};
}

inline std::unique_ptr<Device> MakeCpuDevice(int threads, const std::string& isa = "auto") {
  auto device = NewCpuDevice({.threads = threads, .isa = isa});
  KVERN_CHECK(device.ok()) << device.status().ToString();
  return std::move(device).value();
}

// Holds q, k, v of all tokens of all sequences; runs them through a device in chunks.
class AttentionCase {
 public:
  AttentionCase(const AttentionShape& shape, uint64_t seed) : shape_(shape), rng_(seed) {
    for (int64_t length : shape.lengths) {
      first_row_.push_back(tokens_);
      tokens_ += length;
    }
    qkv_ = RandomFloats(rng_, static_cast<size_t>(tokens_ * columns()), 2);
    // Rotation by zero: the test of RoPE is elsewhere.
    const int64_t longest = *std::max_element(shape.lengths.begin(), shape.lengths.end());
    cos_.assign(static_cast<size_t>(longest * shape.head_dim / 2), 1.0f);
    sin_.assign(cos_.size(), 0.0f);
    MakeBlockTables();
  }

  int64_t q_heads() const { return shape_.kv_heads * shape_.group; }
  int64_t columns() const { return (q_heads() + 2 * shape_.kv_heads) * shape_.head_dim; }
  int64_t out_columns() const { return q_heads() * shape_.head_dim; }
  int64_t tokens() const { return tokens_; }

  // Output rows of all tokens, computed on `device` in steps that take at most `chunk` tokens of
  // each sequence. Unused slots of the cache hold NaN.
  std::vector<float> Run(Device& device, int64_t chunk) {
    KvCacheShape cache_shape{num_blocks_, 2, shape_.kv_heads, shape_.head_dim, shape_.dtype};
    auto cache = device.NewKvCache(cache_shape);
    KVERN_CHECK(cache.ok());
    std::fill_n(static_cast<uint16_t*>((*cache)->data()),
                static_cast<size_t>(num_blocks_) * cache_shape.BlockBytes() / 2, uint16_t{0xFFFF});
    std::vector<float> out(static_cast<size_t>(tokens_ * out_columns()));
    const int64_t longest = *std::max_element(shape_.lengths.begin(), shape_.lengths.end());
    for (int64_t start = 0; start < longest; start += chunk) {
      Step(device, **cache, start, chunk, out);
    }
    return out;
  }

  std::vector<double> Want(size_t sequence, int64_t position, int64_t head) const {
    const int64_t dim = shape_.head_dim;
    const int64_t kv = head / shape_.group;
    std::vector<std::vector<double>> keys;
    std::vector<std::vector<double>> values;
    for (int64_t p = 0; p <= position; ++p) {
      const int64_t row = first_row_[sequence] + p;
      keys.push_back(Stored(row, (q_heads() + kv) * dim));
      values.push_back(Stored(row, (q_heads() + shape_.kv_heads + kv) * dim));
    }
    std::vector<double> q(static_cast<size_t>(dim));
    for (int64_t d = 0; d < dim; ++d) {
      q[static_cast<size_t>(d)] = static_cast<double>(qkv_[static_cast<size_t>(
          (first_row_[sequence] + position) * columns() + head * dim + d)]);
    }
    return reference::Attention(q, keys, values);
  }

  int64_t first_row(size_t sequence) const { return first_row_[sequence]; }

 private:
  // Every sequence gets shuffled blocks; some blocks belong to nobody.
  void MakeBlockTables() {
    for (int64_t length : shape_.lengths) num_blocks_ += (length + kBlockSize - 1) / kBlockSize;
    num_blocks_ += 3;
    std::vector<uint32_t> blocks(static_cast<size_t>(num_blocks_));
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint32_t>(i);
    for (size_t i = blocks.size() - 1; i > 0; --i) std::swap(blocks[i], blocks[rng_.Below(i + 1)]);
    for (int64_t length : shape_.lengths) {
      const auto count = static_cast<std::ptrdiff_t>((length + kBlockSize - 1) / kBlockSize);
      tables_.emplace_back(blocks.end() - count, blocks.end());
      blocks.resize(blocks.size() - static_cast<size_t>(count));
    }
  }

  void Step(Device& device, KvCache& cache, int64_t start, int64_t chunk, std::vector<float>& out) {
    BatchLayout layout;
    std::vector<float> rows;
    std::vector<int64_t> targets;
    for (size_t s = 0; s < tables_.size(); ++s) {
      const int64_t count = std::min(chunk, shape_.lengths[s] - start);
      if (count <= 0) continue;
      layout.sequences.push_back({static_cast<int64_t>(targets.size()), start, count, tables_[s]});
      for (int64_t i = 0; i < count; ++i) {
        layout.positions.push_back(static_cast<uint32_t>(start + i));
        layout.token_ids.push_back(0);
        const int64_t row = first_row_[s] + start + i;
        targets.push_back(row);
        const auto begin = qkv_.begin() + row * columns();
        rows.insert(rows.end(), begin, begin + columns());
      }
    }
    const auto count = static_cast<int64_t>(targets.size());
    auto batch = *device.NewBatch({1, 1, 1, 1, 1, 2});
    KVERN_CHECK(batch->Load(layout, 0).ok());
    std::vector<float> result(static_cast<size_t>(count * out_columns()));
    const Tensor qkv = View(rows, count, columns());
    const Tensor q = qkv.Columns(0, out_columns());
    device.ops().RopeAndStoreKv(qkv, {cos_.data(), sin_.data()}, *batch, 1, cache, q);
    device.ops().Attention(q, *batch, 1, cache, View(result, count, out_columns()));
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(result.begin() + i * out_columns(), out_columns(),
                  out.begin() + targets[static_cast<size_t>(i)] * out_columns());
    }
  }

  // head_dim elements of a row as the cache keeps them.
  std::vector<double> Stored(int64_t row, int64_t column) const {
    std::vector<double> stored;
    for (int64_t d = 0; d < shape_.head_dim; ++d) {
      const float x = qkv_[static_cast<size_t>(row * columns() + column + d)];
      const float kept = shape_.dtype == DType::kF32 ? x : cpu::FromBf16(cpu::ToBf16(x));
      stored.push_back(static_cast<double>(kept));
    }
    return stored;
  }

  AttentionShape shape_;
  Rng rng_;
  int64_t tokens_ = 0;
  int64_t num_blocks_ = 0;
  std::vector<int64_t> first_row_;
  std::vector<float> qkv_;
  std::vector<float> cos_;
  std::vector<float> sin_;
  std::vector<std::vector<uint32_t>> tables_;
};

}  // namespace kvern
