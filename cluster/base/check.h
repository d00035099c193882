// KVERN_CHECK: for what this program did wrong, never for what the world did (that is
// absl::Status). On in every build: a broken invariant ends the process, which its supervisor
// restarts.
#pragma once

#include <sstream>
#include <string>

namespace kvern::internal {

// Collects the message of a failed check and aborts when it is destroyed.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure();

  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Lets the macro below be one expression of type void.
struct CheckVoidify {
  void operator&(const std::ostream&) const {}
};

}  // namespace kvern::internal

#define KVERN_CHECK(condition)                      \
  (condition) ? static_cast<void>(0)                \
              : ::kvern::internal::CheckVoidify() & \
                    ::kvern::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define KVERN_CHECK_EQ(a, b) KVERN_CHECK((a) == (b)) << "(" << (a) << " vs " << (b) << ") "
#define KVERN_CHECK_LE(a, b) KVERN_CHECK((a) <= (b)) << "(" << (a) << " vs " << (b) << ") "
#define KVERN_CHECK_LT(a, b) KVERN_CHECK((a) < (b)) << "(" << (a) << " vs " << (b) << ") "
#define KVERN_CHECK_GE(a, b) KVERN_CHECK((a) >= (b)) << "(" << (a) << " vs " << (b) << ") "
