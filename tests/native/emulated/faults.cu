// Kernels with one planted fault each, and right ones that look like it; test_emulator_faults.cpp runs them.
//
// A line that a report may name ends in "// fault: KIND", the first kind of which must be found; a second kind is what
// follows from it. Where two lines conflict, either is named.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include "faults.h"

namespace {

__global__ void missing_barrier(float* y, const float* x) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];       // fault: race in a block
  y[threadIdx.x] = tile[63 - threadIdx.x];  // fault: race in a block, unset
}
__global__ void missing_second_barrier(float* y, const float* x) {
  __shared__ float tile[64];
  float sum = 0;
  for (int k = 0; k < 3; ++k) {
    tile[threadIdx.x] = x[64 * k + threadIdx.x];  // fault: race in a block
    __syncthreads();
    sum += tile[63 - threadIdx.x];  // fault: race in a block
  }
  y[threadIdx.x] = sum;
}
__global__ void missing_syncwarp(float* y, const float* x) {
  __shared__ float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];       // fault: race in a warp
  y[threadIdx.x] = tile[31 - threadIdx.x];  // fault: race in a warp, unset
}
__global__ void partial_syncwarp(float* y, const float* x) {
  __shared__ float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];  // fault: race in a warp
  __syncwarp(threadIdx.x < 16 ? 0x0000ffff : 0xffff0000);
  y[threadIdx.x] = tile[31 - threadIdx.x];  // fault: race in a warp, unset
}
__global__ void shuffle_is_no_barrier(float* y, const float* x) {
  __shared__ float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];  // fault: race in a warp
  const float first = __shfl_sync(0xffffffff, x[threadIdx.x], 0);
  y[threadIdx.x] = first + tile[31 - threadIdx.x];  // fault: race in a warp, unset
}
__global__ void one_word(float* y, const float* x) {
  y[0] = x[threadIdx.x];  // fault: race in a warp
}
__global__ void blocks_share_a_word(float* y, const float* x) {
  if (threadIdx.x == 0) y[0] = x[blockIdx.x];  // fault: race of blocks
}
__global__ void blocks_hand_over(float* y, const float* x) {
  if (threadIdx.x == 0) y[blockIdx.x] = x[0];                           // fault: race of blocks
  if (threadIdx.x == 32) y[64 + blockIdx.x] = y[(blockIdx.x + 1) % 2];  // fault: race of blocks, unset
}
__global__ void sum_without_atomics(float* y, const float* x) {
  y[0] += x[threadIdx.x];  // fault: race in a warp
}
__global__ void plain_beside_atomic(float* y, const float* x) {
  if (threadIdx.x == 40) y[0] = 0;   // fault: race in a warp
  atomicAdd(&y[0], x[threadIdx.x]);  // fault: race in a warp
}
__global__ void read_past_the_end(float* y, const float* x) {
  y[threadIdx.x] = x[4 * threadIdx.x + 1];  // fault: outside
}
__global__ void read_before_the_start(float* y, const float* x) {
  y[threadIdx.x] = x[int(threadIdx.x) - 1];  // fault: outside
}
__global__ void write_past_the_end(float* y, const float* x) {
  y[threadIdx.x + 255] = x[threadIdx.x];  // fault: outside
}
__global__ void shared_past_the_end(float* y, const float* x) {
  __shared__ float tile[64];
  tile[threadIdx.x + 1] = x[threadIdx.x];  // fault: outside
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x > 0 ? threadIdx.x : 1];
}
__global__ void too_little_dynamic(float* y, const float* x) {
  extern __shared__ float all[];
  all[threadIdx.x] = x[threadIdx.x];  // fault: outside
  y[threadIdx.x] = all[threadIdx.x];  // fault: outside
}
__global__ void null_pointer(float* y, const float* x) {
  const float* from = threadIdx.x == 5 ? nullptr : x;
  y[threadIdx.x] = from[0];  // fault: outside
}
__global__ void host_memory(float* y, const float* x) {
  y[threadIdx.x] = x[0];  // fault: outside
}
__global__ void freed(float* y, const float* x) {
  y[threadIdx.x] = x[threadIdx.x];  // fault: outside
}
__global__ void unset_shared(float* y, const float* x) {
  __shared__ float sums[64];
  if (threadIdx.x < 63) sums[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = sums[threadIdx.x];  // fault: unset
}
__global__ void unset_global(float* y, const float* x) {
  y[threadIdx.x] += x[threadIdx.x];  // fault: unset
}
__global__ void unset_last_block(float* y, const float* x) {
  __shared__ float kept[64];
  if (blockIdx.x == 0) kept[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 32) y[64 * blockIdx.x + threadIdx.x] = kept[threadIdx.x];  // fault: unset
}
__global__ void misaligned(float* y, const float* x) {
  const float4 four = *reinterpret_cast<const float4*>(x + 1);  // fault: misaligned
  y[threadIdx.x] = four.x + four.w;
}
__global__ void misaligned_shared(float* y, const float* x) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  const float4 four = *reinterpret_cast<const float4*>(&tile[threadIdx.x / 4 * 4]);  // fault: misaligned
  y[threadIdx.x] = four.x;
}
__global__ void barrier_in_a_branch(float* y, const float* x) {
  if (threadIdx.x < 32) __syncthreads();  // fault: barrier
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void two_barriers(float* y, const float* x) {
  if (threadIdx.x < 32)
    __syncthreads();  // fault: barrier
  else
    __syncthreads();  // fault: barrier
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void left_before_the_barrier(float* y, const float* x) {
  if (threadIdx.x >= 50) return;
  y[threadIdx.x] = x[threadIdx.x];
  __syncthreads();  // fault: barrier
}
__global__ void shuffle_of_half_a_warp(float* y, const float* x) {
  if (threadIdx.x % 32 < 16) y[threadIdx.x] = __shfl_down_sync(0xffffffff, x[threadIdx.x], 1);  // fault: meeting
}
__global__ void shuffle_from_outside(float* y, const float* x) {
  if (threadIdx.x % 32 < 16) y[threadIdx.x] = __shfl_sync(0x0000ffff, x[threadIdx.x], 20);  // fault: meeting
}
__global__ void not_in_the_mask(float* y, const float* x) {
  y[threadIdx.x] = __shfl_sync(0x0000ffff, x[threadIdx.x], 0);  // fault: meeting
}
__global__ void waits_for_ever(float* y, const float* x) {
  if (threadIdx.x % 32 == 0)
    __syncthreads();  // fault: deadlock
  else
    y[threadIdx.x] = __shfl_sync(0xffffffff, x[threadIdx.x], 1);  // fault: deadlock
}
__global__ void no_atomics_order(int* y, int* turn) {
  if (threadIdx.x == 0) y[blockIdx.x] = turn[0]++;  // fault: race of blocks
}
__global__ void copy_not_waited_for(float* y, const float* x) {
  __shared__ float tile[32];
  const unsigned to = unsigned(__cvta_generic_to_shared(&tile[threadIdx.x]));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(x + threadIdx.x), "n"(4), "r"(4));
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group %0;" ::"n"(1));
  y[threadIdx.x] = tile[threadIdx.x];  // fault: unset
}
__global__ void copy_without_a_barrier(float* y, const float* x) {
  __shared__ float tile[64];
  const unsigned to = unsigned(__cvta_generic_to_shared(&tile[threadIdx.x]));
  const float* from = x + threadIdx.x;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %2;"  // fault: race in a block
               ::"r"(to),
               "l"(from), "n"(4));
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group %0;" ::"n"(0));
  y[threadIdx.x] = tile[63 - threadIdx.x];  // fault: race in a block, unset
}
__global__ void copy_over_what_is_read(float* y, const float* x) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];  // fault: race in a block, unset
  const unsigned to = unsigned(__cvta_generic_to_shared(&tile[threadIdx.x]));
  const float* from = x + threadIdx.x;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %2;"  // fault: race in a block
               ::"r"(to),
               "l"(from), "n"(4));
  asm volatile("cp.async.commit_group;");
  __syncthreads();
  asm volatile("cp.async.wait_group %0;" ::"n"(0));
}
__global__ void unknown_instruction(float* y, const float* x) {
  y[threadIdx.x] = x[threadIdx.x];
  asm volatile("bar.sync 1, 64;" ::: "memory");  // fault: instruction
}

// ---- right ones
// ------------------------------------------------------------------------------------------------------
__global__ void good_tile(float* y, const float* x) {
  __shared__ float tile[64];
  for (int k = 0; k < 3; ++k) {
    __syncthreads();
    tile[threadIdx.x] = x[64 * k + threadIdx.x];
    __syncthreads();
    y[64 * k + threadIdx.x] = tile[63 - threadIdx.x];
  }
}
__global__ void good_warp(float* y, const float* x) {
  __shared__ float tile[64];
  const unsigned base = threadIdx.x / 32 * 32;
  tile[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  const float other = tile[base + 31 - threadIdx.x % 32];
  __syncwarp();
  tile[threadIdx.x] = other;
  y[threadIdx.x] = tile[threadIdx.x];
}
__global__ void good_halves(float* y, const float* x) {
  __shared__ float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncwarp(threadIdx.x < 16 ? 0x0000ffff : 0xffff0000);
  y[threadIdx.x] = tile[threadIdx.x ^ 15];
}
__global__ void good_bytes(unsigned char* y, const unsigned char* x) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void good_atomics(int* y, const float*) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(y, count);
}
__global__ void good_early_warp(float* y, const float* x) {
  if (threadIdx.x >= 32) return;
  float sum = x[threadIdx.x];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  y[threadIdx.x] = sum;
}
__global__ void good_short_warp(float* y, const float* x) {
  y[threadIdx.x] = x[threadIdx.x] + float(__ballot_sync(0xffffffff, threadIdx.x < 5) == 31);
}
// Each block leaves a part; the last one to take a ticket adds them.
__global__ void good_last_block(float* y, float* partial, unsigned* tickets) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = float(blockIdx.x);
    __threadfence();
    last = atomicAdd(tickets, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0)
    for (unsigned k = 0; k < gridDim.x; ++k) y[k] = partial[k];
}
__global__ void good_groups(float* y, const float* x) {
  namespace cg = cooperative_groups;
  const auto block = cg::this_thread_block();
  const auto tile = cg::tiled_partition<16>(block);
  __shared__ float sums[4];
  float sum = x[block.thread_rank()];
  for (unsigned step = tile.size() / 2; step > 0; step /= 2) sum += tile.shfl_down(sum, step);
  if (tile.thread_rank() == 0) sums[tile.meta_group_rank()] = sum;
  block.sync();
  y[block.thread_rank()] = sums[block.thread_rank() / 16];
}
__global__ void good_active(float* y, const float* x) {
  y[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x % 2) {
    const unsigned lanes = __activemask();
    y[threadIdx.x] = float(__popc(lanes));
  }
}
// Lanes that match, reduce, vote and count.
__global__ void good_votes(float* y, const float* x) {
  const int t = int(threadIdx.x), lane = t % 32;
  const bool right =
      __match_any_sync(0xffffffff, lane / 8) == 0xffu << lane / 8 * 8 && __reduce_add_sync(0xffffffff, lane) == 496 &&
      __reduce_max_sync(0xffffffff, unsigned(lane)) == 31 && __any_sync(0xffffffff, lane == 3) &&
      !__all_sync(0xffffffff, lane == 3) && __shfl_up_sync(0xffffffff, lane, 1) == (lane ? lane - 1 : 0) &&
      __shfl_sync(0xffffffff, lane, 3, 8) == lane / 8 * 8 + 3;
  y[t] = right ? x[t] : NAN;
  const bool counted = __syncthreads_count(t < 7) == 7 && __syncthreads_or(t == 3) && !__syncthreads_and(t == 3);
  if (!counted) y[t] = NAN;
}
__global__ void good_copy(float* y, const float* x) {
  __shared__ float tile[2][64];
  for (int k = 0; k < 3; ++k) {  // the next one is on its way while one is read
    if (k < 2) {
      const unsigned to = unsigned(__cvta_generic_to_shared(&tile[k][threadIdx.x]));
      const float* from = x + 64 * k + threadIdx.x;
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(4), "r"(4));
    }
    asm volatile("cp.async.commit_group;");
    if (k == 0) continue;
    asm volatile("cp.async.wait_group %0;" ::"n"(1));
    __syncthreads();
    y[64 * (k - 1) + threadIdx.x] = tile[k - 1][63 - threadIdx.x];
  }
}
// A product of small whole numbers, a(row, k) = row - k and b(k, column) = 2 k + column: exact in tf32.
__global__ void good_product(float* y, const float* x) {
  const int t = int(threadIdx.x), g = t / 4, k = t % 4;
  const auto a = [](int row, int at) { return __float_as_uint(float(row - at)); };
  const auto b = [](int at, int column) { return __float_as_uint(float(2 * at + column)); };
  float c[4] = {1, 1, 1, 1};
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a(g, k)), "r"(a(g + 8, k)), "r"(a(g, k + 4)), "r"(a(g + 8, k + 4)), "r"(b(k, g)), "r"(b(k + 4, g)));
  bool right = true;
  for (int e = 0; e < 4; ++e) {
    const int row = g + 8 * (e / 2), column = 2 * k + e % 2;
    float sum = 1;
    for (int at = 0; at < 8; ++at) sum += float(row - at) * float(2 * at + column);
    right = right && c[e] == sum;
  }
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(1 + 0x1p-11f));  // a tie, away from zero
  y[t] = right && rounded == __float_as_uint(1 + 0x1p-10f) ? x[t] : NAN;
}

// ---- costs, of one warp and worked out by hand
// -----------------------------------------------------------------------
// "// cost: N of M, L lanes": sectors or turns of the banks, the least for the same bytes, and lanes that take part.
__global__ void costs(float* y, const float* x) {
  __shared__ float square[32][32], padded[32][33];
  const int t = int(threadIdx.x);
  float sum = x[t];                                           // cost: 4 of 4, 32 lanes
  sum += x[t * 5];                                            // cost: 20 of 4, 32 lanes
  sum += x[7];                                                // cost: 1 of 1, 32 lanes
  sum += x[t + 1];                                            // cost: 5 of 4, 32 lanes
  if (t % 2 == 0) sum += x[t + 64];                           // cost: 4 of 2, 16 lanes
  const float4 four = reinterpret_cast<const float4*>(x)[t];  // cost: 16 of 16, 32 lanes
  for (int k = 0; k < 32; ++k) {
    square[k][t] = sum;  // cost: 1 of 1, 32 lanes
    padded[k][t] = sum;  // cost: 1 of 1, 32 lanes
  }
  __syncwarp();
  sum += square[t][0];          // cost: 32 of 1, 32 lanes
  sum += padded[t][0];          // cost: 1 of 1, 32 lanes
  sum += square[0][t / 2 * 2];  // cost: 1 of 1, 32 lanes
  sum += square[t % 4][0];      // cost: 4 of 1, 32 lanes
  y[t] = sum + four.x;          // cost: 4 of 4, 32 lanes
}

}  // namespace

const std::vector<Planted>& planted() {
  static const std::vector<Planted> kAll = {
      {"missing_barrier", [](float* y, const float* x) { missing_barrier<<<1, 64>>>(y, x); }},
      {"missing_second_barrier", [](float* y, const float* x) { missing_second_barrier<<<1, 64>>>(y, x); }},
      {"missing_syncwarp", [](float* y, const float* x) { missing_syncwarp<<<1, 32>>>(y, x); }},
      {"partial_syncwarp", [](float* y, const float* x) { partial_syncwarp<<<1, 32>>>(y, x); }},
      {"shuffle_is_no_barrier", [](float* y, const float* x) { shuffle_is_no_barrier<<<1, 32>>>(y, x); }},
      {"one_word", [](float* y, const float* x) { one_word<<<1, 32>>>(y, x); }},
      {"blocks_share_a_word", [](float* y, const float* x) { blocks_share_a_word<<<2, 64>>>(y, x); }},
      {"blocks_hand_over", [](float* y, const float* x) { blocks_hand_over<<<2, 64>>>(y, x); }},
      {"sum_without_atomics", [](float* y, const float* x) { set(y, x), sum_without_atomics<<<1, 32>>>(y, x); }},
      {"plain_beside_atomic", [](float* y, const float* x) { set(y, x), plain_beside_atomic<<<1, 64>>>(y, x); }},
      {"read_past_the_end", [](float* y, const float* x) { read_past_the_end<<<1, 64>>>(y, x); }},
      {"read_before_the_start", [](float* y, const float* x) { read_before_the_start<<<1, 64>>>(y, x); }},
      {"write_past_the_end", [](float* y, const float* x) { write_past_the_end<<<1, 64>>>(y, x); }},
      {"shared_past_the_end", [](float* y, const float* x) { shared_past_the_end<<<1, 64>>>(y, x); }},
      {"too_little_dynamic", [](float* y, const float* x) { too_little_dynamic<<<1, 64, 128>>>(y, x); }},
      {"null_pointer", [](float* y, const float* x) { null_pointer<<<1, 64>>>(y, x); }},
      {"host_memory",
       [](float* y, const float*) {
         const float* x = host();
         host_memory<<<1, 64>>>(y, x);
       }},
      {"freed",
       [](float* y, const float*) {
         const float* x = gone();
         freed<<<1, 64>>>(y, x);
       }},
      {"unset_shared", [](float* y, const float* x) { unset_shared<<<1, 64>>>(y, x); }},
      {"unset_global", [](float* y, const float* x) { unset_global<<<1, 64>>>(y, x); }},
      {"unset_last_block", [](float* y, const float* x) { unset_last_block<<<2, 64>>>(y, x); }},
      {"misaligned", [](float* y, const float* x) { misaligned<<<1, 64>>>(y, x); }},
      {"misaligned_shared", [](float* y, const float* x) { misaligned_shared<<<1, 64>>>(y, x); }},
      {"barrier_in_a_branch", [](float* y, const float* x) { barrier_in_a_branch<<<1, 64>>>(y, x); }},
      {"two_barriers", [](float* y, const float* x) { two_barriers<<<1, 64>>>(y, x); }},
      {"left_before_the_barrier", [](float* y, const float* x) { left_before_the_barrier<<<1, 64>>>(y, x); }},
      {"shuffle_of_half_a_warp", [](float* y, const float* x) { shuffle_of_half_a_warp<<<1, 64>>>(y, x); }},
      {"shuffle_from_outside", [](float* y, const float* x) { shuffle_from_outside<<<1, 64>>>(y, x); }},
      {"not_in_the_mask", [](float* y, const float* x) { not_in_the_mask<<<1, 64>>>(y, x); }},
      {"waits_for_ever", [](float* y, const float* x) { waits_for_ever<<<1, 64>>>(y, x); }},
      {"copy_not_waited_for", [](float* y, const float* x) { copy_not_waited_for<<<1, 32>>>(y, x); }},
      {"copy_without_a_barrier", [](float* y, const float* x) { copy_without_a_barrier<<<1, 64>>>(y, x); }},
      {"copy_over_what_is_read", [](float* y, const float* x) { copy_over_what_is_read<<<1, 64>>>(y, x); }},
      {"unknown_instruction", [](float* y, const float* x) { unknown_instruction<<<1, 64>>>(y, x); }},
      {"no_atomics_order",
       [](float* y, const float* x) {
         int* turn = reinterpret_cast<int*>(y) + 128;
         set(y, x);
         no_atomics_order<<<4, 32>>>(reinterpret_cast<int*>(y), turn);
       }},
  };
  return kAll;
}

void run_costs(float* y, const float* x) { costs<<<1, 32>>>(y, x); }

const std::vector<Planted>& right() {
  static const std::vector<Planted> kAll = {
      {"good_tile", [](float* y, const float* x) { good_tile<<<1, 64>>>(y, x); }},
      {"good_warp", [](float* y, const float* x) { good_warp<<<1, 64>>>(y, x); }},
      {"good_halves", [](float* y, const float* x) { good_halves<<<1, 32>>>(y, x); }},
      {"good_bytes",
       [](float* y, const float* x) {
         good_bytes<<<1, 64>>>(reinterpret_cast<unsigned char*>(y), reinterpret_cast<const unsigned char*>(x));
       }},
      {"good_atomics",
       [](float* y, const float* x) { set(y, x), good_atomics<<<3, 64>>>(reinterpret_cast<int*>(y), x); }},
      {"good_early_warp", [](float* y, const float* x) { good_early_warp<<<1, 64>>>(y, x); }},
      {"good_short_warp", [](float* y, const float* x) { good_short_warp<<<1, 20>>>(y, x); }},
      {"good_last_block",
       [](float* y, const float* x) {
         set(y, x, 0);
         good_last_block<<<8, 32>>>(y, y + 64, reinterpret_cast<unsigned*>(y + 128));
       }},
      {"good_groups", [](float* y, const float* x) { good_groups<<<1, 64>>>(y, x); }},
      {"good_active", [](float* y, const float* x) { good_active<<<1, 64>>>(y, x); }},
      {"good_votes", [](float* y, const float* x) { good_votes<<<1, 64>>>(y, x); }},
      {"good_copy", [](float* y, const float* x) { good_copy<<<1, 64>>>(y, x); }},
      {"good_product", [](float* y, const float* x) { good_product<<<1, 32>>>(y, x); }},
  };
  return kAll;
}
