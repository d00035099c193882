// Where in a kernel a collective is called. All threads of a collective must be at the same site.
#pragma once

#if !defined(__clang__)
#include <source_location>
#endif

namespace kvern::simt {

struct CallSite {
  const char* file = "";
  int line = 0;
  // Tells apart two calls on one line: __COUNTER__ of a macro, or the column of a function call.
  int counter = 0;

  // As the default value of a function's last parameter: the line and column of the call.
#if defined(__clang__)
  static constexpr CallSite Here(const char* file = __builtin_FILE(), int line = __builtin_LINE(),
                                 int column = __builtin_COLUMN()) {
    return {file, line, column};
  }
#else
  static constexpr CallSite Here(std::source_location where = std::source_location::current()) {
    return {where.file_name(), static_cast<int>(where.line()), static_cast<int>(where.column())};
  }
#endif

  friend constexpr bool operator==(const CallSite& a, const CallSite& b) {
    return a.file == b.file && a.line == b.line && a.counter == b.counter;
  }
};

}  // namespace kvern::simt

// Where a macro is expanded.
#define KVERN_SIMT_SITE \
  ::kvern::simt::CallSite { __FILE__, __LINE__, __COUNTER__ }
