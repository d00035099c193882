#include "kernels/simt/report.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace kvern::simt {
namespace {

void PrintBlock(const char* problem, const char* why = "") {
  std::fprintf(stderr, "simt: kernel '%s', block (%u,%u,%u): %s%s\n", t_here.kernel,
               t_here.block_index.x, t_here.block_index.y, t_here.block_index.z, problem, why);
}

void PrintThread(const char* before, const Thread& thread) {
  std::fprintf(stderr, "%s (%u,%u,%u)", before, thread.index.x, thread.index.y, thread.index.z);
}

void PrintPlace(const Thread& thread) {
  std::fprintf(stderr, " in %s at %s:%d", CollectiveName(thread.op), thread.site.file,
               thread.site.line);
}

bool SamePlace(const Thread& a, const Thread& b) { return a.op == b.op && a.site == b.site; }

}  // namespace

const char* CollectiveName(Collective op) {
  static constexpr const char* kNames[] = {"__syncthreads",   "__syncwarp",       "__shfl_sync",
                                           "__shfl_xor_sync", "__shfl_down_sync", "__ballot_sync",
                                           "__any_sync",      "__all_sync",       "LdMatrixX4",
                                           "LdMatrixX4Trans", "MmaBf16",          "__nanosleep"};
  return kNames[static_cast<size_t>(op)];
}

void Fail(CallSite site, const char* format, ...) {
  PrintBlock("misuse");
  PrintThread("  thread", *t_here.thread);
  std::fprintf(stderr, " at %s:%d: ", site.file, site.line);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "\n");
  std::abort();
}

void FailDivergent(const Thread& self, const Thread& other) {
  PrintBlock("divergent collective");
  for (const Thread* thread : {&other, &self}) {
    PrintThread("  thread", *thread);
    PrintPlace(*thread);
    std::fprintf(stderr, "\n");
  }
  std::abort();
}

void FailDeadlock(const Block& block, const char* why) {
  PrintBlock("deadlock, ", why);
  unsigned returned = 0;
  // Runs of neighbours that wait at one place share a line.
  const Thread* first = nullptr;
  const Thread* last = nullptr;
  unsigned count = 0;
  auto print_run = [&] {
    if (first == nullptr) return;
    PrintThread(count > 1 ? "  threads" : "  thread", *first);
    if (count > 1) PrintThread(" to", *last);
    std::fprintf(stderr, count > 1 ? " wait" : " waits");
    PrintPlace(*first);
    std::fprintf(stderr, "\n");
    first = nullptr;
  };
  unsigned threads = t_here.block_dim.x * t_here.block_dim.y * t_here.block_dim.z;
  for (unsigned i = 0; i < threads; ++i) {
    const Warp& warp = block.warp(i / kWarpSize);
    const Thread& thread = warp.lanes[i % kWarpSize];
    bool live = (warp.live >> thread.lane & 1) != 0;
    if (!live) ++returned;
    if (first != nullptr && (!live || !SamePlace(*first, thread))) print_run();
    if (!live) continue;
    if (first == nullptr) {
      first = &thread;
      count = 0;
    }
    last = &thread;
    ++count;
  }
  print_run();
  if (returned > 0) std::fprintf(stderr, "  %u of %u threads have returned\n", returned, threads);
  std::abort();
}

}  // namespace kvern::simt
