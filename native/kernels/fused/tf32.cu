// The fused kernels in tf32.
#include "kernels/fused/launch.cuh"

template struct mnist::fused::Launch<mnist::Precision::kTf32>;
