// What has run on hardware and what has not, for --version of the programs that compute. It is true
// of the source, whatever was built of it here. docs/kernels.md says the same at more length;
// whoever runs tools/gpu_check on a GPU changes both.
#pragma once

namespace kvern {

inline constexpr char kHardwareNote[] =
    "cpu: this source has been run on x86-64, with AVX2 and with AVX-512\n"
    "cuda: this source has been compiled for sm_80 and sm_90, and run on an emulated GPU, not yet "
    "on hardware";

}  // namespace kvern
