// KernelUse: a kernel as it was launched, and what it takes of a multiprocessor.
#pragma once

#include <array>
#include <string>

namespace mnist {

struct KernelUse {
  std::string name;                         // to read: without namespaces of ours and parameters
  std::string symbol;                       // as the machine code has it; empty where the driver is older than 12.3
  std::array<unsigned, 3> grid{}, block{};  // blocks and threads, x first
  int registers = 0;                        // of a thread
  int local_bytes = 0;                      // of a thread, in memory: what is spilled, and arrays that are indexed
  int shared_bytes = 0;                     // of a block, static and dynamic
  int blocks_per_multiprocessor = 0;        // the most that fit at once
  double occupancy = 0;                     // warps of these blocks over the most that a multiprocessor holds

  bool operator==(const KernelUse&) const = default;
};

}  // namespace mnist
