// What runs a judged kernel, a GPU or the emulator, to the judge's program.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace judge {

// Bytes before and behind an array whose change the program itself has to notice.
extern const std::int64_t kGuard;

// Of a task's call `number`, before anything else is queued for it.
void before_call(int number, cudaStream_t stream);

// Fills an output or scratch with what no kernel has stored: NaN.
void poison(void* data, std::int64_t bytes, cudaStream_t stream);

// A bit for each byte, whether it was stored since then; nothing where that is not known.
std::optional<std::vector<char>> stored(const void* data, std::int64_t bytes);

// So that the call finds nothing of its arrays in a cache.
void empty_caches(cudaStream_t stream);

// What was seen of the last call, in JSON: faults, lines and kernels. `again` calls the launcher once more; it is empty
// where that is not wanted.
std::string report(const std::function<void(cudaStream_t)>& again, cudaStream_t stream);

// Records `repeats` calls, for one launch. False, with the reason, where that cannot be.
bool record(const std::function<void(cudaStream_t)>& run, int repeats, cudaStream_t stream, cudaGraphExec_t* graph,
            std::string* why);

}  // namespace judge
