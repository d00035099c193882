// Request traces of real services, read from a path. Two formats, told apart by the first line:
// Azure's CSV  "TIMESTAMP,ContextTokens,GeneratedTokens"  (Azure/AzurePublicDataset, 2023), and
// Mooncake's JSON lines  {"timestamp", "input_length", "output_length", "hash_ids"}  (kvcache-ai).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/base/status.h"
#include "cluster/base/time.h"

namespace kvern::sim {

struct TraceRow {
  Time at = 0;  // since the first row
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  std::vector<uint32_t> prefix;  // each names kPrefixTokens leading tokens; may be empty
};

inline constexpr uint32_t kPrefixTokens = 512;
inline constexpr uint32_t kMaxTraceTokens = 1'000'000;  // of one prompt or output

// Errors name the line, the field, its value and what is allowed. Timestamps never go back.
absl::StatusOr<std::vector<TraceRow>> ParseTrace(std::string_view text);
// Not found, unreadable, or as ParseTrace; the error names the path.
absl::StatusOr<std::vector<TraceRow>> ReadTrace(const std::string& path);

}  // namespace kvern::sim
