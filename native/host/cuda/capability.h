// What a GPU, or this build's code for it, is too old for; see architectures.h for the numbers.
#pragma once

#include <string>

// What stands in the sources that CMake compiles for compute capability 8.0 and newer alone; null in a build without
// any such code, where code_lacks() says so.
#ifdef MNIST_WITH_SM80
#define MNIST_IF_SM80(function) function
#else
#define MNIST_IF_SM80(function) nullptr
#endif
// The same for 9.0.
#ifdef MNIST_WITH_SM90
#define MNIST_IF_SM90(function) function
#else
#define MNIST_IF_SM90(function) nullptr
#endif

namespace mnist::cuda {

// Why GPU `device` cannot run what needs `capability`; empty if it can. For libraries, which bring code for every GPU.
std::string gpu_lacks(int capability, int device);

// The same of our own kernels, of which there is what this build was compiled for: a newer GPU runs older code, too.
// Without a GPU: why none could.
std::string code_lacks(int capability, int device);

}  // namespace mnist::cuda
