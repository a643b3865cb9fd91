// The exception of a CUDA call that failed.
#include "cuda/check.h"

#include <string>

#include "mnist/errors.h"

namespace mnist::cuda {

void throw_cuda_error(cudaError_t error, const char* expression, const char* file, int line) {
  const std::string sentence = std::string("CUDA runtime: ") + cudaGetErrorName(error) + " (" +
                               cudaGetErrorString(error) + ") from " + expression + " at " + file + ":" +
                               std::to_string(line);
  (void)cudaGetLastError();  // so that the next check does not report this one again
  if (error == cudaErrorMemoryAllocation) throw OutOfMemoryError(sentence);
  throw std::runtime_error(sentence);
}

}  // namespace mnist::cuda
