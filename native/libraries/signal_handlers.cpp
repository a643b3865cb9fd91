// The handlers are looked at every tenth of a millisecond, which is how long NVRTC has them at most.
#include "libraries/signal_handlers.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>
#include <string_view>
#include <thread>

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

// One for all that live: a second one might find NVRTC's handlers and take them for the program's.
struct Watch {
  std::mutex mutex;
  int users = 0;
  std::array<struct sigaction, kSignals.size()> kept;
  std::atomic<bool> over;
  std::thread thread;

  void run() {
    while (!over) {
      for (std::size_t i = 0; i < kept.size(); ++i) {
        struct sigaction now;
        if (sigaction(kSignals[i], nullptr, &now) == 0 && is_compilers(now)) sigaction(kSignals[i], &kept[i], nullptr);
      }
      std::this_thread::sleep_for(kPause);
    }
  }
};
Watch& watch() {
  static Watch& instance = *new Watch;  // never destroyed: an engine may outlive static objects
  return instance;
}

}  // namespace

SignalHandlers::SignalHandlers() {
  auto& all = watch();
  const std::lock_guard lock(all.mutex);
  if (all.users == 0) {
    for (std::size_t i = 0; i < all.kept.size(); ++i) sigaction(kSignals[i], nullptr, &all.kept[i]);
    all.over = false;
    all.thread = std::thread([&all] { all.run(); });
  }
  ++all.users;
}

SignalHandlers::~SignalHandlers() {
  auto& all = watch();
  const std::lock_guard lock(all.mutex);
  if (--all.users > 0) return;
  all.over = true;
  all.thread.join();
}

}  // namespace mnist::cuda
