// The vocabulary of PTX (kernels/device/) by its short names, in all fused kernels.
#pragma once

namespace mnist::kernels::device {}

namespace mnist::fused {

using namespace kernels::device;

}  // namespace mnist::fused
