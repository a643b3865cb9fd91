// By profile/kernel_use.h, which asks the driver: a library's kernels are seen, too.
#include "judge/kernels.h"

#include <cstdio>
#include <vector>

#include "cuda/check.h"
#include "profile/kernel_use.h"

namespace judge {

Kernels kernels_of(cudaGraph_t graph) {
  Kernels found;
  std::size_t nodes = 0;
  MNIST_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  std::vector<cudaGraphNode_t> all(nodes);
  MNIST_CHECK(cudaGraphGetNodes(graph, all.data(), &nodes));
  for (const auto node : all) {
    cudaGraphNodeType type{};
    MNIST_CHECK(cudaGraphNodeGetType(node, &type));
    found.count += type == cudaGraphNodeTypeKernel;
  }
  found.json = "[";
  for (const auto& part : mnist::cuda::kernels_between_events(graph))
    for (const auto& kernel : part) {
      char text[400];
      std::snprintf(text, sizeof text,
                    "%s{\"name\": \"%.200s\", \"threads\": %u, \"registers\": %d, \"local_bytes\": %d, "
                    "\"shared_bytes\": %d, \"blocks_per_multiprocessor\": %d, \"occupancy\": %.4f}",
                    found.json.size() > 1 ? ", " : "", kernel.name.c_str(),
                    kernel.block[0] * kernel.block[1] * kernel.block[2], kernel.registers, kernel.local_bytes,
                    kernel.shared_bytes, kernel.blocks_per_multiprocessor, kernel.occupancy);
      found.json += text;
    }
  found.json += "]";
  return found;
}

}  // namespace judge
