// One line of kvern-run's input.
#pragma once

#include <string>

#include "schemas/client_messages.h"
#include "tools/run/answer.h"
#include "tools/run/line_source.h"

namespace kvern {

inline constexpr size_t kMaxRunLineBytes = 64u << 20;

// Reads the request and prepares its answer. False: the line is wrong, and `answer` says so.
bool ParseRunLine(const LineSource::Line& line, GenerateRequest& request, Answer& answer);

}  // namespace kvern
