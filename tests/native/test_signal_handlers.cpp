// A signal that comes while NVRTC compiles reaches the program's own handler; the negative control loses it.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <thread>

#include "cuda/signal_handlers.h"
#include "testing.h"

using namespace testing;
using mnist::cuda::SignalHandlers;

namespace {

using Compile = void (*)(int milliseconds, int begun);

// Runs `work`, which gets a pipe, in a process of its own; gives it the signal once there is a byte in the pipe and the
// handlers have been looked at a thousand times. How it ends: its own handler says 100.
template <class Work>
int exit_code(int signal, Work work) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    std::signal(signal, [](int) { _exit(100); });
    work(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  char begun;
  int status = 0;
  if (read(ends[0], &begun, 1) == 1) usleep(300'000);
  close(ends[0]);
  if (child < 0) return -1;
  kill(child, signal);
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

int main() {
  void* library = dlopen(MNIST_NVRTC_STAND_IN, RTLD_NOW);
  const auto compile = reinterpret_cast<Compile>(library ? dlsym(library, "compile") : nullptr);
  CHECK(compile != nullptr);
  if (!compile) return finish();
  for (const int signal : {SIGINT, SIGTERM}) {
    CHECK(exit_code(signal, [&](int begun) { compile(10'000, begun); }) == 4);
    CHECK(exit_code(signal, [&](int begun) {
            const SignalHandlers handlers;
            compile(10'000, begun);
          }) == 100);
    // A second one, made while somebody compiles, which goes on when the first is gone.
    CHECK(exit_code(signal, [&](int begun) {
            auto first = std::make_optional<SignalHandlers>();
            int own[2];
            if (pipe(own) != 0) _exit(1);
            std::thread([&] { compile(10'000, own[1]); }).detach();
            char byte;
            if (read(own[0], &byte, 1) != 1) _exit(1);
            const SignalHandlers second;
            first.reset();
            if (write(begun, "!", 1) != 1) _exit(1);
            usleep(10'000'000);
          }) == 100);
  }

  // Another's handler, set meanwhile, stays.
  {
    const SignalHandlers handlers;
    std::signal(SIGINT, SIG_IGN);
    usleep(20'000);
  }
  CHECK(std::signal(SIGINT, SIG_DFL) == SIG_IGN);
  return finish();
}
