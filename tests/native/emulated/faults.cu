// Kernels with one planted fault each, and right ones that look like it; test_emulator_faults.cpp runs them.
//
// A line that a report may name ends in "// fault: KIND", the first kind of which must be found; a second kind is what
// follows from it. Where two lines conflict, either is named.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
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
// Two roles: the first warp fills a stage, the second reads it.
__global__ void stage_overwritten(float* y, const float* x) {
  __shared__ float stage[32];
  const int lane = int(threadIdx.x % 32);
  for (int k = 0; k < 3; ++k)
    if (threadIdx.x < 32) {
      stage[lane] = x[32 * k + lane];  // fault: race in a block
      asm volatile("bar.arrive %0, %1;" ::"n"(1), "n"(64) : "memory");
      if (k < 2) asm volatile("bar.sync %0, %1;" ::"n"(2), "n"(64) : "memory");
    } else {
      asm volatile("bar.sync %0, %1;" ::"n"(1), "n"(64) : "memory");
      if (k < 2) asm volatile("bar.arrive %0, %1;" ::"n"(2), "n"(64) : "memory");
      y[32 * k + lane] = stage[31 - lane];  // fault: race in a block
    }
}
__global__ void counts_differ(float* y, const float* x) {
  asm volatile("bar.sync %0, %1;" ::"n"(3), "r"(threadIdx.x < 32 ? 64 : 128) : "memory");  // fault: barrier, deadlock
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void nobody_arrives(float* y, const float* x) {
  if (threadIdx.x < 32) asm volatile("bar.sync %0, %1;" ::"n"(1), "n"(64) : "memory");  // fault: deadlock
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void no_mbarrier(float* y, const float* x) {
  __shared__ unsigned long long barrier;
  const unsigned at = unsigned(__cvta_generic_to_shared(&barrier));
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory");  // fault: barrier, unset
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void wrong_parity(float* y, const float* x) {
  __shared__ unsigned long long barrier;
  __shared__ float tile[32];
  const unsigned at = unsigned(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(64) : "memory");
  __syncthreads();
  if (threadIdx.x < 32) {
    tile[threadIdx.x] = x[threadIdx.x];  // fault: race in a block
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory");
  } else {
    unsigned done;
    asm volatile("mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;"
                 : "=r"(done)
                 : "r"(at), "r"(1)
                 : "memory");
    y[threadIdx.x] = tile[63 - threadIdx.x] + float(done);  // fault: race in a block, unset
  }
}
__global__ void readers_not_waited_for(float* y, const float* x) {
  __shared__ float tile[32];
  const int lane = int(threadIdx.x % 32);
  if (threadIdx.x < 32) tile[lane] = x[lane];
  __syncthreads();
  y[threadIdx.x] = tile[0];  // fault: race in a block
  __syncwarp();
  if (threadIdx.x == 0) tile[0] = 0;  // fault: race in a block
}
__global__ void unknown_instruction(float* y, const float* x) {
  y[threadIdx.x] = x[threadIdx.x];
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");  // fault: unsupported
}

// ---- right ones -----------------------------------------------------------------------------------------------------

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
// All store the same value.
__global__ void good_same_value(float* y, const float* x) {
  __shared__ float all;
  all = x[5];
  __syncthreads();
  y[0] = all;
  y[threadIdx.x] = all;
}
// Lanes read a word, then one writes it.
__global__ void good_readers(float* y, const float* x) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  const float first = tile[threadIdx.x / 32 * 32];
  __syncwarp();
  if (threadIdx.x % 32 == 0) tile[threadIdx.x] = 0;
  y[threadIdx.x] = first;
}
// Roles that hand two stages to and fro, by numbers; then by barriers in shared memory, with copies.
__global__ void good_roles(float* y, const float* x) {
  __shared__ float stages[2][32];
  const int lane = int(threadIdx.x % 32);
  for (int k = 0; k < 6; ++k) {
    if (threadIdx.x < 32) {
      if (k >= 2) asm volatile("bar.sync %0, %1;" ::"r"(3 + k % 2), "n"(64) : "memory");
      stages[k % 2][lane] = x[32 * k + lane];
      asm volatile("bar.arrive %0, %1;" ::"r"(1 + k % 2), "n"(64) : "memory");
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(1 + k % 2), "n"(64) : "memory");
      y[32 * k + lane] = stages[k % 2][31 - lane];
      if (k < 4) asm volatile("bar.arrive %0, %1;" ::"r"(3 + k % 2), "n"(64) : "memory");
    }
  }
}
__global__ void good_ring(float* y, const float* x) {
  __shared__ unsigned long long full[2], empty[2];
  __shared__ float stages[2][32];
  const int lane = int(threadIdx.x % 32);
  const auto at = [](const void* p) { return unsigned(__cvta_generic_to_shared(p)); };
  const auto wait = [&](const void* barrier, int parity) {
    unsigned done;
    do
      asm volatile("mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;"
                   : "=r"(done)
                   : "r"(at(barrier)), "r"(parity)
                   : "memory");
    while (!done);
  };
  if (threadIdx.x < 2) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(&full[threadIdx.x])), "r"(32) : "memory");
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(&empty[threadIdx.x])), "r"(32) : "memory");
  }
  __syncthreads();
  for (int k = 0; k < 6; ++k) {
    const int stage = k % 2, turn = k / 2 % 2;
    if (threadIdx.x < 32) {
      if (k >= 2) wait(&empty[stage], 1 - turn);
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %2;" ::"r"(at(&stages[stage][lane])),
                   "l"(x + 32 * k + lane), "n"(4));
      asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at(&full[stage])) : "memory");
    } else {
      wait(&full[stage], turn);
      y[32 * k + lane] = stages[stage][31 - lane];
      asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at(&empty[stage])) : "memory");
    }
  }
}
// Products as good_product's, of fragments that ldmatrix brings: in bf16 and in fp16, b as it lies and transposed.
template <class Number, class Multiply>
__device__ bool right_matrices(Multiply multiply) {
  __shared__ __align__(16) Number a[16][16], b[8][16], b_turned[16][8];
  const int t = int(threadIdx.x), g = t / 4, k = t % 4;
  const auto of_a = [](int row, int at) { return float(row - at); };
  const auto of_b = [](int at, int column) { return float(2 * at + column); };
  for (int n = t; n < 256; n += 32) a[n / 16][n % 16] = Number(of_a(n / 16, n % 16));
  for (int n = t; n < 128; n += 32) {
    b[n / 16][n % 16] = Number(of_b(n % 16, n / 16));
    b_turned[n / 8][n % 8] = Number(of_b(n / 8, n % 8));
  }
  __syncwarp();
  const auto at = [](const void* p) { return unsigned(__cvta_generic_to_shared(p)); };
  unsigned of[3][4];
  // Lane 8 m + r gives row r of matrix m: of a (rows 0-7, 8-15) x (k 0-7, 8-15); of b both halves of k, twice.
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(of[0][0]), "=r"(of[0][1]), "=r"(of[0][2]), "=r"(of[0][3])
               : "r"(at(&a[t % 16][t / 16 * 8])));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(of[1][0]), "=r"(of[1][1]), "=r"(of[1][2]), "=r"(of[1][3])
               : "r"(at(&b[t % 8][t / 8 % 2 * 8])));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(of[2][0]), "=r"(of[2][1]), "=r"(of[2][2]), "=r"(of[2][3])
               : "r"(at(&b_turned[t % 16][0])));
  bool right = of[1][0] == of[2][0] && of[1][1] == of[2][1];
  float c[4] = {1, 1, 1, 1};
  multiply(c, of[0], of[1]);
  for (int e = 0; e < 4; ++e) {
    const int row = g + 8 * (e / 2), column = 2 * k + e % 2;
    float sum = 1;
    for (int n = 0; n < 16; ++n) sum += of_a(row, n) * of_b(n, column);
    right = right && c[e] == sum;
  }
  unsigned turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(of[1][0]));
  const Number want[2] = {b[2 * k][g], b[2 * k + 1][g]};
  return right && turned == *reinterpret_cast<const unsigned*>(want);
}
__global__ void good_matrices(float* y, const float* x) {
  bool right = right_matrices<__nv_bfloat16>([](float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  });
  right =
      right && right_matrices<__half>([](float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[4]) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
      });
  // To nearest, ties to even; denormals, the end of the range, saturation.
  const auto bits = [](auto number) { return *reinterpret_cast<const unsigned short*>(&number); };
  unsigned pair;
  asm("cvt.rn.relu.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(1e6f), "f"(-1.f));
  right = right && pair == 0x7bff0000u && bits(__half(1 + 0x1p-11f)) == 0x3c00 &&
          bits(__half(1 + 0x3p-11f)) == 0x3c02 && bits(__half(0x3p-25f)) == 2 && bits(__half(-65520.f)) == 0xfc00 &&
          bits(__nv_bfloat16(1 + 0x1p-8f)) == 0x3f80 && __half2float(__half(0x5p-24f)) == 0x5p-24f &&
          __byte_perm(0x33221180u, 0x77665544u, 0x8074u) == 0xff807744u;
  y[threadIdx.x] = right ? x[threadIdx.x] : NAN;
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

// ---- costs, of one warp and worked out by hand ----------------------------------------------------------------------

// "// cost: N of M, L lanes": sectors or turns of the banks, the least for the same bytes, and lanes that take part.
__global__ void costs(float* y, const float* x) {
  __shared__ float square[32][32], padded[32][33];
  __shared__ float4 wide[64];
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
  wide[t] = four;  // cost: 4 of 4, 32 lanes
  __syncwarp();
  wide[t * 2] = four;  // cost: 8 of 4, 32 lanes
  __syncwarp();
  sum += wide[5].y;             // cost: 1 of 1, 32 lanes
  const float4 same = wide[7];  // cost: 2 of 2, 32 lanes
  sum += same.x + same.w;
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
      {"stage_overwritten", [](float* y, const float* x) { stage_overwritten<<<1, 64>>>(y, x); }},
      {"counts_differ", [](float* y, const float* x) { counts_differ<<<1, 64>>>(y, x); }},
      {"nobody_arrives", [](float* y, const float* x) { nobody_arrives<<<1, 64>>>(y, x); }},
      {"no_mbarrier", [](float* y, const float* x) { no_mbarrier<<<1, 64>>>(y, x); }},
      {"wrong_parity", [](float* y, const float* x) { wrong_parity<<<1, 64>>>(y, x); }},
      {"readers_not_waited_for", [](float* y, const float* x) { readers_not_waited_for<<<1, 64>>>(y, x); }},
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
      {"good_same_value", [](float* y, const float* x) { good_same_value<<<2, 64>>>(y, x); }},
      {"good_readers", [](float* y, const float* x) { good_readers<<<1, 64>>>(y, x); }},
      {"good_roles", [](float* y, const float* x) { good_roles<<<1, 64>>>(y, x); }},
      {"good_ring", [](float* y, const float* x) { good_ring<<<1, 64>>>(y, x); }},
      {"good_matrices", [](float* y, const float* x) { good_matrices<<<1, 32>>>(y, x); }},
      {"good_product", [](float* y, const float* x) { good_product<<<1, 32>>>(y, x); }},
  };
  return kAll;
}
