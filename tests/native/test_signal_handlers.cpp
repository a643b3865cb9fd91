// A signal that comes while NVRTC compiles reaches the program's own handler; the negative control loses it.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "libraries/signal_handlers.h"
#include "testing.h"

using namespace testing;
using mnist::cuda::SignalHandlers;

namespace {

using Compile = void (*)(int milliseconds, int begun);

// How a process ends that gets a signal in the middle of a compilation: its own handler says 100.
int exit_code(Compile compile, int signal, bool kept) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    std::signal(signal, [](int) { _exit(100); });
    std::optional<SignalHandlers> handlers;
    if (kept) handlers.emplace();
    compile(10'000, ends[1]);
    _exit(0);
  }
  close(ends[1]);
  char begun;
  int status = 0;
  if (read(ends[0], &begun, 1) == 1) usleep(300'000);  // a thousand looks at the handlers
  kill(child, signal);
  waitpid(child, &status, 0);
  close(ends[0]);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

int main() {
  void* library = dlopen(MNIST_NVRTC_STAND_IN, RTLD_NOW);
  const auto compile = reinterpret_cast<Compile>(library ? dlsym(library, "compile") : nullptr);
  CHECK(compile != nullptr);
  if (!compile) return finish();
  for (const int signal : {SIGINT, SIGTERM}) {
    CHECK(exit_code(compile, signal, true) == 100);
    CHECK(exit_code(compile, signal, false) == 4);
  }

  // Another's handler, set meanwhile, is left alone.
  {
    const SignalHandlers handlers, more;
    std::signal(SIGINT, SIG_IGN);
    usleep(20'000);
  }
  CHECK(std::signal(SIGINT, SIG_DFL) == SIG_IGN);
  return finish();
}
