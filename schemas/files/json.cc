#include "schemas/files/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "schemas/files/byte_source.h"

namespace kvern {
namespace {

constexpr uint64_t kMaxScalarBytes = 64;  // The longest number or literal outside a string.

absl::Status Beyond(const std::string& where, const char* what, uint64_t limit, size_t position) {
  return InvalidArgument(where, ": JSON ", what, " beyond the limit of ", limit, " at byte ",
                         position);
}

// Builds the tree from the parser's events with a stack of open containers, so that neither the
// parser nor this recurses.
class TreeBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  nlohmann::json TakeRoot() { return std::move(root_); }
  const absl::Status& status() const { return status_; }

  bool null() override { return Put(nullptr) != nullptr; }
  bool boolean(bool value) override { return Put(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Put(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Put(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return Put(value) != nullptr;
  }
  bool string(string_t& value) override { return Put(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }  // Not part of JSON text.

  bool start_object(size_t) override { return Open(nlohmann::json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(nlohmann::json::array()); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    last_key_ = name;
    auto [it, fresh] = open_.back()->emplace(std::move(name), nullptr);
    slot_ = &it.value();
    if (!fresh) status_ = InvalidArgument(where_, ": JSON key ", Quoted(last_key_), " repeats");
    return fresh;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    status_ = JsonSyntaxError(text_, where_, position, last_key_);
    return false;
  }

 private:
  nlohmann::json* Put(nlohmann::json value) {
    nlohmann::json* target = &root_;
    if (!open_.empty() && open_.back()->is_object()) {
      target = slot_;
    } else if (!open_.empty()) {
      open_.back()->push_back(nullptr);
      target = &open_.back()->back();
    }
    *target = std::move(value);
    return target;
  }
  bool Open(nlohmann::json container) {
    open_.push_back(Put(std::move(container)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  const std::string& where_;
  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;
  nlohmann::json* slot_ = nullptr;  // Where the value of the last key goes.
  std::string last_key_;
  absl::Status status_;
};

}  // namespace

absl::Status CheckJsonLimits(std::string_view text, const std::string& where,
                             const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return InvalidArgument(where, ": ", text.size(), " bytes of JSON, the limit is ",
                           limits.max_bytes);
  }
  uint64_t depth = 0;
  uint64_t values = 1;
  uint64_t token_bytes = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '"') {
        in_string = false;
        token_bytes = 0;
        continue;
      }
      if (c == '\\') ++i;
      if (++token_bytes > limits.max_string_bytes) {
        return Beyond(where, "string", limits.max_string_bytes, i);
      }
      continue;
    }
    bool separator = c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == ':';
    if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > limits.max_depth) return Beyond(where, "nesting", limits.max_depth, i);
      ++values;
    } else if (c == '}' || c == ']') {
      depth -= depth > 0 ? 1 : 0;
    } else if (c == ',') {
      ++values;
    } else if (!separator) {
      if (++token_bytes > kMaxScalarBytes) return Beyond(where, "token", kMaxScalarBytes, i);
      continue;
    }
    token_bytes = 0;
    if (values > limits.max_values) return Beyond(where, "values", limits.max_values, i);
  }
  return absl::OkStatus();
}

absl::Status JsonSyntaxError(std::string_view text, const std::string& where, size_t position,
                             const std::string& last_key) {
  constexpr size_t kShown = 24;
  size_t begin = position > kShown / 2 ? position - kShown / 2 : 0;
  std::string_view near = text.substr(std::min(begin, text.size()), kShown);
  std::string after = last_key.empty() ? "" : absl::StrCat(", after key ", Quoted(last_key));
  return InvalidArgument(where, ": not valid JSON at byte ", position, after, ", near ",
                         Quoted(near));
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& where,
                                         const JsonLimits& limits) {
  KVERN_RETURN_IF_ERROR(CheckJsonLimits(text, where, limits));
  TreeBuilder builder(text, where);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return builder.status();
  return builder.TakeRoot();
}

std::string ShownJson(const nlohmann::json& value) {
  constexpr size_t kShown = 64;
  std::string text =
      value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

absl::StatusOr<uint32_t> JsonUint(const nlohmann::json& value, uint32_t min, uint32_t max,
                                  const std::string& name) {
  bool fits =
      value.is_number_unsigned() && value.get<uint64_t>() >= min && value.get<uint64_t>() <= max;
  if (!fits) {
    return InvalidArgument(name, " is ", ShownJson(value), ", must be an integer from ", min,
                           " to ", max);
  }
  return static_cast<uint32_t>(value.get<uint64_t>());
}

JsonFields::JsonFields(const nlohmann::json* object, std::string where, std::string prefix)
    : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {}

absl::StatusOr<JsonFields> JsonFields::Of(const nlohmann::json& value, std::string where,
                                          std::string prefix) {
  if (!value.is_object()) {
    return InvalidArgument(where, ": ", prefix, prefix.empty() ? "" : " ", "is ", ShownJson(value),
                           ", must be a JSON object");
  }
  return JsonFields(&value, std::move(where), std::move(prefix));
}

const nlohmann::json* JsonFields::Find(const std::string& key) const {
  auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<const nlohmann::json*> JsonFields::Need(const std::string& key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return Error(key, "is missing");
  return value;
}

absl::Status JsonFields::Error(const std::string& key, const std::string& problem) const {
  return InvalidArgument(where_, ": ", prefix_, key, " ", problem);
}

absl::StatusOr<uint32_t> JsonFields::Uint(const std::string& key, uint32_t min,
                                          uint32_t max) const {
  KVERN_ASSIGN_OR_RETURN(const nlohmann::json* value, Need(key));
  return JsonUint(*value, min, max, absl::StrCat(where_, ": ", prefix_, key));
}

absl::StatusOr<uint32_t> JsonFields::UintOr(const std::string& key, uint32_t min, uint32_t max,
                                            uint32_t absent) const {
  if (!Has(key)) return absent;
  return Uint(key, min, max);
}

absl::StatusOr<double> JsonFields::Number(const std::string& key, double min, double max) const {
  KVERN_ASSIGN_OR_RETURN(const nlohmann::json* value, Need(key));
  double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= min && number <= max)) {
    return Error(
        key, absl::StrCat("is ", ShownJson(*value), ", must be a number from ", min, " to ", max));
  }
  return number;
}

absl::StatusOr<double> JsonFields::NumberOr(const std::string& key, double min, double max,
                                            double absent) const {
  if (!Has(key)) return absent;
  return Number(key, min, max);
}

absl::StatusOr<bool> JsonFields::BoolOr(const std::string& key, bool absent) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) {
    return Error(key, absl::StrCat("is ", ShownJson(*value), ", must be true or false"));
  }
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonFields::String(const std::string& key) const {
  KVERN_ASSIGN_OR_RETURN(const nlohmann::json* value, Need(key));
  if (!value->is_string()) {
    return Error(key, absl::StrCat("is ", ShownJson(*value), ", must be a string"));
  }
  return value->get<std::string>();
}

absl::StatusOr<std::string> JsonFields::StringOr(const std::string& key,
                                                 const std::string& absent) const {
  if (!Has(key)) return absent;
  return String(key);
}

absl::StatusOr<JsonFields> JsonFields::Object(const std::string& key) const {
  KVERN_ASSIGN_OR_RETURN(const nlohmann::json* value, Need(key));
  if (!value->is_object()) {
    return Error(key, absl::StrCat("is ", ShownJson(*value), ", must be an object"));
  }
  return JsonFields(value, where_, absl::StrCat(prefix_, key, "."));
}

}  // namespace kvern
