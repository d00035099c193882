// What Highway compiles each kernel for. Include before any Highway header.
#pragma once

// Three targets are enough (see Isa); the others would only add build time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)

// The address of `table` in the namespace compiled for `isa`. Use in the HWY_ONCE part of a file.
#define KVERN_TABLE_FOR(table, isa)               \
  ((isa) == Isa::kAvx512 ? HWY_CHOOSE_AVX3(table) \
   : (isa) == Isa::kAvx2 ? HWY_CHOOSE_AVX2(table) \
                         : &HWY_STATIC_DISPATCH(table))
