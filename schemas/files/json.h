// JSON from strangers: bounded before it is built, strict, and read through getters that name what
// they refuse.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "cluster/base/status.h"

namespace kvern {

struct JsonLimits {
  uint64_t max_bytes = 1 << 20;
  uint64_t max_depth = 64;
  uint64_t max_values = 1 << 16;  // bounds what the built tree takes
  uint64_t max_string_bytes = 64 << 10;
};

// Checks the limits in one pass over the text without recursion or allocation. It does not check
// that the text is JSON: a parser that follows may rely on the limits only.
absl::Status CheckJsonLimits(std::string_view text, const std::string& where,
                             const JsonLimits& limits);

// An error text for a parser that stopped at `position`: shows the last key and the text there.
absl::Status JsonSyntaxError(std::string_view text, const std::string& where, size_t position,
                             const std::string& last_key);

// The tree of a JSON text; refuses what is beyond the limits, repeated keys, invalid UTF-8, and
// numbers beyond float64. `where` begins every error: a path.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& where,
                                         const JsonLimits& limits = {});

// Typed access to the fields of one object, which must outlive it. A field that is null counts as
// absent: that is how Hugging Face writes "not set". Errors name the field, its value, the range.
class JsonFields {
 public:
  // `prefix` precedes the names of the fields in errors: "rope_scaling.".
  static absl::StatusOr<JsonFields> Of(const nlohmann::json& value, std::string where,
                                       std::string prefix = "");

  bool Has(const std::string& key) const { return Find(key) != nullptr; }
  // Null when absent.
  const nlohmann::json* Find(const std::string& key) const;

  absl::StatusOr<uint32_t> Uint(const std::string& key, uint32_t min, uint32_t max) const;
  absl::StatusOr<uint32_t> UintOr(const std::string& key, uint32_t min, uint32_t max,
                                  uint32_t absent) const;
  absl::StatusOr<double> Number(const std::string& key, double min, double max) const;
  absl::StatusOr<double> NumberOr(const std::string& key, double min, double max,
                                  double absent) const;
  absl::StatusOr<bool> BoolOr(const std::string& key, bool absent) const;
  absl::StatusOr<std::string> String(const std::string& key) const;
  absl::StatusOr<std::string> StringOr(const std::string& key, const std::string& absent) const;
  absl::StatusOr<JsonFields> Object(const std::string& key) const;

  // "where: key problem".
  absl::Status Error(const std::string& key, const std::string& problem) const;

 private:
  JsonFields(const nlohmann::json* object, std::string where, std::string prefix);
  absl::StatusOr<const nlohmann::json*> Need(const std::string& key) const;

  const nlohmann::json* object_;
  std::string where_;
  std::string prefix_;
};

// A value for an error text, cut to a readable length.
std::string ShownJson(const nlohmann::json& value);

// `value` as an integer in [min, max]; `name` is how the error calls it.
absl::StatusOr<uint32_t> JsonUint(const nlohmann::json& value, uint32_t min, uint32_t max,
                                  const std::string& name);

}  // namespace kvern
