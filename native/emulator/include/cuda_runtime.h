// As NVIDIA's cuda_runtime.h: everything that a kernel may use.
#pragma once
#include "cuda_runtime_api.h"
