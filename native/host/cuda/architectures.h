// GPU architectures: which of a build's code a GPU runs, and which build a GPU needs; host code, no CUDA headers.
//
// A compute capability is one number here, 10 * major + minor: 75 is 7.5, 121 is 12.1. `architectures` is CMake's list,
// for example "75-real;80;90a-real": `-real` is machine code for GPUs of that major version from that minor one on; no
// suffix or `-virtual` adds PTX, which the driver compiles for anything newer. With the letter a (f: the family) only
// that GPU's code is meant, PTX included.
#pragma once

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

namespace mnist::cuda {

inline constexpr int kOldestCapability = 60;   // that the project's code is for
inline constexpr int kTensorCapability = 80;   // the first whose tensor cores multiply tf32 and bf16
inline constexpr int kClusterCapability = 90;  // the first whose thread blocks form clusters

inline std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

struct Architecture {
  int capability;
  bool letter, machine_code, ptx;
};

inline std::vector<Architecture> parse_architectures(std::string_view architectures) {
  std::vector<Architecture> list;
  while (!architectures.empty()) {
    const auto end = architectures.find(';');
    const auto entry = architectures.substr(0, end);
    architectures = end == std::string_view::npos ? "" : architectures.substr(end + 1);
    int capability = 0;
    const char* rest = std::from_chars(entry.data(), entry.data() + entry.size(), capability).ptr;
    const bool letter = rest != entry.data() + entry.size() && (*rest == 'a' || *rest == 'f');
    list.push_back({capability, letter, !entry.ends_with("-virtual"), !entry.ends_with("-real")});
  }
  return list;
}

// The code of a build that a GPU of capability `gpu` runs: machine code if there is any for it, else PTX, which its
// driver compiles; the newest of either. What it was compiled for is 0 if nothing runs there.
struct Code {
  int capability = 0;
  bool from_ptx = false;
};
inline Code code_for(std::string_view architectures, int gpu) {
  Code machine_code, ptx{0, true};
  for (const auto& a : parse_architectures(architectures)) {
    if (a.letter ? a.capability != gpu : a.capability > gpu) continue;
    if (a.machine_code && a.capability / 10 == gpu / 10)
      machine_code.capability = std::max(machine_code.capability, a.capability);
    if (a.ptx) ptx.capability = std::max(ptx.capability, a.capability);
  }
  return machine_code.capability ? machine_code : ptx.capability ? ptx : Code{};
}

// The newest that any GPU would run.
inline int newest_code(std::string_view architectures) {
  int newest = 0;
  for (const auto& a : parse_architectures(architectures)) newest = std::max(newest, a.capability);
  return newest;
}

// The value of CMAKE_CUDA_ARCHITECTURES for a GPU, by a compiler that knows the capabilities `known`: its own machine
// code, on Hopper with wgmma, or the newest older PTX. Empty if that compiler has nothing for it.
inline std::string architectures_for(int gpu, std::string_view known) {
  int newest = 0;
  for (const auto& a : parse_architectures(known))
    if (a.capability <= gpu) newest = std::max(newest, a.capability);
  if (newest == 0 || gpu < kOldestCapability) return "";
  if (newest < gpu) return std::to_string(newest);
  return std::to_string(gpu) + (gpu == 90 ? "a-real" : "-real");
}

// What to do about a build that has no code for a GPU, after "; ".
inline std::string remedy_for(int gpu, std::string_view known) {
  if (gpu < kOldestCapability)
    return "the oldest that the project has code for is " + capability_text(kOldestCapability);
  const std::string value = architectures_for(gpu, known);
  if (!value.empty()) return "build again with CMAKE_CUDA_ARCHITECTURES=" + value;
  return "build again with a CUDA 12 toolkit and CMAKE_CUDA_ARCHITECTURES=" + std::to_string(gpu) + "-real";
}

}  // namespace mnist::cuda
