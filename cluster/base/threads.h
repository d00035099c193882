// Threads that the system may refuse.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "cluster/base/status.h"

namespace kvern {

// Runs `body` on a new thread. ResourceExhausted when the system gives none: its limits on
// processes are reached, or there is no room for another stack.
template <typename Body>
absl::StatusOr<std::thread> StartThread(Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    return ResourceExhausted("cannot start another thread: ", error.code().message());
  }
}

}  // namespace kvern
