// for_rows: many loads in flight at once, whatever the number of rows.
#pragma once

namespace mnist::kernels::device {

// add(load(row), k) for rows group, group + kGroups, ... below `rows` in this order, kLoads loads in flight at a time
// whatever the number of rows, the k-th of them with k < kLoads: what lies past the end is read as the last row and
// left out, and __syncwarp() keeps the compiler from adding before it has issued every load. For whole warps.
template <int kGroups, int kLoads, class Load, class Add>
__device__ __forceinline__ void for_rows(int rows, int group, Load load, Add add) {
  for (int first = 0; first < rows; first += kGroups * kLoads) {
    decltype(load(0)) x[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) x[k] = load(min(first + group + kGroups * k, rows - 1));
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kLoads; ++k)
      if (first + group + kGroups * k < rows) add(x[k], k);
  }
}

}  // namespace mnist::kernels::device
