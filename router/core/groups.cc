#include "router/core/groups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"

namespace kvern::router {

Group* GroupTable::FindByName(const std::string& name) {
  for (auto& group : groups_) {
    if (group->name == name) return group.get();
  }
  return nullptr;
}

Group* GroupTable::FindByNumber(uint64_t number) {
  for (auto& group : groups_) {
    if (group->number == number) return group.get();
  }
  return nullptr;
}

Group* GroupTable::FindByPeer(PeerId peer) {
  Group** group = by_peer_.Find(peer);
  return group == nullptr ? nullptr : *group;
}

Group* GroupTable::Add(const std::string& name) {
  if (groups_.size() >= kMaxGroups) return nullptr;
  auto group = std::make_unique<Group>();
  group->number = next_number_++;
  group->name = name;
  group->index = groups_.size();
  groups_.push_back(std::move(group));
  loads_.emplace_back();
  return groups_.back().get();
}

Group* GroupTable::Surplus() {
  auto never_was = [](const auto& group) { return group->dead() && group->total_blocks == 0; };
  if (std::ranges::count_if(groups_, never_was) >= kMaxFailedStarts) {
    return std::ranges::find_if(groups_, never_was)->get();
  }
  if (groups_.size() < kMaxGroups) return nullptr;
  auto oldest = std::ranges::find_if(groups_, [](const auto& group) { return group->dead(); });
  return oldest == groups_.end() ? nullptr : oldest->get();
}

void GroupTable::Remove(Group& group) {
  KVERN_CHECK(group.running.empty());
  UnmapPeers(group);
  std::erase(pending_, &group);
  auto place = static_cast<ptrdiff_t>(group.index);
  loads_.erase(loads_.begin() + place);
  groups_.erase(groups_.begin() + place);
  for (size_t i = static_cast<size_t>(place); i < groups_.size(); ++i) groups_[i]->index = i;
  FindExtremeTotals();
}

void GroupTable::MapPeer(PeerId peer, Group& group) { by_peer_.Insert(peer, &group); }

void GroupTable::UnmapPeers(Group& group) {
  for (PeerId& peer : group.peers) {
    if (peer != 0) by_peer_.Erase(peer);
    peer = 0;
  }
}

void GroupTable::SetTotal(Group& group, uint64_t blocks) {
  group.total_blocks = blocks;
  FindExtremeTotals();
}

void GroupTable::FindExtremeTotals() {
  largest_total_ = smallest_total_ = 0;
  for (const auto& group : groups_) {
    uint64_t total = group->total_blocks;
    if (total == 0) continue;
    largest_total_ = std::max(largest_total_, total);
    smallest_total_ = smallest_total_ == 0 ? total : std::min(smallest_total_, total);
  }
}

void GroupTable::NotePending(Group& group) {
  if (!std::exchange(group.listed, true)) pending_.push_back(&group);
}

const std::vector<Group*>& GroupTable::TakePending() {
  taken_.clear();
  taken_.swap(pending_);
  for (Group* group : taken_) group->listed = false;
  std::ranges::sort(taken_, {}, &Group::index);
  return taken_;
}

std::string GroupNameFault(const std::string& name) {
  if (name.empty()) return "group is empty";
  bool printable = std::ranges::none_of(
      name, [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
  if (printable) return "";
  return absl::StrCat("group is '", absl::CEscape(name), "', allowed: no control characters");
}

std::string JoinFault(const RouterConfig& config, const Join& join) {
  if (join.world == 0 || join.world > kMaxRanks) {
    return absl::StrCat("world is ", join.world, ", allowed: 1 to ", kMaxRanks);
  }
  if (join.rank >= join.world) {
    return absl::StrCat("rank is ", join.rank, ", allowed: below world, ", join.world);
  }
  if (join.rank != 0 && !join.comm_id.empty()) {
    return absl::StrCat("comm_id of rank ", join.rank, " has ", join.comm_id.size(),
                        " bytes, allowed: rank 0's alone");
  }
  if (join.model != config.model) {
    return absl::StrCat("model is '", join.model, "', served: '", config.model, "'");
  }
  if (join.vocab_size != config.vocab_size) {
    return absl::StrCat("vocab_size is ", join.vocab_size, ", the router's: ", config.vocab_size);
  }
  if (join.max_seq_len < config.max_seq_len) {
    return absl::StrCat("max_seq_len is ", join.max_seq_len, ", allowed: at least the router's, ",
                        config.max_seq_len);
  }
  if (join.kv_blocks == 0 || join.kv_blocks > kMaxGroupBlocks) {
    return absl::StrCat("kv_blocks is ", join.kv_blocks, ", allowed: 1 to ", kMaxGroupBlocks);
  }
  return "";
}

std::string JoinDifference(const Join& a, const Join& b) {
  auto differ = [&](std::string_view field, const auto& left, const auto& right) {
    return absl::StrCat(ToAbsl(field), " of rank ", a.rank, " is ", left, ", of rank ", b.rank,
                        ": ", right);
  };
  if (a.world != b.world) return differ("world", a.world, b.world);
  if (a.build != b.build) return differ("build", a.build, b.build);
  if (a.weights_fingerprint != b.weights_fingerprint) {
    return differ("weights_fingerprint", a.weights_fingerprint, b.weights_fingerprint);
  }
  if (a.model != b.model) return differ("model", a.model, b.model);
  if (a.max_seq_len != b.max_seq_len) return differ("max_seq_len", a.max_seq_len, b.max_seq_len);
  if (a.vocab_size != b.vocab_size) return differ("vocab_size", a.vocab_size, b.vocab_size);
  return "";
}

}  // namespace kvern::router
