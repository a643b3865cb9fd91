// The part of NCCL 2 that the project uses: own declarations, bound at run time, and the end of a communicator.
// Only a training on several GPUs asks for it.
//
// tests/native/test_declarations.cpp holds every declaration and number below against NVIDIA's header.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace mnist::nccl {

struct UniqueId {
  char bytes[128];
};
using RawCommunicator = void*;

// The numbers of NCCL's enumerations: ours, NVIDIA's, the value.
#define MNIST_NCCL_CONSTANTS(X) \
  X(kSuccess, ncclSuccess, 0)   \
  X(kBytes, ncclInt8, 0)

enum Constant : int {
#define MNIST_ROW(name, real, value) name = value,
  MNIST_NCCL_CONSTANTS(MNIST_ROW)
#undef MNIST_ROW
};

// The functions: name without `nccl`, result, parameters as in NCCL's reference (enumerations are ints).
#define MNIST_NCCL_FUNCTIONS(X)                                                                               \
  X(GetVersion, int, (int*))                                                                                  \
  X(GetUniqueId, int, (UniqueId*))                                                                            \
  X(CommInitRank, int, (RawCommunicator*, int size, UniqueId, int rank))                                      \
  X(CommAbort, int, (RawCommunicator))                                                                        \
  X(AllGather, int, (const void* from, void* to, std::size_t count, int type, RawCommunicator, cudaStream_t)) \
  X(GetErrorString, const char*, (int))

struct Api {
  std::string version;
#define MNIST_ROW(name, result, parameters) result(*name) parameters = nullptr;
  MNIST_NCCL_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
};

// Loads NCCL on the first call, without NVLink multicast unless NCCL_NVLS_ENABLE says otherwise. Throws
// UnavailableError if it is missing.
const Api& api();

// One GPU's end, made by all ranks together. Ends without waiting for the others.
class Communicator {
 public:
  Communicator(int rank, int size, const UniqueId& id);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // to = `bytes` bytes of each rank, in their order; in stream order, and a graph may record it.
  void all_gather(void* to, const void* from, std::size_t bytes, cudaStream_t stream) const;

 private:
  RawCommunicator handle_ = nullptr;
};

UniqueId unique_id();

}  // namespace mnist::nccl
