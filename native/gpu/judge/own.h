// The launchers of a user's file as C functions see them: judge/call.h makes them, the judge's programs and an engine
// call them.
#pragma once

#include <cstdint>

namespace mnist {

enum OwnResult { kOwnDone, kOwnThrew, kOwnFailed };  // failed: CUDA says so

// Calls launcher `number` with its arguments by kind, each kind in the launcher's order, on GPU `device`. Otherwise
// than for kOwnDone, `*why` is a sentence, until the thread's next call.
using OwnLaunch = int (*)(int number, int device, void* const* arrays, const std::int64_t* sizes, const double* reals,
                          void* stream, const char** why);

}  // namespace mnist

extern "C" __attribute__((visibility("default"))) int mnist_own_launch(int number, int device, void* const* arrays,
                                                                       const std::int64_t* sizes, const double* reals,
                                                                       void* stream, const char** why);
