// The script language of the router's transcripts. A file is read from top to bottom:
//
//   # anything: a comment                    model=M vocab=N ... : see transcripts/README.md
//   config model=tiny vocab=100 ...          once, before the first turn
//   @250ms                                   a turn begins at this time
//   client 1 hello                           its events, one per line
//   ---
//   client 1 <- welcome ...                  what the router did, up to the next empty line
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "router/core/router.h"
#include "tests/router/core/letter_filter.h"

namespace kvern {

// One line of words: `client 1 generate id=7 stop="a b" ids=1,2`. Plain words come in order;
// key=value pairs by key, which may repeat. Dies on a key that nobody asked for (a misspelt
// script).
class Words {
 public:
  explicit Words(std::string_view line);
  ~Words();

  // The next plain word; dies when there is none.
  std::string Next();
  bool Has(const std::string& key) const { return pairs_.contains(key); }
  std::string Text(const std::string& key, std::string fallback = "");
  uint64_t Number(const std::string& key, uint64_t fallback = 0);
  std::vector<std::string> All(const std::string& key);

 private:
  std::string line_;
  std::vector<std::string> plain_;
  size_t next_ = 0;
  std::map<std::string, std::vector<std::string>> pairs_;
  std::map<std::string, bool> used_;
};

// Runs a script against a new Router.
class ScriptRunner {
 public:
  // The script with its outputs replaced by what the router really did.
  std::string Run(const std::string& script);

 private:
  void Configure(Words words);
  // Runs one event line; `status` and `find` answer with text instead.
  std::string RunLine(const std::string& line);
  std::string EndTurn();

  LetterFilterFactory filters_;
  bool show_credits_ = false;
  std::unique_ptr<Router> router_;
  RouterEffects effects_;
  Time now_ = 0;
  Hearing heard_;  // of this turn
};

RouterEvent ParseEvent(const std::string& line);
std::vector<uint32_t> ParseTokens(const std::string& text);  // "1,2,3" or "7x20"

// One line per effect, in the order client messages, worker messages, tokenize, notes.
// `credits`: with the credit of the tenant in the answers that carry it.
std::string EffectsText(const RouterEffects& effects, bool credits);
std::string StatusText(const RouterStatus& status);
std::string ErrorsText(const std::vector<uint64_t>& errors);  // those that were counted, by code
std::string TenantsText(const RouterStatus& status);

}  // namespace kvern
