#include "schemas/files/byte_source.h"

#include <cstring>

#include "absl/strings/escaping.h"

namespace kvern {

absl::Status ByteSource::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset) {
    return InvalidArgument(name_, ": ", out.size(), " bytes at offset ", offset,
                           " lie beyond the end of the file (", size_, " bytes)");
  }
  if (out.empty()) return absl::OkStatus();
  return DoRead(offset, out);
}

absl::Status MemorySource::DoRead(uint64_t offset, std::span<std::byte> out) const {
  std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return absl::OkStatus();
}

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 96;
  if (text.size() <= kShown) return absl::StrCat("'", absl::CHexEscape(ToAbsl(text)), "'");
  return absl::StrCat("'", absl::CHexEscape(ToAbsl(text.substr(0, kShown))), "...' (", text.size(),
                      " bytes)");
}

}  // namespace kvern
