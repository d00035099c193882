#include "router/text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "cluster/base/check.h"
#include "router/text/utf8.h"

namespace kvern {

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stops) {
  if (stops.size() > kMaxStrings) {
    return InvalidArgument("stop: ", stops.size(), " strings, allowed ", kMaxStrings);
  }
  StopMatcher matcher;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty() || stops[i].size() > kMaxStringBytes) {
      return InvalidArgument("stop[", i, "]: ", stops[i].size(), " bytes, allowed 1 to ",
                             kMaxStringBytes);
    }
    absl::Status utf8 = CheckUtf8(stops[i]);
    if (!utf8.ok()) return InvalidArgument("stop[", i, "]: ", utf8.message());
    matcher.automata_.push_back(MakeAutomaton(std::move(stops[i])));
  }
  return matcher;
}

StopMatcher::Automaton StopMatcher::MakeAutomaton(std::string stop) {
  Automaton automaton{std::move(stop), {0, 0}, 0};
  size_t border = 0;
  for (size_t i = 1; i < automaton.stop.size(); ++i) {
    border = Step(automaton, border, automaton.stop[i]);
    automaton.fallback.push_back(static_cast<uint16_t>(border));
  }
  return automaton;
}

// `matched` after one more byte. REQUIRES: fallback is known up to `matched`.
size_t StopMatcher::Step(const Automaton& automaton, size_t matched, char byte) {
  if (matched == automaton.stop.size()) matched = automaton.fallback[matched];
  while (matched > 0 && automaton.stop[matched] != byte) matched = automaton.fallback[matched];
  return automaton.stop[matched] == byte ? matched + 1 : 0;
}

StopMatcher::Result StopMatcher::Append(std::string_view text, bool may_stop) {
  KVERN_CHECK(!stopped_);
  if (automata_.empty()) return {std::string(text), std::nullopt};
  const size_t held_before = held_.size();
  held_ += text;
  for (size_t i = 0; i < text.size(); ++i) {
    std::optional<size_t> stop;
    for (size_t k = 0; k < automata_.size(); ++k) {
      Automaton& automaton = automata_[k];
      automaton.matched = Step(automaton, automaton.matched, text[i]);
      if (automaton.matched != automaton.stop.size() || !may_stop) continue;
      if (!stop || automaton.stop.size() > automata_[*stop].stop.size()) stop = k;
    }
    if (!stop) continue;
    stopped_ = true;
    const size_t end = held_before + i + 1;
    return {std::exchange(held_, {}).substr(0, end - automata_[*stop].stop.size()), stop};
  }
  size_t keep = 0;
  for (const Automaton& automaton : automata_) {
    // A whole match that did not count is text; only what may still grow into a match is held.
    const bool whole = automaton.matched == automaton.stop.size();
    keep =
        std::max<size_t>(keep, whole ? automaton.fallback[automaton.matched] : automaton.matched);
  }
  std::string sure = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return {std::move(sure), std::nullopt};
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

}  // namespace kvern
