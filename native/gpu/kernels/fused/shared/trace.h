// What the trace points of a step leave, where MNIST_TRACE compiles them in; trace.cuh writes it.
#pragma once

namespace mnist::fused {

// State::trace is (steps, kTracePhases, kTracePoints, kTraceBlocks): x is the time in ns, or 0 where no block came by;
// y the clock of a multiprocessor, and its number above kClockBits.
inline constexpr int kTracePhases = 6, kTracePoints = 64, kTraceBlocks = 264, kClockBits = 48;

}  // namespace mnist::fused
