// stderr for programs that must not wait for whoever reads it.
#pragma once

#include <string_view>

namespace kvern {

// Writes whole lines, as far as a pipe takes them without waiting: a stopped reader must not stop a
// router. Lines that were lost are counted, and their number is said before the next that go
// through. Thread-safe.
void WriteToStderr(std::string_view lines);

}  // namespace kvern
