// The launchers of one precision as a table, so that the engine need not be a template.
#pragma once

#include "kernels/fused/state.h"

namespace mnist::fused {

// Launch<precision>'s functions.
struct Kernels {
  std::span<const Tile> (*tiles)();
  Schedule (*schedule)(const State&);
  bool (*overlaps)();
  void (*conv_forward)(const State&, int, cudaStream_t);
  void (*fc1_forward)(const State&, cudaStream_t);
  void (*head)(const State&, int, cudaStream_t);
  void (*fc1_backward)(const State&, cudaStream_t);
  void (*conv2_backward)(const State&, int, cudaStream_t);
  void (*update)(const State&, int, cudaStream_t);
  void (*pack)(const State&, cudaStream_t);
  void (*prepare)(const State&, int, cudaStream_t);
};

// PackLaunch<precision>'s functions.
struct PackKernels {
  void (*conv_forward)(const Pack&, int, cudaStream_t);
  void (*fc1_forward)(const Pack&, cudaStream_t);
  void (*head)(const Pack&, int, cudaStream_t);
  void (*fc1_backward)(const Pack&, cudaStream_t);
  void (*conv2_backward)(const Pack&, int, cudaStream_t);
  void (*update)(const Pack&, int, cudaStream_t);
  void (*prepare)(const Pack&, int, cudaStream_t);
};

template <Precision kPrecision>
constexpr PackKernels pack_kernels_of() {
  using L = PackLaunch<kPrecision>;
  return {L::conv_forward, L::fc1_forward, L::head, L::fc1_backward, L::conv2_backward, L::update, L::prepare};
}

template <Precision kPrecision>
constexpr Kernels kernels_of() {
  using L = Launch<kPrecision>;
  return {L::tiles,        L::schedule,       L::overlaps, L::conv_forward, L::fc1_forward, L::head,
          L::fc1_backward, L::conv2_backward, L::update,   L::pack,         L::prepare};
}

inline Kernels kernels_for(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return kernels_of<Precision::kBf16>();
    case Precision::kTf32:
      return kernels_of<Precision::kTf32>();
    default:
      return kernels_of<Precision::kFp32>();
  }
}

inline PackKernels pack_kernels_for(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return pack_kernels_of<Precision::kBf16>();
    case Precision::kTf32:
      return pack_kernels_of<Precision::kTf32>();
    default:
      return pack_kernels_of<Precision::kFp32>();
  }
}

}  // namespace mnist::fused
