// stderr for programs that must not wait for whoever reads it.
#pragma once

#include <string_view>

namespace kvern {

// Writes whole lines, or nothing of them when a pipe takes no more: a stopped reader
// must not stop a router. What was lost is counted and said before the next lines that go through.
// Thread-safe.
void WriteToStderr(std::string_view lines);

}  // namespace kvern
