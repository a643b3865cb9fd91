// conv_bn_relu_pool, separate: the fastest row of each op's own ladder, one after the other; what engine tiled does.
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/conv_bn_relu_pool/conv_bn_relu_pool.h"
#include "kernels/relu_max_pool2d/relu_max_pool2d.h"

namespace mnist::kernels {

void conv_bn_relu_pool_forward_separate(float* a, std::uint8_t* route, float* z, float* statistics, float* scratch,
                                        const float* x, const float* w, const float* bias, const float* gamma,
                                        const float* beta, std::int64_t batch, int in, int out, int side,
                                        cudaStream_t stream) {
  const int area = side * side;
  float *mean = statistics, *var = statistics + out, *y = scratch, *partial = y + aligned_floats(batch * out * area);
  conv2d_forward_register_tiled(z, x, w, bias, batch, in, out, side, stream);
  batch_norm_statistics_groups(mean, var, partial, z, batch, out, area, stream);
  batch_norm_normalize_float4(y, z, gamma, beta, mean, var, batch, out, area, stream);
  relu_max_pool2d_forward_float2(a, route, y, batch * out, side / 2, stream);
}

void conv_bn_relu_pool_backward_separate(float* dx, float* dw, float* dgamma, float* dbeta, float* scratch,
                                         const float* da, const float* x, const float* z, const float* statistics,
                                         const std::uint8_t* route, const float* w, const float* gamma,
                                         std::int64_t batch, int in, int out, int side, cudaStream_t stream) {
  const std::int64_t values = aligned_floats(batch * out * side * side);
  float *dy = scratch, *dz = dy + values, *partial = dz + values;
  relu_max_pool2d_backward_float2(dy, da, route, batch * out, side / 2, stream);
  batch_norm_backward_float4(dz, dgamma, dbeta, partial, dy, z, gamma, statistics, statistics + out, batch, out,
                             side * side, stream);
  conv2d_backward_weight_register_tiled(dw, partial, dz, x, batch, in, out, side, stream);
  if (dx) conv2d_backward_data_register_tiled(dx, dz, w, batch, in, out, side, stream);
}

}  // namespace mnist::kernels
