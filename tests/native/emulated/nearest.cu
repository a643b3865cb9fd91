// Faults that miss what is right by one step (the next element, the last byte, a fence one line too late), and right
// kernels that stop just before them. faults.cu says how a line is marked; the right ones leave x[0] in y[0].
#include <cuda_runtime.h>

#include "faults.h"

extern __shared__ float of_file[];
__shared__ float tile_of_file[8][4];

namespace {

using Bytes = unsigned char;
using Long = unsigned long long;

__device__ float table[8] = {0, 1, 2, 3, 4, 5, 6, 7};
__device__ float board[4][4];
__device__ int sum, turn, lock;
__device__ volatile int flag;
__constant__ int kSteps[] = {1, 2, 4};
__managed__ int both;
const float kLiterals[4] = {1, 2, 3, 4};
float of_host[4] = {1, 2, 3, 4};

// ---- one element beyond, at each width ------------------------------------------------------------------------------
__global__ void byte_past(float* y, const float*) {
  reinterpret_cast<Bytes*>(y)[1024] = 0;  // fault: outside
}
__global__ void half_past(float* y, const float*) {
  reinterpret_cast<unsigned short*>(y)[512] = 0;  // fault: outside
}
__global__ void word_past(float* y, const float*) {
  y[256] = 0;  // fault: outside
}
__global__ void double_past(float* y, const float*) {
  reinterpret_cast<double*>(y)[128] = 0;  // fault: outside
}
__global__ void vector_past(float* y, const float*) {
  reinterpret_cast<float4*>(y)[64] = make_float4(0, 0, 0, 0);  // fault: outside
}
__global__ void byte_before(float* y, const float* x) {
  y[0] = reinterpret_cast<const Bytes*>(x)[-1];  // fault: outside
}
__global__ void vector_half_past(float* y, const float* x) {
  const float* from = x + 190;
  *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(from);  // fault: outside, misaligned
}
__global__ void shared_word_past(float* y, const float* x) {
  __shared__ float tile[16];
  float* at = tile;
  at[16] = x[0];  // fault: outside
  y[0] = x[0];
}
__global__ void shared_word_before(float* y, const float* x) {
  __shared__ float tile[16];
  float* at = tile;
  at[int(threadIdx.x) - 1] = x[0];  // fault: outside
  y[0] = x[0];
}
__global__ void shared_vector_past(float* y, const float* x) {
  __shared__ __align__(16) float tile[6];
  for (int k = 0; k < 6; ++k) tile[k] = x[k];
  const float* at = tile;
  *reinterpret_cast<float4*>(y) = reinterpret_cast<const float4*>(at)[threadIdx.x + 1];  // fault: outside
}
__global__ void shared_byte_past(float* y, const float* x) {
  __shared__ Bytes bytes[5];
  Bytes* at = bytes;
  at[5] = 1;  // fault: outside
  y[0] = x[0];
}
__global__ void dynamic_past(float* y, const float* x) {
  extern __shared__ float all[];
  all[64] = x[0];  // fault: outside
  y[0] = x[0];
}
__global__ void variable_past(float* y, const float*) {
  const float* at = table;
  y[0] = at[threadIdx.x + 8];  // fault: outside
}
__global__ void variable_before(float* y, const float*) {
  const float* at = table;
  y[0] = at[int(threadIdx.x) - 1];  // fault: outside
}
__global__ void constant_past(float* y, const float*) {
  y[0] = float(kSteps[threadIdx.x + 3]);  // fault: outside
}
__global__ void copy_past(float* y, const float* x) {
  memcpy(y + 192, x, 65 * sizeof(float));  // fault: outside
}
__global__ void copy_from_past(float* y, const float* x) {
  memcpy(y, x, 193 * sizeof(float));  // fault: outside
}
__global__ void set_past(float* y, const float*) {
  memset(y, 0, 1025);  // fault: outside
}
__global__ void copy_of_unset(float* y, const float*) {
  memcpy(y, y + 1, 4);  // fault: unset
}
__global__ void writes_a_literal(float* y, const float*) {
  const_cast<float*>(kLiterals)[threadIdx.x] = y[0] = 1;  // fault: outside
}
__global__ void array_of_the_host(float* y, const float* x) {
  y[threadIdx.x] = x[threadIdx.x];  // fault: outside
}

// ---- indices beyond an array's type ---------------------------------------------------------------------------------
__global__ void local_past(float* y, const float* x) {
  float own[8];
  for (int k = 0; k < 8; ++k) own[k] = x[k];
  const int k = int(threadIdx.x) + 8;
  y[0] = own[k];  // fault: outside
}
__global__ void local_before(float* y, const float* x) {
  float own[8];
  for (int k = 0; k < 8; ++k) own[k] = x[k];
  const int k = int(threadIdx.x) - 1;
  y[0] = own[k];  // fault: outside
}
__global__ void local_rows_past(float* y, const float* x) {
  float own[4][2];
  for (int k = 0; k < 8; ++k) own[k / 2][k % 2] = x[k];
  const int k = int(threadIdx.x) + 4;
  y[0] = own[k][0];  // fault: outside
}
__global__ void into_another_array(float* y, const float* x) {
  __shared__ float first[64], second[64];
  first[threadIdx.x] = second[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = first[threadIdx.x + 81];  // fault: outside, unset
}
__global__ void last_row_past(float* y, const float* x) {
  __shared__ float rows[4][8];
  rows[threadIdx.x / 8][threadIdx.x % 8] = x[threadIdx.x];
  __syncwarp();
  const int column = int(threadIdx.x % 8) + 1;
  y[threadIdx.x] = rows[3][column];  // fault: outside
}
__global__ void board_past(float* y, const float*) {
  y[0] = board[threadIdx.x + 4][0];  // fault: outside
}
__global__ void local_of_another(float* y, const float* x) {
  __shared__ float* of_first;
  float own = x[threadIdx.x];
  if (threadIdx.x == 0) of_first = &own;
  __syncthreads();
  y[threadIdx.x] = *of_first;  // fault: outside
}

// ---- alignment at each width ----------------------------------------------------------------------------------------
__global__ void odd_half(float* y, const float* x) {
  y[0] = *reinterpret_cast<const unsigned short*>(reinterpret_cast<const Bytes*>(x) + 1);  // fault: misaligned
}
__global__ void odd_word(float* y, const float* x) {
  y[0] = *reinterpret_cast<const float*>(reinterpret_cast<const Bytes*>(x) + 2);  // fault: misaligned
}
__global__ void odd_double(float* y, const float* x) {
  y[0] = float(*reinterpret_cast<const double*>(x + 1));  // fault: misaligned
}
__global__ void odd_vector(float* y, const float* x) {
  *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(x + 2);  // fault: misaligned
}

// ---- stores that differ in one byte ---------------------------------------------------------------------------------
__global__ void last_byte_of_a_word(float* y, const float*) {
  reinterpret_cast<unsigned*>(y)[0] = threadIdx.x << 24;  // fault: race in a warp
}
__global__ void first_byte_of_a_word(float* y, const float*) {
  reinterpret_cast<unsigned*>(y)[0] = threadIdx.x;  // fault: race in a warp
}
__global__ void last_byte_of_a_double(float* y, const float*) {
  reinterpret_cast<Long*>(y)[0] = static_cast<unsigned long long>(threadIdx.x) << 56;  // fault: race in a warp
}
__global__ void one_byte(float* y, const float*) {
  reinterpret_cast<Bytes*>(y)[3] = Bytes(threadIdx.x);  // fault: race in a warp
}
__global__ void last_lane_unordered(float* y, const float* x) {
  __shared__ float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];  // fault: race in a warp
  if (threadIdx.x < 31) __syncwarp(0x7fffffff);
  y[threadIdx.x] = tile[31 - threadIdx.x];  // fault: race in a warp, unset
}
__global__ void last_unset(float* y, const float* x) {
  __shared__ Bytes bytes[32];
  if (threadIdx.x < 31) bytes[threadIdx.x] = Bytes(x[threadIdx.x]);
  __syncwarp();
  y[threadIdx.x] = bytes[threadIdx.x];  // fault: unset
}
__global__ void volatile_is_no_barrier(float* y, const float* x) {
  __shared__ float tile[32];
  volatile float* at = tile;
  at[threadIdx.x] = x[threadIdx.x];       // fault: race in a warp
  y[threadIdx.x] = at[31 - threadIdx.x];  // fault: race in a warp, unset
}

// ---- blocks and their fences ----------------------------------------------------------------------------------------
__global__ void blocks_share_a_variable(float* y, const float* x) {
  if (threadIdx.x == 0) table[0] = x[blockIdx.x];  // fault: race of blocks
  y[blockIdx.x] = 0;
}
__global__ void ticket_without_fence(float* y, float* partial) {
  if (threadIdx.x > 0) return;
  partial[blockIdx.x] = float(blockIdx.x);  // fault: race of blocks
  if (atomicAdd(&turn, 1) == int(gridDim.x) - 1)
    for (unsigned k = 0; k < gridDim.x; ++k) y[k] = partial[k];  // fault: race of blocks
}
__global__ void fence_before_the_store(float* y, float* partial) {
  if (threadIdx.x > 0) return;
  __threadfence();
  partial[blockIdx.x] = float(blockIdx.x);  // fault: race of blocks
  if (atomicAdd(&turn, 1) == int(gridDim.x) - 1)
    for (unsigned k = 0; k < gridDim.x; ++k) y[k] = partial[k];  // fault: race of blocks
}
__global__ void fence_of_the_block(float* y, float* partial) {
  if (threadIdx.x > 0) return;
  partial[blockIdx.x] = float(blockIdx.x);  // fault: race of blocks
  __threadfence_block();
  if (atomicAdd(&turn, 1) == int(gridDim.x) - 1)
    for (unsigned k = 0; k < gridDim.x; ++k) y[k] = partial[k];  // fault: race of blocks
}
__global__ void fence_of_another_thread(float* y, float* partial) {
  __shared__ bool last;
  partial[64 * blockIdx.x + threadIdx.x] = 1;  // fault: race of blocks
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(&turn, 1) == int(gridDim.x) - 1;
  }
  __syncthreads();
  if (last) y[threadIdx.x] = partial[threadIdx.x] + partial[64 + threadIdx.x];  // fault: race of blocks
}
__global__ void fence_behind_the_ticket(float* y, float* partial) {
  if (threadIdx.x > 0) return;
  partial[blockIdx.x] = float(blockIdx.x);  // fault: race of blocks
  const bool last = atomicAdd(&turn, 1) == int(gridDim.x) - 1;
  __threadfence();
  if (last)
    for (unsigned k = 0; k < gridDim.x; ++k) y[k] = partial[k];  // fault: race of blocks
}
__global__ void read_behind_the_ticket(float* y, float* partial) {
  if (threadIdx.x > 0) return;
  __threadfence();
  const bool last = atomicAdd(&turn, 1) == int(gridDim.x) - 1;
  y[blockIdx.x] = partial[0];  // fault: race of blocks
  if (last) partial[0] = 1;    // fault: race of blocks
}
__global__ void unlocked_too_early(float* y, const float*) {
  if (threadIdx.x > 0) return;
  while (atomicCAS(&lock, 0, 1) != 0) {
  }
  __threadfence();
  atomicExch(&lock, 0);
  table[7] += 1;  // fault: race of blocks
  y[0] = 0;
}
__global__ void lock_without_fence(float* y, const float*) {
  if (threadIdx.x > 0) return;
  while (atomicCAS(&lock, 0, 1) != 0) {
  }
  table[7] += 1;  // fault: race of blocks
  atomicExch(&lock, 0);
  y[blockIdx.x] = 0;
}
__global__ void flag_without_fence(float* y, const float* x) {
  __shared__ float value;
  __shared__ volatile int ready;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    value = x[0];  // fault: race in a block
    ready = 1;     // fault: race in a block
  }
  if (threadIdx.x == 32) {
    while (ready == 0) {  // fault: race in a block
    }
    y[0] = value;  // fault: race in a block, unset
  }
}

__global__ void queue_emptied_too_early(float* y, const float* x) {
  __shared__ float ring[4];
  __shared__ volatile int head, tail;
  if (threadIdx.x == 0) {
    head = 0;
    tail = 0;
  }
  __syncthreads();
  for (int k = 0; k < 16 && threadIdx.x == 0; ++k) {
    while (k - tail == 4) {
    }
    ring[k % 4] = x[k];  // fault: race in a block
    __threadfence_block();
    head = k + 1;
  }
  for (int k = 0; k < 16 && threadIdx.x == 32; ++k) {
    while (head == k) {
    }
    __threadfence_block();
    tail = k + 1;
    y[k] = ring[k % 4];  // fault: race in a block
  }
}

// ---- lanes and waits ------------------------------------------------------------------------------------------------
__global__ void shuffle_past_the_block(float* y, const float* x) {
  y[threadIdx.x] = __shfl_down_sync(0xffffffff, x[threadIdx.x], 1);  // fault: meeting
}
__global__ void nobody_sets_the_flag(float* y, const float* x) {
  while (flag == 0) {  // fault: deadlock
  }
  y[0] = x[0];
}
__global__ void nobody_unlocks(float* y, const float* x) {
  while (atomicCAS(&lock, 0, 1) != 0) {  // fault: deadlock
  }
  y[0] = x[0];
}
__global__ void waits_for_a_later_block(float* y, const float* x) {
  if (blockIdx.x == 0)
    while (atomicAdd(&turn, 0) == 0) __nanosleep(100);  // fault: unsupported
  atomicAdd(&turn, 1);
  y[blockIdx.x] = x[0];
}
__device__ float deep(const float* x, int depth) {
  volatile float own[1024];
  own[depth % 1024] = x[0];
  return depth == 0 ? own[0] : deep(x, depth - 1) + 0 * own[depth % 1024];
}
__global__ void too_many_locals(float* y, const float* x) {  // fault: stack
  volatile float own[160 << 10];
  for (int k = 0; k < 160 << 10; ++k) own[k] = x[0];
  y[0] = own[threadIdx.x];
}
__global__ void more_than_one_instruction(float* y, const float* x) {
  unsigned one;
  asm volatile("mov.u32 %0, 1; vote.ballot.b32 %0, 1;" : "=r"(one));  // fault: unsupported
  y[threadIdx.x] = x[one];
}
__global__ void divides_by_zero(float* y, const float*) {
  y[0] = float(7 / int(threadIdx.x));  // fault: division
}

// ---- the host
// ---------------------------------------------------------------------------------------------------------
void set_by_the_host(float* y, const float*) {
  memset(y, 0, 4);  // fault: outside
}
void copied_by_the_host(float* y, const float* x) {
  float own[2];
  memcpy(own, x, 8);  // fault: outside
  cudaMemcpy(y, own, 8, cudaMemcpyHostToDevice);
}
void variable_of_the_host(float*, const float*) {
  table[3] = 1;  // fault: outside
}

// ---- right ones -----------------------------------------------------------------------------------------------------
__global__ void right_ends(float* y, const float* x) {
  reinterpret_cast<Bytes*>(y)[1023] = 0;
  reinterpret_cast<unsigned short*>(y)[511] = 0;
  y[255] = 0;
  reinterpret_cast<double*>(y)[127] = 0;
  reinterpret_cast<float4*>(y)[63] = make_float4(0, 0, 0, 0);
  y[0] = x[0] + 0 * (x[191] + reinterpret_cast<const float4*>(x)[47].w);
}
__global__ void right_shared_ends(float* y, const float* x) {
  extern __shared__ float all[];
  __shared__ Bytes bytes[5];
  all[63] = bytes[4] = 1;
  y[0] = x[0] * all[63] * bytes[4];
}
__global__ void right_alignment(float* y, const float* x) {
  const auto* bytes = reinterpret_cast<const Bytes*>(x);
  const float zero = 0 * (float(bytes[1]) + *reinterpret_cast<const unsigned short*>(bytes + 2) + x[1]) +
                     0 * float(reinterpret_cast<const Long*>(x)[1] % 2);
  y[0] = x[0] + zero + 0 * reinterpret_cast<const float4*>(x + 4)->x;
}
__global__ void right_equal_bytes(float* y, const float* x) {
  reinterpret_cast<Bytes*>(y)[7] = 3;
  reinterpret_cast<Long*>(y)[1] = 5;
  y[0] = x[0];
}
__global__ void right_neighbours(float* y, const float* x) {
  reinterpret_cast<Bytes*>(y)[4 + threadIdx.x] = Bytes(threadIdx.x);
  if (threadIdx.x == 0) y[0] = x[0];
}
__global__ void right_local_ends(float* y, const float* x) {
  float own[8], rows[4][2];
  for (int k = 0; k < 8; ++k) own[k] = rows[k / 2][k % 2] = x[k];
  const int k = int(threadIdx.x) + 7;
  const float* end = &own[8];
  y[0] = x[0] + 0 * (own[k] + rows[k / 2][1] + end[-1]);
}
__global__ void right_rows(float* y, const float* x) {  // a note: the index of a column runs through all rows
  __shared__ float rows[4][8];
  rows[0][threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = rows[threadIdx.x / 8][threadIdx.x % 8];
}
__global__ void right_own_local(float* y, const float* x) {
  float own[4] = {x[0], x[1], x[2], x[3]};
  float* at = threadIdx.x % 2 ? own : own + 1;
  at[0] += 1;
  y[threadIdx.x] = x[threadIdx.x] + 0 * own[threadIdx.x % 4];
}
__global__ void right_many_locals(float* y, const float* x) {
  volatile float own[100 << 10];
  for (int k = 0; k < 100 << 10; k += 64) own[k] = x[0];
  y[threadIdx.x] = threadIdx.x == 0 ? own[64] : 0;
}
__global__ void right_recursion(float* y, const float* x) { y[0] = deep(x, 100); }
__global__ void right_file_shared(float* y, const float* x) {
  of_file[threadIdx.x] = tile_of_file[threadIdx.x / 4][threadIdx.x % 4] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = of_file[threadIdx.x] + tile_of_file[0][0] - *of_file;
}
__global__ void right_table(float* y, const float* x) {
  y[threadIdx.x] = x[threadIdx.x] + table[threadIdx.x % 8] - float(threadIdx.x % 8) + float(kSteps[2]) - 4;
}
__global__ void right_literals(float* y, const float* x) {
  const char* text = "0123";
  y[threadIdx.x] = x[threadIdx.x] + kLiterals[threadIdx.x % 4] - float(text[threadIdx.x % 4] - '0') - 1;
}
__global__ void right_board(float* y, const float* x) {
  board[threadIdx.x / 4][threadIdx.x % 4] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = board[threadIdx.x / 4][threadIdx.x % 4];
}
__global__ void right_counter(float* y, const float* x) {
  static __device__ int seen;
  if (atomicAdd(&seen, 1) >= 0 && blockIdx.x == 0) y[threadIdx.x] = x[threadIdx.x];
}
__global__ void right_symbol(float* y, const float* x) {
  if (threadIdx.x == 0) y[0] = x[0] + float(sum - 5);
}
__global__ void right_managed(float* y, const float* x) {
  if (threadIdx.x == 0) y[0] = x[0] + float(both++ - 3);
}
__global__ void right_print(float* y, const float* x) {
  y[threadIdx.x] = x[threadIdx.x];
  printf("%d ", int(threadIdx.x));
}
struct Pair {
  float values[40];
};
__global__ void right_copies(float* y, const float* x) {
  Pair pair;
  memcpy(&pair, x, sizeof pair);
  memset(y + 64, 0, 192 * sizeof(float));
  memmove(y, &pair, sizeof pair);
  if (memcmp(y, x, 160) != 0) y[0] = NAN;
}
__global__ void right_struct(Pair* y, const Pair* x) { *y = *x; }
__global__ void right_ticket(float* y, float* partial, const float* x) {
  __shared__ bool last;
  partial[64 * blockIdx.x + threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(&turn, 1) == int(gridDim.x) - 1;
  }
  __syncthreads();
  if (last) y[threadIdx.x] = (partial[threadIdx.x] + partial[64 + threadIdx.x]) / 2;
}
__global__ void right_ticket_of_all(float* y, float* partial, const float* x) {
  __shared__ bool last;
  partial[64 * blockIdx.x + threadIdx.x] = x[threadIdx.x];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&turn, 1) == int(gridDim.x) - 1;
  __syncthreads();
  if (last) y[threadIdx.x] = (partial[threadIdx.x] + partial[64 + threadIdx.x]) / 2;
}
__global__ void right_last_reader(float* y, float* all, const float* x) {
  if (threadIdx.x > 0) return;
  y[1 + blockIdx.x] = all[0];
  __threadfence();
  if (atomicAdd(&turn, 1) == int(gridDim.x) - 1) {
    all[0] = 0;
    y[0] = x[0];
  }
}
__global__ void right_lock(float* y, const float* x) {
  if (threadIdx.x == 0) {
    while (atomicCAS(&lock, 0, 1) != 0) __nanosleep(10);
    table[7] = table[7] + 1;
    __threadfence();
    atomicExch(&lock, 0);
  }
  if (blockIdx.x == 0) y[threadIdx.x] = x[threadIdx.x];
}
__global__ void right_lock_of_lanes(float* y, const float* x) {
  for (bool done = false; !done;)
    if (atomicCAS(&lock, 0, 1) == 0) {
      __threadfence();
      table[6] = table[6] + 1;
      __threadfence();
      atomicExch(&lock, 0);
      done = true;
    }
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void right_lock_of_all(float* y, const float* x) {
  for (unsigned k = 0; k < 32; ++k)
    if (threadIdx.x % 32 == k) {
      while (atomicExch(&lock, 1) != 0) __nanosleep(10);
      table[5] = table[5] + 1;
      __threadfence();
      *static_cast<volatile int*>(&lock) = 0;
    }
  if (blockIdx.x == 0) y[threadIdx.x] = x[threadIdx.x];
}
__global__ void right_look_back(float* y, const float* x) {
  if (threadIdx.x > 0) return;
  const int me = atomicAdd(&turn, 1);
  while (atomicAdd(&sum, 0) != me) {  // a block that has come earlier
  }
  table[4] += x[me];
  if (me == 0) y[0] = table[4] - 4;
  __threadfence();
  atomicExch(&sum, me + 1);
}
// One warp fills a ring of four places, another one empties it.
__global__ void right_queue(float* y, const float* x) {
  __shared__ float ring[4];
  __shared__ volatile int head, tail;
  if (threadIdx.x == 0) {
    head = 0;
    tail = 0;
  }
  __syncthreads();
  for (int k = 0; k < 16 && threadIdx.x == 0; ++k) {
    while (k - tail == 4) {
    }
    ring[k % 4] = x[k];
    __threadfence_block();
    head = k + 1;
  }
  for (int k = 0; k < 16 && threadIdx.x == 32; ++k) {
    while (head == k) {
    }
    y[k] = ring[k % 4];
    __threadfence_block();
    tail = k + 1;
  }
}
__global__ void right_volatile_flag(float* y, const float* x) {
  __shared__ float value;
  __shared__ volatile int ready;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x == 32) {
    value = x[0];
    __threadfence_block();
    ready = 1;
  }
  if (threadIdx.x == 0) {
    while (ready == 0) {
    }
    __threadfence_block();
    y[0] = value;
  }
}
__global__ void right_atomic_flag(float* y, const float* x) {
  __shared__ float value;
  __shared__ int ready;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x == 63) {
    value = x[0];
    __threadfence();
    atomicExch(&ready, 1);
  }
  if (threadIdx.x == 0) {
    while (atomicAdd(&ready, 0) == 0) {
    }
    y[0] = value;
  }
}
__global__ void right_warps_in_turn(float* y, const float* x) {
  __shared__ float value;
  __shared__ int whose;
  if (threadIdx.x == 0) whose = 3;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    const int me = int(threadIdx.x / 32);
    while (atomicOr(&whose, 0) != me) __nanosleep(20);
    value = me == 3 ? x[0] : value;
    if (me == 0) y[0] = value;
    __threadfence_block();
    atomicSub(&whose, 1);
  }
}
__global__ void right_many_atomics_without_a_change(float* y, const float* x) {
  for (int k = 0; k < 10000; ++k) atomicMax(&sum, 0);
  y[0] = x[0];
}
__global__ void right_many_atomics(float* y, const float* x) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (int k = 0; k < 1000; ++k) atomicMax(&count, 7);
  __syncthreads();
  y[threadIdx.x] = x[threadIdx.x] + float(count - 7);
}
__global__ void right_volatile_sum(float* y, const float* x) {
  __shared__ float tile[64];
  volatile float* at = tile;
  at[threadIdx.x] = x[threadIdx.x];
  at[threadIdx.x + 32] = 0;
  __syncwarp();
  for (int step = 16; step > 0; step /= 2) {
    const float other = at[threadIdx.x + step];
    __syncwarp();
    at[threadIdx.x] = at[threadIdx.x] + 0 * other;
    __syncwarp();
  }
  y[threadIdx.x] = tile[threadIdx.x];
}
__global__ void right_short_warp(float* y, const float* x) {
  const float other = __shfl_sync(0xffffffff, x[threadIdx.x], int(blockDim.x) - 1);
  const int all = __reduce_add_sync(0xffffffff, 1);
  __syncwarp();
  y[threadIdx.x] = x[threadIdx.x] + 0 * other + float(all) - 20;
}
__global__ void right_mask_of_the_block(float* y, const float* x) {
  const float other = __shfl_down_sync(0x000fffff, x[threadIdx.x], 1, 4);
  y[threadIdx.x] = x[threadIdx.x] + 0 * other;
}
__global__ void right_ptx(float* y, const float* x) {
  __shared__ unsigned shared[64];
  const unsigned at = unsigned(__cvta_generic_to_shared(&shared[threadIdx.x]));
  unsigned lane, thread, below, shifted, back, bits;
  float value, left, right, twice;
  int old;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
  asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(value) : "l"(x + thread));
  asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2+8];" : "=f"(left), "=f"(right) : "l"(x));
  asm volatile("shl.b32 %0, %1, 3;" : "=r"(shifted) : "r"(lane));
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(shifted));
  asm volatile("bar.sync 0;");
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(back) : "r"(at));
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(twice) : "f"(value), "f"(2.f), "f"(0.f));
  asm("mov.b32 %0, %1;" : "=r"(bits) : "f"(1.f));
  asm volatile("atom.global.add.s32 %0, [%1], %2;" : "=r"(old) : "l"(&turn), "r"(1));
  asm volatile("membar.gl;");
  const bool good = lane == threadIdx.x % 32 && below == (1u << lane) - 1 && left == x[2] && right == x[3] &&
                    back == 8 * lane && twice == 2 * value && bits == 0x3f800000u && old < 64;
  asm volatile("st.global.f32 [%0], %1;" ::"l"(y + thread), "f"(good ? value : NAN));
}
__global__ void right_declared(float* y, const float* x) {
  if (kLiterals[0] == 2)
    asm volatile("{ .reg .u32 id; mov.u32 id, %%smid; cvt.u64.u32 %0, id; }" ::"l"(x));  // no thread comes by
  y[threadIdx.x] = x[threadIdx.x];
}

}  // namespace

void reset_variables() {
  const float first[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  const int none = 0;
  cudaMemcpyToSymbol(table, first, sizeof first);
  cudaMemcpyToSymbol(turn, &none, sizeof none);
  cudaMemcpyToSymbol(lock, &none, sizeof none);
  cudaMemcpyToSymbol(sum, &none, sizeof none);
}

const std::vector<Planted>& nearest() {
#define ONE(name, blocks, threads, bytes)                                           \
  {                                                                                 \
    #name, [](float* y, const float* x) { name<<<blocks, threads, bytes>>>(y, x); } \
  }
#define PARTS(name, blocks, threads)                                                          \
  {                                                                                           \
    #name, [](float* y, const float* x) { set(y, x), name<<<blocks, threads>>>(y, y + 128); } \
  }
#define HOST(name) \
  {                \
    #name, name    \
  }
  static const std::vector<Planted> kAll = {
      ONE(byte_past, 1, 1, 0),
      ONE(half_past, 1, 1, 0),
      ONE(word_past, 1, 1, 0),
      ONE(double_past, 1, 1, 0),
      ONE(vector_past, 1, 1, 0),
      ONE(byte_before, 1, 1, 0),
      ONE(vector_half_past, 1, 1, 0),
      ONE(shared_word_past, 1, 1, 0),
      ONE(shared_word_before, 1, 1, 0),
      ONE(shared_vector_past, 1, 1, 0),
      ONE(shared_byte_past, 1, 1, 0),
      ONE(dynamic_past, 1, 1, 256),
      ONE(variable_past, 1, 1, 0),
      ONE(variable_before, 1, 1, 0),
      ONE(constant_past, 1, 1, 0),
      ONE(copy_past, 1, 1, 0),
      ONE(copy_from_past, 1, 1, 0),
      ONE(set_past, 1, 1, 0),
      ONE(copy_of_unset, 1, 1, 0),
      ONE(writes_a_literal, 1, 1, 0),
      {"array_of_the_host",
       [](float* y, const float*) {
         const float* x = of_host;
         array_of_the_host<<<1, 4>>>(y, x);
       }},
      ONE(local_past, 1, 1, 0),
      ONE(local_before, 1, 1, 0),
      ONE(local_rows_past, 1, 1, 0),
      ONE(into_another_array, 1, 64, 0),
      ONE(last_row_past, 1, 32, 0),
      ONE(board_past, 1, 1, 0),
      ONE(local_of_another, 1, 64, 0),
      ONE(odd_half, 1, 1, 0),
      ONE(odd_word, 1, 1, 0),
      ONE(odd_double, 1, 1, 0),
      ONE(odd_vector, 1, 1, 0),
      ONE(last_byte_of_a_word, 1, 2, 0),
      ONE(first_byte_of_a_word, 1, 2, 0),
      ONE(last_byte_of_a_double, 1, 2, 0),
      ONE(one_byte, 1, 2, 0),
      ONE(last_lane_unordered, 1, 32, 0),
      ONE(last_unset, 1, 32, 0),
      ONE(volatile_is_no_barrier, 1, 32, 0),
      ONE(blocks_share_a_variable, 2, 1, 0),
      PARTS(ticket_without_fence, 2, 32),
      PARTS(fence_before_the_store, 2, 32),
      PARTS(fence_of_the_block, 2, 32),
      {"fence_of_another_thread",
       [](float* y, const float* x) { set(y, x), fence_of_another_thread<<<2, 64>>>(y, y + 128); }},
      PARTS(fence_behind_the_ticket, 2, 32),
      PARTS(read_behind_the_ticket, 3, 32),
      ONE(unlocked_too_early, 2, 32, 0),
      ONE(lock_without_fence, 2, 32, 0),
      ONE(flag_without_fence, 1, 64, 0),
      ONE(queue_emptied_too_early, 1, 64, 0),
      ONE(shuffle_past_the_block, 1, 20, 0),
      ONE(nobody_sets_the_flag, 1, 32, 0),
      ONE(nobody_unlocks, 1, 2, 0),
      ONE(waits_for_a_later_block, 2, 1, 0),
      ONE(too_many_locals, 1, 1, 0),
      ONE(more_than_one_instruction, 1, 1, 0),
      ONE(divides_by_zero, 1, 1, 0),
      HOST(set_by_the_host),
      HOST(copied_by_the_host),
      HOST(variable_of_the_host),
  };
  return kAll;
}

const std::vector<Planted>& nearly() {
#define TICKET(name, blocks, threads)                                                           \
  {                                                                                             \
    #name, [](float* y, const float* x) { set(y, x), name<<<blocks, threads>>>(y, y + 64, x); } \
  }
  static const std::vector<Planted> kAll = {
      ONE(right_ends, 1, 1, 0),
      ONE(right_shared_ends, 1, 1, 256),
      ONE(right_alignment, 1, 1, 0),
      ONE(right_equal_bytes, 1, 64, 0),
      ONE(right_neighbours, 1, 64, 0),
      ONE(right_local_ends, 1, 1, 0),
      ONE(right_rows, 1, 32, 0),
      ONE(right_own_local, 1, 64, 0),
      ONE(right_many_locals, 1, 64, 0),
      ONE(right_recursion, 1, 1, 0),
      ONE(right_file_shared, 1, 32, 128),
      ONE(right_table, 2, 64, 0),
      ONE(right_literals, 1, 64, 0),
      ONE(right_board, 1, 16, 0),
      ONE(right_counter, 3, 64, 0),
      {"right_symbol",
       [](float* y, const float* x) {
         const int five = 5;
         int found = 0;
         cudaMemcpyToSymbol(sum, &five, sizeof five);
         right_symbol<<<1, 32>>>(y, x);
         cudaMemcpyFromSymbol(&found, sum, sizeof found);
         if (found != 5) set(y, x, 0);
       }},
      {"right_managed",
       [](float* y, const float* x) {
         both = 3;
         right_managed<<<1, 32>>>(y, x);
         if (both != 4) set(y, x, 0);
       }},
      ONE(right_print, 1, 2, 0),
      ONE(right_copies, 1, 1, 0),
      {"right_struct",
       [](float* y, const float* x) {
         right_struct<<<1, 1>>>(reinterpret_cast<Pair*>(y), reinterpret_cast<const Pair*>(x));
       }},
      TICKET(right_ticket, 2, 64),
      TICKET(right_ticket_of_all, 2, 64),
      TICKET(right_last_reader, 4, 32),
      ONE(right_lock, 4, 64, 0),
      ONE(right_lock_of_lanes, 1, 64, 0),
      ONE(right_lock_of_all, 3, 64, 0),
      ONE(right_look_back, 4, 32, 0),
      ONE(right_queue, 1, 64, 0),
      ONE(right_volatile_flag, 1, 64, 0),
      ONE(right_atomic_flag, 1, 64, 0),
      ONE(right_warps_in_turn, 1, 128, 0),
      ONE(right_many_atomics, 1, 64, 0),
      ONE(right_many_atomics_without_a_change, 1, 1, 0),
      ONE(right_volatile_sum, 1, 32, 0),
      ONE(right_short_warp, 1, 20, 0),
      ONE(right_mask_of_the_block, 1, 20, 0),
      ONE(right_ptx, 1, 64, 0),
      ONE(right_declared, 1, 32, 0),
  };
  return kAll;
}
