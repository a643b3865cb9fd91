// The factories that registry.cpp lists, one an engine; each is defined in its engine's own file.
#pragma once

#include "mnist/engine.h"

namespace mnist {

std::unique_ptr<Engine> create_reference(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_cpu(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_naive(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_cudnn(const EngineInfo& info, const EngineOptions& options);
std::unique_ptr<Engine> create_fused(const EngineInfo& info, const EngineOptions& options);

std::string cudnn_unavailable(Precision precision,
                              int device);  // why cuDNN and cuBLAS cannot be used; empty if they can
std::string fused_unavailable(int device);  // why this GPU cannot run `fused`; empty if it can

}  // namespace mnist
