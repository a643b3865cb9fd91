// The fused kernels in fp32, for several models.
#include "kernels/fused/launch_pack.cuh"

template struct mnist::fused::PackLaunch<mnist::Precision::kFp32>;
