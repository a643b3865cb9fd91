// The NVIDIA libraries that are loaded at run time: where they may be, which were found, what to install.
//
// Nothing of them is needed to build or to import: their functions are declared in cudnn.h, cublas.h, cufft.h and
// nccl.h and looked up when the first engine, or row of `bench ops`, that needs them is asked for. One binary runs
// with the CUDA 12 and the CUDA 13 builds of all.
#pragma once

#include <string>
#include <vector>

#include "libraries/dynlib.h"

namespace mnist::cuda {

// Where `library` ("cudnn" or "cublasLt") lies; it is tried before our RUNPATH (the sibling wheels) and the loader's
// own search. No effect once the library is loaded.
void set_library_path(const std::string& library, const std::string& path);

// Opens the library by the path that was set, else by one of `sonames`. Throws UnavailableError that says what was
// tried and what to install.
DynamicLibrary open_library(const std::string& library, const std::vector<std::string>& sonames,
                            const std::string& package);

struct LibraryInfo {
  std::string name, version, path;
  std::string reason;  // why it cannot be used; empty if it can
};

// Loads cuDNN and cuBLASLt, which the engines use, or says why not. Never throws.
std::vector<LibraryInfo> gpu_libraries();

}  // namespace mnist::cuda
