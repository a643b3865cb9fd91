// Reads the kernels of a graph by the driver's own functions: the runtime's know no kernel of a library that has a
// runtime of its own.
#include "profile/kernel_use.h"

#include <cuda.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "cuda/check.h"
#include "libraries/dynlib.h"
#include "mnist/errors.h"

namespace mnist::cuda {
namespace {

struct Driver {
  CUresult (*node_params)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*) = nullptr;
  CUresult (*function_of)(CUfunction*, CUkernel) = nullptr;
  CUresult (*attribute)(int*, CUfunction_attribute, CUfunction) = nullptr;
  CUresult (*blocks)(int*, CUfunction, int, size_t) = nullptr;
  CUresult (*name)(const char**, CUfunction) = nullptr;  // null before 12.3
};

const Driver& driver() {
  static const Driver instance = [] {
    DynamicLibrary library;
    std::string why;
    const std::string names[] = {"libcuda.so.1"};
    if (!library.open(names, &why)) throw UnavailableError("the CUDA driver cannot be loaded: " + why);
    Driver found;
    library.bind(found.node_params, "cuGraphKernelNodeGetParams_v2");
    library.bind(found.function_of, "cuKernelGetFunction");
    library.bind(found.attribute, "cuFuncGetAttribute");
    library.bind(found.blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    try {
      library.bind(found.name, "cuFuncGetName");
    } catch (const UnavailableError&) {  // an older driver: kernels stay without a name
    }
    return found;
  }();
  return instance;
}

void check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS)
    throw std::runtime_error(std::string("CUDA driver: error ") + std::to_string(int(result)) + " from " + call);
}

void read_kernel(KernelUse& use, cudaGraphNode_t node, int device) {
  CUDA_KERNEL_NODE_PARAMS params{};
  check(driver().node_params(node, &params), "cuGraphKernelNodeGetParams");
  CUfunction function = params.func;
  if (!function) check(driver().function_of(&function, params.kern), "cuKernelGetFunction");
  const auto attribute = [&](CUfunction_attribute which) {
    int value = 0;
    check(driver().attribute(&value, which, function), "cuFuncGetAttribute");
    return value;
  };
  if (const char* symbol = nullptr; driver().name) {
    check(driver().name(&symbol, function), "cuFuncGetName");
    use.symbol = symbol;
  }
  use.name = use.symbol.empty() ? "?" : readable_kernel_name(use.symbol);
  use.grid = {params.gridDimX, params.gridDimY, params.gridDimZ};
  use.block = {params.blockDimX, params.blockDimY, params.blockDimZ};
  use.registers = attribute(CU_FUNC_ATTRIBUTE_NUM_REGS);
  use.local_bytes = attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  use.shared_bytes = attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) + int(params.sharedMemBytes);
  const int threads = int(use.block[0] * use.block[1] * use.block[2]);
  check(driver().blocks(&use.blocks_per_multiprocessor, function, threads, params.sharedMemBytes),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  int most = 0;
  MNIST_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxThreadsPerMultiProcessor, device));
  use.occupancy = double(use.blocks_per_multiprocessor) * ((threads + 31) / 32) / (most / 32);
}

// What cannot be read of a kernel, its name says; it is no reason to stop what was asked for.
KernelUse kernel_of(cudaGraphNode_t node, int device) {
  KernelUse use;
  try {
    read_kernel(use, node, device);
  } catch (const std::exception& error) {
    use.name = std::string("unknown: ") + error.what();
  }
  return use;
}

}  // namespace

std::string readable_kernel_name(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> full(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  std::string name = full ? full.get() : symbol;
  for (const std::string noise : {"(anonymous namespace)::", "mnist::kernels::", "mnist::"})
    for (std::size_t at; (at = name.find(noise)) != std::string::npos;) name.erase(at, noise.size());
  int depth = 0;
  std::size_t begin = 0;  // behind what a template returns
  for (std::size_t at = 0; at < name.size(); ++at) {
    depth += (name[at] == '<') - (name[at] == '>');
    if (name[at] == ' ' && depth == 0) begin = at + 1;
    if (name[at] == '(' && depth == 0) return name.substr(begin, at - begin);
  }
  return name;
}

std::vector<std::vector<KernelUse>> kernels_between_events(cudaGraph_t graph) {
  std::size_t count = 0;
  MNIST_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);  // as they were recorded
  MNIST_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  int device = 0;
  MNIST_CHECK(cudaGetDevice(&device));
  std::vector<std::vector<KernelUse>> found(1);
  for (const auto node : nodes) {
    cudaGraphNodeType type{};
    MNIST_CHECK(cudaGraphNodeGetType(node, &type));
    if (type == cudaGraphNodeTypeEventRecord) found.emplace_back();
    if (type != cudaGraphNodeTypeKernel) continue;
    const auto use = kernel_of(node, device);
    if (std::ranges::find(found.back(), use) == found.back().end()) found.back().push_back(use);
  }
  return found;
}

}  // namespace mnist::cuda
