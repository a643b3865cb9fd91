// What the kernels of a recorded graph take of a multiprocessor, as the driver says: ours and the libraries' alike.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "mnist/kernel_use.h"

namespace mnist::cuda {

// A kernel's name to read: demangled, without its parameters and our own namespaces.
std::string readable_kernel_name(const std::string& symbol);

// The kernels of `graph` in the order in which they were recorded, cut where it records events: the first element has
// those before the first event. A kernel that is launched again with the same sizes is named once.
std::vector<std::vector<KernelUse>> kernels_between_events(cudaGraph_t graph);

}  // namespace mnist::cuda
