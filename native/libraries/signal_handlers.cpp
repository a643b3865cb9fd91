// The handlers are looked at every tenth of a millisecond, which is how long NVRTC has them at most.
#include "libraries/signal_handlers.h"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <csignal>
#include <string_view>

namespace mnist::cuda {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM};
constexpr auto kPause = std::chrono::microseconds(100);

// Whether the handler is a function of NVRTC, or of the cuDNN that it may be part of. Any other is somebody's choice.
bool is_compilers(const struct sigaction& action) {
  Dl_info info{};
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return false;
  if (dladdr(reinterpret_cast<void*>(action.sa_handler), &info) == 0 || !info.dli_fname) return false;
  const std::string_view path = info.dli_fname;
  const auto file = path.substr(path.rfind('/') + 1);
  return file.find("nvrtc") != file.npos || file.find("cudnn") != file.npos;
}

}  // namespace

SignalHandlers::SignalHandlers() {
  std::array<struct sigaction, kSignals.size()> kept;
  for (std::size_t i = 0; i < kept.size(); ++i) sigaction(kSignals[i], nullptr, &kept[i]);
  watcher_ = std::thread([this, kept] {
    while (!over_) {
      for (std::size_t i = 0; i < kept.size(); ++i) {
        struct sigaction now;
        if (sigaction(kSignals[i], nullptr, &now) == 0 && is_compilers(now)) sigaction(kSignals[i], &kept[i], nullptr);
      }
      std::this_thread::sleep_for(kPause);
    }
  });
}

SignalHandlers::~SignalHandlers() {
  over_ = true;
  watcher_.join();
}

}  // namespace mnist::cuda
