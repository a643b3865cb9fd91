// The fused kernels in bf16, for several models.
#include "kernels/fused/launch_pack.cuh"

template struct mnist::fused::PackLaunch<mnist::Precision::kBf16>;
