// How far a stream may run ahead of its reader, and how many more requests a tenant may send.
//
// A client that gives credit says how many tokens of each stream its readers have taken. A stream
// with a window full of tokens that were not taken is paused: what its worker goes on to produce is
// kept here, and sent as credit comes. Its worker is not held up, so its blocks are free when it is
// done, read or not. A reader that takes nothing for slow_reader_timeout, or whose client leaves
// more than client_buffer_bytes unread, loses its stream.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"
#include "router/core/router_impl.h"

namespace kvern::router {
namespace {

// A client says what was taken by half windows: two chunks fit then, and nothing waits for a chunk
// that is larger than what was given.
constexpr uint64_t kChunksPerWindow = 4;

}  // namespace

bool RouterImpl::HasCredit(const Client& client, const Request& request, const Delta& delta) const {
  if (!client.gives_credit) return true;
  uint64_t unread = request.delivered - request.consumed;
  return unread == 0 || unread + delta.token_ids.size() <= config_.stream_window;
}

void RouterImpl::Forward(Client& client, Request& request, Delta&& delta) {
  request.delivered += delta.token_ids.size();
  bool last = request.kept == nullptr && request.AllClientDone();
  if (last) delta.usage = UsageOf(request);
  uint64_t bytes = BytesOf(delta);
  bool full = client.pending.size() == kMaxDeltas || client.pending_bytes + bytes > kMaxDeltasBytes;
  if (full) FlushDeltas(client);
  clients_.Append(client, std::move(delta), bytes);
  if (last) Complete(request);
}

void RouterImpl::Keep(Client& client, Request& request, Delta&& delta) {
  if (request.kept == nullptr) {
    size_t most = size_t{request.n} * (size_t{request.sampling.max_tokens} + 1);
    request.kept = std::make_unique<KeptDeltas>(
        most, std::max<uint64_t>(config_.stream_window / kChunksPerWindow, 1));
    request.paused_index = paused_.size();
    paused_.push_back(&request);
    request.took_at = Listened();
    SetTimer(request, PausedUntil(request, 0));
  }
  uint64_t before = request.kept->bytes();
  request.kept->Add(std::move(delta));
  CountKept(client, before, request.kept->bytes());
  while (client.kept_bytes > config_.client_buffer_bytes) {
    Request& largest = **std::max_element(
        client.open.begin(), client.open.end(), [](const Request* a, const Request* b) {
          return (a->kept ? a->kept->bytes() : 0) < (b->kept ? b->kept->bytes() : 0);
        });
    FailSlowReader(largest, absl::StrCat("this client has left more than ",
                                         config_.client_buffer_bytes, " bytes unread"));
  }
}

void RouterImpl::OnConsumed(Client& client, const Consumed& message) {
  for (const StreamConsumed& stream : message.streams) {
    std::unique_ptr<Request>* found = requests_.Find(stream.request_id);
    if (found == nullptr || (*found)->answered || (*found)->client != client.id) continue;
    Request& request = **found;
    uint64_t consumed = std::min(stream.tokens, request.delivered);
    if (consumed <= request.consumed) continue;
    request.consumed = consumed;
    if (request.kept != nullptr) SendKept(client, request);
  }
}

void RouterImpl::SendKept(Client& client, Request& request) {
  request.took_at = Listened();
  while (request.kept != nullptr && HasCredit(client, request, request.kept->front())) {
    uint64_t before = request.kept->bytes();
    Delta delta = request.kept->PopFront();
    CountKept(client, before, request.kept->bytes());
    if (request.kept->empty()) DropKept(client, request);
    Forward(client, request, std::move(delta));
  }
  if (!request.answered) {
    SetTimer(request, request.kept == nullptr ? request.deadline : PausedUntil(request, 0));
  } else if (request.phase == Phase::kUnread) {
    Destroy(request);
  }
}

void RouterImpl::DropKept(Client& client, Request& request) {
  if (request.kept == nullptr) return;
  CountKept(client, request.kept->bytes(), 0);
  request.kept.reset();
  paused_[request.paused_index] = paused_.back();
  paused_[request.paused_index]->paused_index = request.paused_index;
  paused_.pop_back();
}

void RouterImpl::CountKept(Client& client, uint64_t before, uint64_t after) {
  client.kept_bytes += after - before;
  kept_bytes_ += after - before;
}

Time RouterImpl::PausedUntil(const Request& request, Duration idle) const {
  return std::min(request.deadline, now_ + config_.slow_reader_timeout - idle);
}

void RouterImpl::FailSlowReader(Request& request, std::string why) {
  ++counters_.slow_readers;
  AddNote(true, "slow_reader",
          {{"client", absl::StrCat(request.client)},
           {"request_id", request.id.ToString()},
           {"kept_bytes", absl::StrCat(request.kept->bytes())}});
  Fail(request, {ErrorCode::kCancelled, absl::StrCat("slow reader: ", why), {}});
}

uint32_t RouterImpl::CreditOf(Tenant& tenant) {
  if (draining_) return 0;
  RefillQuota(tenant, now_);
  if (QuotaDebt(tenant) > 0) return 0;
  uint64_t share = queue_.ShareOf(tenant);
  const uint32_t held = tenant.waiting + tenant.texts;
  if (share <= held) return 0;
  // As if it asked for the least there is, in the lowest band.
  Request next;
  next.tenant = &tenant;
  next.expected_blocks = 1;
  next.need = 1;
  next.prompt_tokens = 1;
  Duration limit = std::min(config_.default_ttft_deadline, config_.queue_wait_max);
  if (PredictWait(next).value_or(Wait{}).time > limit) return 0;
  return static_cast<uint32_t>(share - held);
}

void RouterImpl::AuditFlow() const {
  size_t unread = 0;
  uint64_t kept_bytes = 0;
  for (size_t i = 0; i < paused_.size(); ++i) {
    const Request& request = *paused_[i];
    KVERN_CHECK_EQ(request.paused_index, i);
    KVERN_CHECK(!request.answered) << request.id.ToString();
    KVERN_CHECK(!request.kept->empty()) << request.id.ToString();
    KVERN_CHECK_LE(request.consumed, request.delivered) << request.id.ToString();
    KVERN_CHECK(request.phase == Phase::kRunning || request.phase == Phase::kUnread);
    const Client& client = *clients_.Find(request.client);
    uint64_t of_client = 0;
    for (const Request* open : client.open) of_client += open->kept ? open->kept->bytes() : 0;
    KVERN_CHECK_EQ(of_client, client.kept_bytes) << "client " << client.id;
    KVERN_CHECK_LE(client.kept_bytes, config_.client_buffer_bytes) << "client " << client.id;
    uint64_t bytes = 0;
    uint64_t tokens = request.delivered;
    for (size_t k = 0; k < request.kept->size(); ++k) {
      bytes += BytesOf(request.kept->at(k));
      tokens += request.kept->at(k).token_ids.size();
    }
    KVERN_CHECK_EQ(bytes, request.kept->bytes()) << request.id.ToString();
    uint64_t produced = 0;
    for (const Choice& choice : request.choices) produced += choice.sent;
    KVERN_CHECK_EQ(tokens, produced) << request.id.ToString();
    if (request.phase == Phase::kUnread) ++unread;
    kept_bytes += bytes;
  }
  KVERN_CHECK_EQ(kept_bytes, kept_bytes_);
  // Every open request waits (and holds queue room), runs (and holds blocks) or is only read.
  size_t running = 0;
  for (size_t i = 0; i < groups_.size(); ++i) running += groups_.at(i).running.size();
  KVERN_CHECK_EQ(running + queue_.entries() + unread + withdrawn_, requests_.size());
}

}  // namespace kvern::router
