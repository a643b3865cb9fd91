// SignalHandlers: keeps our SIGINT and SIGTERM handlers installed while NVRTC compiles.
//
// cuDNN compiles some of its engines by NVRTC, whose front end takes both signals for some tens of milliseconds. One
// that comes meanwhile ends the process inside of its handler by exit(4), without a word, or hangs there on a lock that
// the interrupted compiler holds (seen with NVRTC 12.9 and 13.0). No option turns that off.
#pragma once

namespace mnist::cuda {

// While any lives, a thread gives back at once what NVRTC takes.
class SignalHandlers {
 public:
  SignalHandlers();
  ~SignalHandlers();
  SignalHandlers(const SignalHandlers&) = delete;
  SignalHandlers& operator=(const SignalHandlers&) = delete;
};

}  // namespace mnist::cuda
