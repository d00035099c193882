#include "worker/model/shard.h"

#include <algorithm>

namespace kvern {
namespace {

// Deals `items` of `cost` bytes each to ranks that already hold `loads` bytes, at least one to
// each, so that the largest sum is as small as it goes; among equals the lower rank gets more.
// Returns how many each rank gets and adds their bytes to `loads`. REQUIRES: items >= loads.size().
std::vector<uint64_t> Deal(uint64_t items, uint64_t cost, std::vector<uint64_t>& loads) {
  size_t world = loads.size();
  std::vector<uint64_t> dealt(world, 1);
  for (uint64_t& load : loads) load += cost;
  uint64_t left = items - world;

  // In bulk: fill the ranks below the common level, which is found from the lightest rank upwards.
  std::vector<uint64_t> ascending = loads;
  std::sort(ascending.begin(), ascending.end());
  uint64_t level = 0;
  uint64_t sum = left * cost;
  for (size_t k = 0; k < world && (k == 0 || ascending[k] < level); ++k) {
    sum += ascending[k];
    level = sum / (k + 1);
  }
  for (size_t r = 0; r < world; ++r) {
    uint64_t more = loads[r] < level ? std::min(left, (level - loads[r]) / cost) : 0;
    dealt[r] += more;
    loads[r] += more * cost;
    left -= more;
  }
  // What rounding left over, fewer than one per rank.
  for (; left > 0; --left) {
    size_t lightest =
        static_cast<size_t>(std::min_element(loads.begin(), loads.end()) - loads.begin());
    ++dealt[lightest];
    loads[lightest] += cost;
  }
  return dealt;
}

absl::Status CheckDivisible(const ModelConfig& config, uint32_t world, uint32_t unit) {
  uint32_t units = config.intermediate_size / unit;
  if (config.intermediate_size % unit != 0) {
    return InvalidArgument("intermediate_size ", config.intermediate_size,
                           " cannot be cut: it is no multiple of ", unit);
  }
  if (units < world) {
    return InvalidArgument("intermediate_size ", config.intermediate_size, " has ", units,
                           " units of ", unit, " columns; tensor-parallel size ", world,
                           " needs at least as many");
  }
  if (config.vocab_size < world) {
    return InvalidArgument("vocab_size ", config.vocab_size, ", tensor-parallel size ", world,
                           ": every rank needs a row");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ShardCosts> ElementCosts(const ModelConfig& config, uint32_t world) {
  KVERN_ASSIGN_OR_RETURN(auto kv_heads, SplitKvHeads(config.num_kv_heads, world));
  const uint64_t group = config.num_heads / config.num_kv_heads;
  const uint64_t layer_columns = uint64_t{config.num_layers} * config.hidden_size;
  ShardCosts costs;
  for (const ShardRange& range : kv_heads) {
    // q and o by query heads, k and v.
    const uint64_t heads = 2 * range.size() * group + 2 * range.size();
    costs.attention.push_back(heads * config.head_dim * layer_columns);
  }
  costs.column = 3 * layer_columns;
  costs.row = uint64_t{config.hidden_size} * (config.tied_embeddings ? 1 : 2);
  return costs;
}

absl::StatusOr<std::vector<RankShard>> ShardModel(const ModelConfig& config, uint32_t world,
                                                  uint32_t unit, const ShardCosts& costs) {
  KVERN_ASSIGN_OR_RETURN(auto kv_heads, SplitKvHeads(config.num_kv_heads, world));
  KVERN_RETURN_IF_ERROR(CheckDivisible(config, world, unit));

  // Attention as the heads fall, then feed-forward columns to even it out, then vocabulary rows to
  // even out what is left of the difference.
  std::vector<uint64_t> loads = costs.attention;
  auto units = Deal(config.intermediate_size / unit, costs.column * unit, loads);
  auto rows = Deal(config.vocab_size, costs.row, loads);

  uint32_t group = config.num_heads / config.num_kv_heads;
  std::vector<RankShard> shards;
  uint32_t column = 0;
  uint32_t row = 0;
  for (size_t r = 0; r < world; ++r) {
    RankShard shard;
    shard.kv_heads = kv_heads[r];
    shard.q_heads = {kv_heads[r].begin * group, kv_heads[r].end * group};
    shard.intermediate = {column, column + static_cast<uint32_t>(units[r]) * unit};
    shard.vocab = {row, row + static_cast<uint32_t>(rows[r])};
    column = shard.intermediate.end;
    row = shard.vocab.end;
    shards.push_back(shard);
  }
  return shards;
}

}  // namespace kvern
