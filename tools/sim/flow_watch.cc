#include "tools/sim/flow_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvern::sim {
namespace {

// What is kept is sent in pieces of at most this part of a window, as router/core/flow.cc promises:
// what has room for one is not held back.
constexpr uint32_t kPiecesPerWindow = 4;

}  // namespace

FlowWatch::FlowWatch(const SimOptions& options, FrontEnd& front_end, Checker& checker,
                     Checker::Report violation)
    : options_(options),
      front_end_(front_end),
      checker_(checker),
      violation_(std::move(violation)) {}

void FlowWatch::Hears(Time now, const ClientSaid& said) {
  const auto* hello = std::get_if<Hello>(&said.message);
  if (hello != nullptr && hello->gives_credit) givers_.insert(said.client);
  const auto* consumed = std::get_if<Consumed>(&said.message);
  if (consumed == nullptr) return;
  for (const StreamConsumed& taken : consumed->streams) {
    auto found = streams_.find(taken.request_id);
    if (found == streams_.end() || found->second.client != said.client) continue;
    Stream& stream = found->second;
    // What was sent in this turn is not known yet, so how much of the lie is believed is not
    // either.
    if (taken.tokens > stream.sent) stream.believed = false;
    if (taken.tokens <= stream.consumed) continue;
    stream.consumed = std::min(taken.tokens, stream.sent);
    stream.moved = now;
  }
}

void FlowWatch::Take(Time now, const RouterEffects& effects) {
  for (const ToClient& to : effects.to_clients) {
    if (const auto* deltas = std::get_if<Deltas>(&to.message)) {
      if (streams_.empty()) continue;
      for (const Delta& delta : deltas->deltas) Sends(now, delta);
    } else if (const auto* accepted = std::get_if<Accepted>(&to.message)) {
      if (givers_.contains(to.client)) streams_[accepted->request_id] = {.client = to.client};
    } else if (const auto* error = std::get_if<RequestError>(&to.message)) {
      Ends(now, *error);
    }
  }
  for (const auto& [id, stream] : streams_) {
    if (stream.sent > 0 && checker_.HasQuota(checker_.Find(id)->tenant)) NoteUnread(now, id);
  }
}

void FlowWatch::NoteUnread(Time now, const RequestId& id) {
  absl::StatusOr<RequestStatus> found = front_end_.Find(id);
  if (found.ok() && found->state == "unread") {
    checker_.Ended(now, *checker_.Find(id), /*released=*/true);
  }
}

void FlowWatch::Sends(Time now, const Delta& delta) {
  auto found = streams_.find(delta.request_id);
  if (found == streams_.end()) return;
  Stream& stream = found->second;
  uint64_t unread = stream.sent - stream.consumed;
  uint64_t ahead = unread + delta.token_ids.size();
  if (stream.believed && unread > 0 && ahead > options_.router.stream_window) {
    Violate("C1", delta.request_id,
            absl::StrCat(ahead, " tokens ahead of its reader, the window has ",
                         options_.router.stream_window));
  }
  stream.sent += delta.token_ids.size();
  stream.moved = now;
  if (delta.usage) {
    if (stream.paused) ++counts_.resumed;
    streams_.erase(found);
  }
}

void FlowWatch::Ends(Time now, const RequestError& error) {
  auto found = streams_.find(error.request_id);
  bool slow = error.message.starts_with(kSlowReader);
  if (slow && found == streams_.end()) {
    Violate("C4", error.request_id, "a slow reader, but it gives no credit or has ended");
  }
  if (found == streams_.end() || error.details.still_open) return;
  Stream& stream = found->second;
  bool for_bytes = error.message.find("bytes unread") != std::string::npos;
  // What it said in this very turn may have come too late.
  if (slow && stream.believed && stream.sent == stream.consumed && stream.moved < now) {
    Violate("C4", error.request_id, "a slow reader, but it has taken all that was sent");
  }
  if (slow && !for_bytes && stream.believed &&
      now - stream.moved < options_.router.slow_reader_timeout) {
    Violate("C4", error.request_id,
            absl::StrCat("given up ", (now - stream.moved) / kMicrosecond,
                         " us after some was taken, allowed: after ",
                         options_.router.slow_reader_timeout / kMicrosecond));
  }
  if (slow) ++(for_bytes ? counts_.crowded : counts_.timed_out);
  streams_.erase(found);
}

void FlowWatch::CheckFully(Time now, const RouterStatus& status) {
  if (status.paused_streams > streams_.size() ||
      status.kept_bytes > givers_.size() * options_.router.client_buffer_bytes) {
    violation_(absl::StrCat("C3: ", status.paused_streams, " streams are paused, ",
                            status.kept_bytes, " bytes are kept"));
  }
  for (auto it = streams_.begin(); it != streams_.end();) {
    if (it->second.sent == 0) {  // nothing can be held back; and to find it in a queue takes long
      ++it;
      continue;
    }
    absl::StatusOr<RequestStatus> found = front_end_.Find(it->first);
    if (!found.ok()) {  // its client is gone
      it = streams_.erase(it);
      continue;
    }
    Look(now, it->first, !found->reason.empty(), it->second);
    ++it;
  }
}

void FlowWatch::Look(Time now, const RequestId& id, bool paused, Stream& stream) {
  if (paused && !stream.paused) {
    ++counts_.paused;
    stream.paused_at = now;
  }
  if (!paused && stream.paused) ++counts_.resumed;
  stream.paused = paused;
  if (!paused) return;
  uint32_t window = options_.router.stream_window;
  uint64_t room = stream.sent - stream.consumed + std::max(window / kPiecesPerWindow, 1u);
  if (stream.believed && room <= window) {
    Violate("C2", id,
            absl::StrCat("held back with ", stream.sent - stream.consumed,
                         " tokens not taken, the window has ", window));
  }
  Duration held = now - std::max(stream.paused_at, stream.moved);
  if (held > options_.router.slow_reader_timeout + options_.router_turn) {
    Violate("C4", id,
            absl::StrCat("nothing was taken for ", held / kMicrosecond,
                         " us, allowed: ", options_.router.slow_reader_timeout / kMicrosecond));
  }
}

void FlowWatch::Violate(const char* name, const RequestId& id, const std::string& what) {
  violation_(absl::StrCat(name, ": request ", id.low, ": ", what));
}

}  // namespace kvern::sim
