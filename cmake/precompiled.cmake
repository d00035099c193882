# The libraries' headers cost a file more than its own code does: parsing them was a third of it. They
# are parsed once for all tests, and once for all else.
#
# Only headers that most files include, and none of ours: a change to one of ours would rebuild all. That
# a file includes by itself what it uses shows in builds with ccache, and for tests in
# tests/include_test.cc, which reads this list. nlohmann/json.hpp would cost the files without JSON more
# than it gives the others.
set(kvern_precompiled
  <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <cstdint> <cstring> <deque> <filesystem>
  <fstream> <functional> <limits> <map> <memory> <mutex> <optional> <set> <span> <sstream> <string>
  <string_view> <thread> <utility> <variant> <vector>
  <absl/container/flat_hash_map.h> <absl/status/status.h> <absl/status/statusor.h>
  <absl/strings/str_cat.h> <absl/strings/str_format.h> <absl/strings/str_join.h>
  <absl/strings/str_split.h>
  <gmock/gmock.h> <gtest/gtest.h>)

# ccache does the same job better where something is cached, but cannot cache what reads a precompiled
# header: a build has one of the two.
find_program(KVERN_CCACHE ccache)
if(KVERN_CCACHE AND NOT DEFINED ENV{CCACHE_DISABLE})
  set(kvern_precompile_default OFF)
else()
  set(kvern_precompile_default ON)
endif()
option(KVERN_PRECOMPILE "Precompiled headers instead of ccache" ${kvern_precompile_default})
if(KVERN_CCACHE AND NOT KVERN_PRECOMPILE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${KVERN_CCACHE}")
endif()

# Makes the precompiled headers, with the flags of tests and with those of all else.
function(kvern_precompiled_headers)
  if(KVERN_PRECOMPILE)
    file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/precompiled.cc" CONTENT "")
    add_library(kvern_precompiled OBJECT "${PROJECT_BINARY_DIR}/precompiled.cc")
    target_compile_options(kvern_precompiled PRIVATE ${KVERN_TEST_OPTIONS})
    target_link_libraries(kvern_precompiled PRIVATE kvern_flags kvern_usage GTest::gmock)
    target_precompile_headers(kvern_precompiled PRIVATE ${kvern_precompiled})
    set(without_tests ${kvern_precompiled})
    list(REMOVE_ITEM without_tests <gmock/gmock.h> <gtest/gtest.h>)
    add_library(kvern_precompiled_product OBJECT "${PROJECT_BINARY_DIR}/precompiled.cc")
    target_link_libraries(kvern_precompiled_product PRIVATE kvern_flags kvern_usage)
    target_precompile_headers(kvern_precompiled_product PRIVATE ${without_tests})
  endif()
endfunction()

# kvern_precompile_product(TARGET): the same for what is no test.
function(kvern_precompile_product target)
  if(KVERN_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM kvern_precompiled_product)
  endif()
endfunction()

# kvern_precompile(TARGET): TARGET reads them. It must have the same flags, or it does not compile.
function(kvern_precompile target)
  if(KVERN_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM kvern_precompiled)
  endif()
endfunction()
