// The handlers are looked at every tenth of a millisecond, which is how long NVRTC has them at most.
#include "cuda/signal_handlers.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

namespace mnist::cuda {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM};
constexpr auto kPause = std::chrono::microseconds(100);

// Whether the handler is a function of NVRTC, or of the cuDNN that it may be part of. Any other is the program's.
bool is_compilers(const struct sigaction& action) {
  Dl_info info{};
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return false;
  if (dladdr(reinterpret_cast<void*>(action.sa_handler), &info) == 0 || !info.dli_fname) return false;
  const std::string_view path = info.dli_fname;
  const auto file = path.substr(path.rfind('/') + 1);
  return file.starts_with("libnvrtc") || file.starts_with("libcudnn");
}

// One for all that live.
class Watch {
 public:
  void enter() {
    const std::lock_guard lock(mutex_);
    if (users_ == 0) {
      programs_ = {};
      over_ = false;
      look();
      thread_ = std::thread([this] { run(); });
    }
    ++users_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--users_ > 0) return;
    over_ = true;
    thread_.join();
  }

 private:
  void look() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction now;
      sigaction(kSignals[i], nullptr, &now);
      if (!is_compilers(now))
        programs_[i] = now;
      else if (programs_[i])
        sigaction(kSignals[i], &*programs_[i], nullptr);
    }
  }
  void run() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals interrupt the program's threads, as before
    // Once more at the end: of two compilations at once, one may put back what it found of the other's.
    for (bool last = false; !last;) {
      last = over_;
      look();
      if (!last) std::this_thread::sleep_for(kPause);
    }
  }

  std::mutex mutex_;
  int users_ = 0;
  std::array<std::optional<struct sigaction>, kSignals.size()> programs_;  // handlers, as they were seen last
  std::atomic<bool> over_ = false;
  std::thread thread_;
};
Watch& watch() {
  static Watch& instance = *new Watch;  // never destroyed: an engine may outlive static objects
  return instance;
}

}  // namespace

SignalHandlers::SignalHandlers() { watch().enter(); }
SignalHandlers::~SignalHandlers() { watch().leave(); }

}  // namespace mnist::cuda
