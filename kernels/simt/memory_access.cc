// The one part of the emulator that is compiled with ThreadSanitizer's instrumentation: what it
// touches here, it touches as the CUDA thread that asked for it. 16 bytes are always two volatile
// accesses of 8: g++ does not instrument the vector moves it would make of them otherwise.
#include <cstdint>

#include "kernels/simt/report.h"
#include "kernels/simt/thread.h"

namespace kvern::simt {
namespace {

typedef uint64_t __attribute__((may_alias)) Word;

void Fill16(void* to, uint64_t value) {
  volatile Word* words = static_cast<volatile Word*>(to);
  words[0] = value;
  words[1] = value;
}

void CheckShared(const char* what, const void* pointer, CallSite site) {
  CheckAligned16(what, pointer, site);
  if (!t_here.thread->block->shared().Contains(pointer, 16)) {
    Fail(site, "%s at %p, which is not within an array in shared memory", what, pointer);
  }
}

}  // namespace

void Copy16(void* to, const void* from) {
  const volatile Word* source = static_cast<const volatile Word*>(from);
  volatile Word* target = static_cast<volatile Word*>(to);
  uint64_t low = source[0];
  uint64_t high = source[1];
  target[0] = low;
  target[1] = high;
}

void AsyncCopy16(void* shared, const void* global, bool valid, CallSite site) {
  CheckShared("CpAsync16 to", shared, site);
  if (valid) {
    CheckAligned16("CpAsync16 from", global, site);
    // A GPU reads at any time from now on until the wait: bad addresses show here.
    uint64_t now[2];
    Copy16(now, global);
  }
  Fill16(shared, ~uint64_t{0});
  t_here.thread->async.copies.push_back({shared, valid ? global : nullptr});
}

void AsyncCommit() {
  AsyncCopies& async = t_here.thread->async;
  async.group_ends.push_back(async.copies.size());
}

void AsyncWait(size_t pending) {
  AsyncCopies& async = t_here.thread->async;
  if (async.group_ends.size() <= pending) return;
  size_t groups = async.group_ends.size() - pending;
  size_t done = async.group_ends[groups - 1];
  for (size_t i = 0; i < done; ++i) {
    const AsyncCopy& copy = async.copies[i];
    if (copy.global != nullptr) {
      Copy16(copy.shared, copy.global);
    } else {
      Fill16(copy.shared, 0);
    }
  }
  auto first_copy = async.copies.begin();
  async.copies.erase(first_copy, first_copy + static_cast<ptrdiff_t>(done));
  auto first_group = async.group_ends.begin();
  async.group_ends.erase(first_group, first_group + static_cast<ptrdiff_t>(groups));
  for (size_t& end : async.group_ends) end -= done;
}

void LoadMatrix(uint32_t (&result)[4], const void* row, bool transposed, CallSite site) {
  Collective op = transposed ? Collective::kLdMatrixTrans : Collective::kLdMatrix;
  CheckShared(CollectiveName(op), row, site);
  LdMatrixOperands operands;
  Copy16(operands.row, row);
  WarpCollective(op, ~uint32_t{0}, site, &operands);
  for (int i = 0; i < 4; ++i) result[i] = operands.result[i];
}

}  // namespace kvern::simt
