// What has run on hardware and what has not, for --version of the programs that compute.
// docs/kernels.md says the same at more length; whoever runs tools/gpu_check on a GPU changes both.
#pragma once

namespace kvern {

inline constexpr char kHardwareNote[] =
    "cpu: run on x86-64 with AVX2 and AVX-512\n"
    "cuda: compiled for sm_80 and sm_90, run by the tests on an emulated GPU, not yet on hardware";

}  // namespace kvern
