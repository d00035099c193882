#include "router/tenants_file.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "schemas/files/file.h"
#include "schemas/files/json.h"

namespace kvern {
namespace {

constexpr uint64_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxTenants = 4096;
constexpr uint32_t kMaxWeight = 1000;
constexpr int32_t kMaxPriority = 7;

absl::Status OnlyKnown(const nlohmann::json& entry, const JsonFields& fields) {
  static const std::set<std::string> known = {"name", "weight", "max_blocks",
                                              "block_seconds_per_minute", "priority_ceiling"};
  for (const auto& [key, value] : entry.items()) {
    if (known.contains(key)) continue;
    return fields.Error(key,
                        "is not known, allowed: name, weight, max_blocks, "
                        "block_seconds_per_minute, priority_ceiling");
  }
  return absl::OkStatus();
}

absl::StatusOr<TenantConfig> ReadTenant(const nlohmann::json& entry, const std::string& where,
                                        const std::string& prefix) {
  KVERN_ASSIGN_OR_RETURN(JsonFields fields, JsonFields::Of(entry, where, prefix));
  KVERN_RETURN_IF_ERROR(OnlyKnown(entry, fields));
  TenantConfig tenant;
  KVERN_ASSIGN_OR_RETURN(tenant.name, fields.String("name"));
  if (tenant.name.size() > kMaxNameBytes) {
    return fields.Error("name", absl::StrCat("has ", tenant.name.size(),
                                             " bytes, allowed: at most ", kMaxNameBytes));
  }
  KVERN_ASSIGN_OR_RETURN(tenant.weight, fields.UintOr("weight", 1, kMaxWeight, 1));
  KVERN_ASSIGN_OR_RETURN(tenant.max_blocks, fields.UintOr("max_blocks", 1, UINT32_MAX, 0));
  KVERN_ASSIGN_OR_RETURN(tenant.block_seconds_per_minute,
                         fields.UintOr("block_seconds_per_minute", 1, UINT32_MAX, 0));
  KVERN_ASSIGN_OR_RETURN(uint32_t ceiling, fields.UintOr("priority_ceiling", 0, kMaxPriority, 0));
  tenant.priority_ceiling = static_cast<int32_t>(ceiling);
  return tenant;
}

}  // namespace

absl::StatusOr<std::vector<TenantConfig>> ParseTenants(std::string_view text,
                                                       const std::string& where) {
  KVERN_ASSIGN_OR_RETURN(nlohmann::json json, ParseJson(text, where));
  KVERN_ASSIGN_OR_RETURN(JsonFields fields, JsonFields::Of(json, where));
  for (const auto& [key, value] : json.items()) {
    if (key != "tenants") return fields.Error(key, "is not known, allowed: tenants, a list");
  }
  const nlohmann::json* list = fields.Find("tenants");
  if (list == nullptr || !list->is_array()) {
    return InvalidArgument(where, ": allowed: an object with one field, tenants, a list");
  }
  if (list->size() > kMaxTenants) {
    return fields.Error(
        "tenants", absl::StrCat("has ", list->size(), " entries, allowed: at most ", kMaxTenants));
  }
  std::vector<TenantConfig> tenants;
  std::set<std::string> names;
  for (size_t i = 0; i < list->size(); ++i) {
    std::string prefix = absl::StrCat("tenants[", i, "].");
    KVERN_ASSIGN_OR_RETURN(TenantConfig tenant, ReadTenant((*list)[i], where, prefix));
    if (!names.insert(tenant.name).second) {
      return fields.Error(prefix + "name",
                          absl::StrCat("is '", tenant.name, "' for the second time"));
    }
    tenants.push_back(std::move(tenant));
  }
  return tenants;
}

absl::StatusOr<std::vector<TenantConfig>> ReadTenantsFile(const std::string& path) {
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<File> file, File::Open(path));
  if (file->size() > kMaxFileBytes) {
    return InvalidArgument(path, " has ", file->size(), " bytes, allowed: ", kMaxFileBytes);
  }
  std::string text(file->size(), '\0');
  KVERN_RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(text))));
  return ParseTenants(text, path);
}

}  // namespace kvern
