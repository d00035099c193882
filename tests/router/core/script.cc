#include "tests/router/core/script.h"

#include <algorithm>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"

namespace kvern {
namespace {

// Times in scripts are milliseconds: "@250ms".
Time ParseTime(const std::string& line) {
  KVERN_CHECK(line.ends_with("ms")) << line;
  return std::stoll(line.substr(1)) * kMillisecond;
}

// tenant="NAME weight=2 max_blocks=4 block_seconds=60 ceiling=3"; what is not said has no limit.
TenantConfig ParseTenant(Words words) {
  TenantConfig tenant;
  tenant.name = words.Next();
  tenant.weight = static_cast<uint32_t>(words.Number("weight", 1));
  tenant.max_blocks = words.Number("max_blocks");
  tenant.block_seconds_per_minute = words.Number("block_seconds");
  tenant.priority_ceiling = static_cast<int32_t>(words.Number("ceiling"));
  return tenant;
}

}  // namespace

Words::Words(std::string_view line) : line_(line) {
  size_t i = 0;
  while (i < line.size()) {
    if (line[i] == ' ') {
      ++i;
      continue;
    }
    std::string word;
    bool quoted = false;
    for (; i < line.size() && (quoted || line[i] != ' '); ++i) {
      if (line[i] == '"') {
        quoted = !quoted;
      } else {
        word += line[i];
      }
    }
    size_t equals = word.find('=');
    if (equals == std::string::npos) {
      plain_.push_back(word);
    } else {
      pairs_[word.substr(0, equals)].push_back(word.substr(equals + 1));
    }
  }
}

Words::~Words() {
  for (const auto& [key, values] : pairs_) {
    KVERN_CHECK(used_[key]) << "nothing reads '" << key << "' in: " << line_;
  }
}

std::string Words::Next() {
  KVERN_CHECK_LT(next_, plain_.size()) << line_;
  return plain_[next_++];
}

std::string Words::Text(const std::string& key, std::string fallback) {
  used_[key] = true;
  auto found = pairs_.find(key);
  return found == pairs_.end() ? fallback : found->second.front();
}

uint64_t Words::Number(const std::string& key, uint64_t fallback) {
  std::string text = Text(key, "");
  return text.empty() ? fallback : std::stoull(text);
}

std::vector<std::string> Words::All(const std::string& key) {
  used_[key] = true;
  auto found = pairs_.find(key);
  return found == pairs_.end() ? std::vector<std::string>() : found->second;
}

void ScriptRunner::Configure(Words words) {
  KVERN_CHECK(words.Next() == "config");
  RouterConfig config;
  config.model = words.Text("model", "tiny");
  config.has_tokenizer = words.Number("tokenizer", 1) != 0;
  config.max_seq_len = static_cast<uint32_t>(words.Number("max_seq_len", 256));
  config.vocab_size = static_cast<uint32_t>(words.Number("vocab", 100));
  config.eos_ids = ParseTokens(words.Text("eos", "0"));
  config.queue_entries = static_cast<uint32_t>(words.Number("queue_entries", 8));
  config.queue_bytes = words.Number("queue_bytes", 1024);
  config.queue_wait_max =
      static_cast<Duration>(words.Number("queue_wait_ms", 60'000)) * kMillisecond;
  config.watermark_percent = static_cast<uint32_t>(words.Number("watermark", 3));
  for (const std::string& tenant : words.All("tenant")) {
    config.tenants.push_back(ParseTenant(Words(tenant)));
  }
  config.max_clients = static_cast<uint32_t>(words.Number("max_clients", 8));
  config.stream_window = static_cast<uint32_t>(words.Number("stream_window", 1024));
  config.client_buffer_bytes = words.Number("client_buffer_bytes", 1 << 20);
  config.router_incarnation = 1;
  show_credits_ = words.Number("show_credits") != 0;
  uint64_t seed = words.Number("seed", 1);
  router_ = std::make_unique<Router>(config, seed, config.has_tokenizer ? &filters_ : nullptr);
}

std::string ScriptRunner::RunLine(const std::string& line) {
  if (line == "status") return StatusText(router_->Status(now_));
  if (line == "errors") return ErrorsText(router_->Status(now_).counters.errors);
  if (line == "tenants") return TenantsText(router_->Status(now_));
  if (line.starts_with("find ")) {
    Words words(line);
    words.Next();
    absl::StatusOr<RequestStatus> found = router_->Find({0, words.Number("id")});
    if (!found.ok()) return absl::StrCat("find: ", std::string(found.status().message()), "\n");
    return absl::StrCat(
        "find: ", found->state, " needs=", found->needed_blocks,
        " expected=", found->expected_blocks, " free=", found->free_blocks,
        " ahead=", found->queue_position,
        found->expected_wait_ms ? absl::StrCat(" wait_ms=", *found->expected_wait_ms) : "",
        found->waits_for.empty() ? "" : absl::StrCat(" waits_for=", found->waits_for),
        found->group.empty() ? "" : absl::StrCat(" group=", found->group),
        found->reason.empty() ? "" : absl::StrCat(" (", found->reason, ")"), "\n");
  }
  if (line.starts_with("heard ")) {
    Words words(line);
    words.Next();
    auto until = [&](const char* key) {
      return words.Has(key) ? static_cast<Time>(words.Number(key)) * kMillisecond : now_;
    };
    heard_ = {until("clients"), until("workers")};
    return "";
  }
  router_->Step(now_, ParseEvent(line), effects_);
  return "";
}

std::string ScriptRunner::EndTurn() {
  router_->Flush(now_, heard_, effects_);
  router_->Audit();
  std::string text = EffectsText(effects_, show_credits_);
  effects_.Clear();
  return text;
}

std::string ScriptRunner::Run(const std::string& script) {
  std::istringstream in(script);
  std::string out;
  std::string line;
  std::string queries;
  bool skipping = false;  // the expected output, up to an empty line
  while (std::getline(in, line)) {
    if (skipping && !line.empty()) continue;
    skipping = false;
    absl::StrAppend(&out, line, "\n");
    if (line.empty() || line.starts_with("#")) continue;
    if (line.starts_with("config")) {
      Configure(Words(line));
    } else if (line.starts_with("@")) {
      now_ = ParseTime(line);
      heard_ = {now_, now_};
    } else if (line == "---") {
      std::string effects = EndTurn();
      // Queries see the state after the turn.
      std::istringstream asked(queries);
      std::string query;
      while (std::getline(asked, query)) effects += RunLine(query);
      queries.clear();
      out += effects;
      skipping = true;
    } else if (line == "status" || line == "errors" || line == "tenants" ||
               line.starts_with("find ")) {
      absl::StrAppend(&queries, line, "\n");
    } else {
      out += RunLine(line);
    }
  }
  return out;
}

}  // namespace kvern
