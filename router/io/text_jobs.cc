#include "router/io/text_jobs.h"

#include <algorithm>

#include "cluster/base/check.h"

namespace kvern {
namespace {

// Keeps the fractions of a byte that a weight of up to 1000 leaves.
constexpr uint64_t kScale = 1 << 10;
// What a text costs beside its bytes.
constexpr uint64_t kBytesOfOne = 64;

uint64_t Cost(const Tokenize& job) {
  uint64_t bytes = kBytesOfOne;
  if (const auto* text = std::get_if<std::string>(&job.input)) {
    bytes += text->size();
  } else {
    for (const ChatMessage& message : std::get<std::vector<ChatMessage>>(job.input)) {
      bytes += kBytesOfOne + message.content.size();
    }
  }
  return bytes * kScale / std::max<uint32_t>(1, job.weight);
}

}  // namespace

void TextJobs::Push(Tokenize job) {
  Band& band = bands_[job.band];
  Line& line = band.lines[job.tenant];
  if (line.jobs.empty()) {
    line.service = std::max(line.service, band.level);
    band.waiting.insert({line.service, job.tenant});
  }
  const RequestId id = job.request_id;
  Place place{job.band, job.tenant, {}};
  place.job = line.jobs.insert(line.jobs.end(), std::move(job));
  where_.Insert(id, place);
}

Tokenize TextJobs::Pop() {
  auto band = std::find_if(bands_.begin(), bands_.end(),
                           [](const auto& one) { return !one.second.waiting.empty(); });
  KVERN_CHECK(band != bands_.end());
  auto [service, tenant] = *band->second.waiting.begin();
  band->second.waiting.erase(band->second.waiting.begin());
  band->second.level = std::max(band->second.level, service);
  Line& line = band->second.lines[tenant];
  Tokenize job = std::move(line.jobs.front());
  line.jobs.pop_front();
  line.service += Cost(job);
  if (!line.jobs.empty()) band->second.waiting.insert({line.service, tenant});
  where_.Erase(job.request_id);
  return job;
}

bool TextJobs::Remove(const RequestId& id) {
  const Place* place = where_.Find(id);
  if (place == nullptr) return false;
  Band& band = bands_[place->band];
  Line& line = band.lines[place->tenant];
  line.jobs.erase(place->job);
  if (line.jobs.empty()) band.waiting.erase({line.service, place->tenant});
  where_.Erase(id);
  return true;
}

}  // namespace kvern
