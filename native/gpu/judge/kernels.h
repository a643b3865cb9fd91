// The kernels of a recorded graph, to the judge.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace judge {

struct Kernels {
  std::size_t count = 0;  // of launches
  std::string json;       // each kernel once, as in mnist/kernel_use.h
};
Kernels kernels_of(cudaGraph_t graph);

}  // namespace judge
