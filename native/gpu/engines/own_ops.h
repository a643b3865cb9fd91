// An engine's op by a launcher of the user's own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "judge/own.h"
#include "mnist/engine.h"

namespace mnist {

// The function of the shared object. UnavailableError where it cannot be opened.
OwnLaunch open_own(const std::string& library);

// Puts the user's launcher of `op` where `function`, the engine's own, is; leaves it where the user has none.
template <class... Args>
void take_own(std::function<void(Args...)>& function, const EngineOptions& options, const std::string& op) {
  for (const OwnOp& own : options.own_ops) {
    if (own.op != op) continue;
    function = [launch = open_own(own.library), own, device = options.device](Args... args) {
      std::vector<void*> arrays;
      std::vector<std::int64_t> sizes;
      std::vector<double> reals;
      cudaStream_t stream = nullptr;
      unsigned array = 0;
      const auto put = [&]<class T>(T value) {
        if constexpr (std::is_same_v<T, cudaStream_t>) {
          stream = value;
        } else if constexpr (std::is_pointer_v<T>) {
          if (!(own.left_out >> array++ & 1)) arrays.push_back(const_cast<void*>(static_cast<const void*>(value)));
        } else if constexpr (std::is_floating_point_v<T>) {
          reals.push_back(value);
        } else {
          sizes.push_back(value);
        }
      };
      (put(args), ...);
      const char* why = "";
      if (launch(own.number, device, arrays.data(), sizes.data(), reals.data(), stream, &why) != kOwnDone)
        throw std::runtime_error("your launcher of " + own.op + " failed: " + why);
    };
  }
}

}  // namespace mnist
