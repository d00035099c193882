// A flow of control with its own stack, switched to by hand. The emulator runs each CUDA thread in
// one; all fibers of a block run on one OS thread.
#pragma once

#include <ucontext.h>

#include <cstddef>

#include "kernels/simt/sanitizers.h"

namespace kvern::simt {

enum class FiberKind {
  kAssembly,  // x86-64 only: saves the callee-saved registers, MXCSR and the x87 control word.
  kUcontext,  // POSIX swapcontext: anywhere, and 10 to 50 times slower (two system calls).
};

// The fastest kind this machine has.
FiberKind DefaultFiberKind();

class Fiber {
 public:
  using Entry = void (*)(void* argument);  // Must not return.

  // The calling OS thread's own flow: something to switch away from and back to.
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes this a new flow that calls entry(argument) on [stack, stack + bytes) when it is first
  // switched to. `stack` is 64-byte aligned, `bytes` a multiple of 64.
  void Start(FiberKind kind, void* stack, size_t bytes, Entry entry, void* argument);

  // Suspends `from`, which is the running one, and resumes `to`, on the same OS thread and of the
  // same kind (an OS thread's own flow fits both). Returns when something switches back to `from`.
  static void Switch(Fiber& from, Fiber& to);
  // The same for a fiber that will never be resumed.
  static void SwitchForGood(Fiber& from, Fiber& to);

 private:
  friend void FiberEntered(Fiber* fiber);
  void PrepareStack(char* top);
  void PrepareContext(void* stack, size_t bytes);
  static void Leave(Fiber& from, Fiber& to);
  void FinishSwitch();

  FiberKind kind_ = FiberKind::kUcontext;
  Entry entry_ = nullptr;  // Null: an OS thread's own flow.
  void* argument_ = nullptr;
  Fiber* previous_ = nullptr;  // Which fiber was left when this one was resumed.
#if defined(KVERN_SIMT_ASAN)
  const void* stack_ = nullptr;  // Of an OS thread: known once it has been left.
  size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
#endif
#if defined(KVERN_SIMT_TSAN)
  void* tsan_fiber_ = nullptr;
#endif
  void* stack_pointer_ = nullptr;  // kAssembly: of a suspended fiber.
  ucontext_t context_;             // kUcontext: of a suspended fiber.
};

}  // namespace kvern::simt
