// For clangd alone (see .clangd): clang includes cuRAND's header of this name before any CUDA source, and nvcc's wheels
// have no cuRAND. No compiler reads this file.
#pragma once

__device__ void __stwb(uint4* address, uint4 value);  // clang's headers lack this one
