# The kinds of target of this tree. Each folder is one library with explicit DEPS, so that the
# linker enforces the include directions of docs/architecture.md.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(KVERN_SANITIZE "" CACHE STRING "Sanitizers for every target, as -fsanitize= takes them")
# Checks stay on in release: no -DNDEBUG. Instrumented code gains little from -O2, and takes long.
if(KVERN_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
else()
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
endif()
# For what only tests run: half of the build was spent on optimising it. A failed check names its line
# by itself; a sanitizer's report needs debug information.
if(KVERN_SANITIZE)
  set(KVERN_TEST_OPTIONS -O0)
else()
  set(KVERN_TEST_OPTIONS -O0 -g0)
  # More than a hundred programs are linked: gold (binutils) takes half the time.
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=gold KVERN_HAS_GOLD)
  if(KVERN_HAS_GOLD)
    set(KVERN_TEST_LINK_OPTIONS -fuse-ld=gold)
  endif()
endif()

option(KVERN_FUZZ "Build the libFuzzer targets (clang only)" OFF)

include(precompiled)

# What comes with a library, to other projects' programs, too.
add_library(kvern_usage INTERFACE)
target_include_directories(kvern_usage INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
target_compile_features(kvern_usage INTERFACE cxx_std_20)

# What only this tree's own sources are compiled with: never linked but PRIVATE.
add_library(kvern_flags INTERFACE)
target_compile_options(kvern_flags INTERFACE
  -Wall -Wextra -Werror -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor
  -fstack-protector-strong -ffp-contract=off)
target_compile_definitions(kvern_flags INTERFACE _GLIBCXX_ASSERTIONS
  KVERN_VERSION="${PROJECT_VERSION}")
if(KVERN_SANITIZE)
  target_compile_options(kvern_usage INTERFACE
    -fsanitize=${KVERN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(kvern_usage INTERFACE -fsanitize=${KVERN_SANITIZE})
  # g++ 12 sees maybe-uninitialised values in instrumented library headers that are not there.
  target_compile_options(kvern_flags INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ collects its garbage from 128 MiB on, and the precompiled headers alone are that.
  target_compile_options(kvern_flags INTERFACE --param=ggc-min-heapsize=1000000)
endif()
kvern_precompiled_headers()

# What a sanitizer build needs: the programs and the tests with the label `fast`, the tests with the
# label `threads`, the fuzzers.
add_custom_target(fast_tests)
add_custom_target(thread_tests)
add_custom_target(fuzz_targets)

# kvern_library(NAME SRCS ... [DEPS ...]): one folder's library. A folder without sources is an
# interface library.
function(kvern_library name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  if(arg_SRCS)
    add_library(${name} STATIC ${arg_SRCS})
    target_link_libraries(${name} PRIVATE kvern_flags PUBLIC kvern_usage ${arg_DEPS})
    kvern_precompile_product(${name})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE kvern_usage ${arg_DEPS})
  endif()
endfunction()

# kvern_test_library(NAME SRCS ... [DEPS ...]): what several tests share.
function(kvern_test_library name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SRCS})
  target_compile_options(${name} PRIVATE ${KVERN_TEST_OPTIONS})
  target_link_libraries(${name} PRIVATE kvern_flags PUBLIC kvern_usage ${arg_DEPS} GTest::gmock)
  kvern_precompile(${name})
endfunction()

# kvern_program(NAME SRCS ... [DEPS ...]): an executable in build/<preset>/bin.
function(kvern_program name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE kvern_flags kvern_usage ${arg_DEPS})
  kvern_precompile_product(${name})
  if(NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/tests/")
    add_dependencies(fast_tests ${name})
  endif()
endfunction()

# kvern_test(NAME SRCS ... [DEPS ...] [LABELS fast|long|golden ...] [TIMEOUT seconds] [OPTIONS ...]): a
# GoogleTest program; ctest runs it from the source root. Default label: fast. OPTIONS: flags of its
# own, for which no precompiled header fits.
function(kvern_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SRCS;DEPS;LABELS;OPTIONS" ${ARGN})
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name} ${arg_SRCS})
  target_compile_options(${name} PRIVATE ${KVERN_TEST_OPTIONS} ${arg_OPTIONS})
  target_link_options(${name} PRIVATE ${KVERN_TEST_LINK_OPTIONS})
  target_link_libraries(${name} PRIVATE kvern_flags kvern_usage ${arg_DEPS} GTest::gmock
    GTest::gtest_main)
  if(NOT arg_OPTIONS)
    kvern_precompile(${name})
  endif()
  if("fast" IN_LIST arg_LABELS)
    add_dependencies(fast_tests ${name})
  endif()
  if("threads" IN_LIST arg_LABELS)
    add_dependencies(thread_tests ${name})
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "KVERN_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
endfunction()

# kvern_bench(NAME SRCS ... [DEPS ...]): a Google Benchmark program, never run as a test.
function(kvern_bench name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE kvern_flags kvern_usage ${arg_DEPS} benchmark::benchmark)
  kvern_precompile_product(${name})
endfunction()

# kvern_fuzz(NAME SRCS ... DEPS ... [CORPUS dir]): LLVMFuzzerTestOneInput in SRCS. With KVERN_FUZZ a
# libFuzzer program fuzz_NAME; always a plain test fuzz_corpus_NAME over the committed corpus.
function(kvern_fuzz name)
  cmake_parse_arguments(arg "" "CORPUS" "SRCS;DEPS" ${ARGN})
  if(KVERN_FUZZ)
    add_executable(fuzz_${name} ${arg_SRCS})
    target_link_libraries(fuzz_${name} PRIVATE kvern_flags kvern_usage ${arg_DEPS})
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    add_dependencies(fuzz_targets fuzz_${name})
  endif()
  add_executable(fuzz_corpus_${name} ${arg_SRCS})
  target_link_libraries(fuzz_corpus_${name} PRIVATE kvern_flags kvern_usage kvern_corpus_main
    ${arg_DEPS})
  kvern_precompile_product(fuzz_corpus_${name})
  add_dependencies(fast_tests fuzz_corpus_${name})
  add_test(NAME fuzz_corpus_${name}
    COMMAND fuzz_corpus_${name} "${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name}")
  set_tests_properties(fuzz_corpus_${name} PROPERTIES LABELS fast TIMEOUT 120)
endfunction()

# kvern_python_test(NAME SCRIPT [LABELS ...] [TIMEOUT seconds] [ENVIRONMENT ...]
# [ARGUMENTS ...]): a unittest script run by Debian's python3, which has the packages of tools/setup.
function(kvern_python_test name script)
  cmake_parse_arguments(arg "" "TIMEOUT" "LABELS;ENVIRONMENT;ARGUMENTS" ${ARGN})
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_test(NAME ${name}
    COMMAND /usr/bin/python3 -B "${CMAKE_CURRENT_SOURCE_DIR}/${script}" ${arg_ARGUMENTS}
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "KVERN_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};${arg_ENVIRONMENT}")
endfunction()
