// The fused kernels in tf32, for several models.
#include "kernels/fused/launch_pack.cuh"

template struct mnist::fused::PackLaunch<mnist::Precision::kTf32>;
