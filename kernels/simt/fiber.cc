#include "kernels/simt/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
// KvernSimtSwitch(save, load): pushes what the ABI lets a callee expect to survive, stores the
// stack pointer at *save and goes on with the stack `load`. It ends with `ret` and not with a jump:
// fibers mostly switch to one that waits at the same call, so that this and the returns after it
// are predicted (measured: a shuffle takes 14 ns per lane, with a jump 22).
asm(R"(
.text
.p2align 4
.globl KvernSimtSwitch
.hidden KvernSimtSwitch
.type KvernSimtSwitch, @function
KvernSimtSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  subq $8, %rsp
  stmxcsr (%rsp)
  fnstcw 4(%rsp)
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  ldmxcsr (%rsp)
  fldcw 4(%rsp)
  addq $8, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size KvernSimtSwitch, .-KvernSimtSwitch

.globl KvernSimtEntry
.hidden KvernSimtEntry
.type KvernSimtEntry, @function
KvernSimtEntry:
  .cfi_startproc
  .cfi_undefined rip
  movq %r12, %rdi
  callq *%rbx
  ud2
  .cfi_endproc
.size KvernSimtEntry, .-KvernSimtEntry
.section .note.GNU-stack, "", @progbits
.text
)");

extern "C" {
void KvernSimtSwitch(void** save, void* load);
void KvernSimtEntry();
}
#endif

namespace kvern::simt {

// The first thing that runs on a fiber's own stack.
void FiberEntered(Fiber* fiber) {
  fiber->FinishSwitch();
  fiber->entry_(fiber->argument_);
  std::abort();  // An entry must not return.
}

namespace {

#if defined(__x86_64__)
// What KvernSimtSwitch() leaves on the stack of a suspended fiber, lowest address first.
struct SavedRegisters {
  uint32_t mxcsr;
  uint16_t x87_control;
  uint16_t unused;
  uint64_t r15, r14, r13, r12, rbx, rbp;
  void (*resume)();
};
#endif

// makecontext() passes ints: a pointer travels in two halves.
void ContextEntered(unsigned high, unsigned low) {
  uintptr_t address = (static_cast<uintptr_t>(high) << 32) | low;
  FiberEntered(reinterpret_cast<Fiber*>(address));
}

}  // namespace

FiberKind DefaultFiberKind() {
#if defined(__x86_64__)
  return FiberKind::kAssembly;
#else
  return FiberKind::kUcontext;
#endif
}

Fiber::~Fiber() {
#if defined(KVERN_SIMT_TSAN)
  if (entry_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
#endif
}

void Fiber::PrepareStack([[maybe_unused]] char* top) {
#if defined(__x86_64__)
  // 16 bytes of zeros end the chain of frames; the entry starts with an aligned stack.
  SavedRegisters saved = {};
  asm("stmxcsr %0\n\tfnstcw %1" : "=m"(saved.mxcsr), "=m"(saved.x87_control));
  saved.r12 = reinterpret_cast<uint64_t>(this);
  saved.rbx = reinterpret_cast<uint64_t>(&FiberEntered);
  saved.resume = &KvernSimtEntry;
  std::memset(top - 16, 0, 16);
  stack_pointer_ = top - 16 - sizeof(saved);
  std::memcpy(stack_pointer_, &saved, sizeof(saved));
#else
  std::abort();  // There is no assembly for this machine: DefaultFiberKind() says so.
#endif
}

void Fiber::PrepareContext(void* stack, size_t bytes) {
  if (getcontext(&context_) != 0) std::abort();
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  uintptr_t address = reinterpret_cast<uintptr_t>(this);
  makecontext(&context_, reinterpret_cast<void (*)()>(&ContextEntered), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address & 0xffffffffu));
}

void Fiber::Start(FiberKind kind, void* stack, size_t bytes, Entry entry, void* argument) {
  kind_ = kind;
  entry_ = entry;
  argument_ = argument;
#if defined(KVERN_SIMT_ASAN)
  stack_ = stack;
  stack_bytes_ = bytes;
#endif
#if defined(KVERN_SIMT_TSAN)
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
  if (kind == FiberKind::kAssembly) {
    PrepareStack(static_cast<char*>(stack) + bytes);
  } else {
    PrepareContext(stack, bytes);
  }
}

// Runs on the resumed fiber's stack, after each switch to it.
void Fiber::FinishSwitch() {
#if defined(KVERN_SIMT_ASAN)
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack_, &stack, &bytes);
  previous_->stack_ = stack;
  previous_->stack_bytes_ = bytes;
#endif
}

void Fiber::Leave(Fiber& from, Fiber& to) {
  to.previous_ = &from;
#if defined(KVERN_SIMT_TSAN)
  if (from.entry_ == nullptr) from.tsan_fiber_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.tsan_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
  const Fiber& own = from.entry_ != nullptr ? from : to;
#if defined(__x86_64__)
  if (own.kind_ == FiberKind::kAssembly) {
    KvernSimtSwitch(&from.stack_pointer_, to.stack_pointer_);
    return;
  }
#endif
  if (own.kind_ != FiberKind::kUcontext || swapcontext(&from.context_, &to.context_) != 0) {
    std::abort();
  }
}

void Fiber::Switch(Fiber& from, Fiber& to) {
#if defined(KVERN_SIMT_ASAN)
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.stack_, to.stack_bytes_);
#endif
  Leave(from, to);
  from.FinishSwitch();
}

void Fiber::SwitchForGood(Fiber& from, Fiber& to) {
#if defined(KVERN_SIMT_ASAN)
  __sanitizer_start_switch_fiber(nullptr, to.stack_, to.stack_bytes_);
#endif
  Leave(from, to);
  std::abort();  // It was resumed after all.
}

}  // namespace kvern::simt
