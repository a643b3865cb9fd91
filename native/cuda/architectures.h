// Whether machine code built for one list of GPU architectures runs on a given GPU; host code, no CUDA headers.
#pragma once

#include <charconv>
#include <string_view>

namespace mnist::cuda {

// `architectures` is CMake's list, for example "80;90a-real": `-real` is machine code for GPUs of that major version
// from that minor one on; no suffix or `-virtual` adds PTX, which the driver compiles for anything newer. With the
// letter a (f: the family) only that GPU's code is meant, PTX included.
inline bool runs_on(std::string_view architectures, int major, int minor) {
  while (!architectures.empty()) {
    const auto end = architectures.find(';');
    const auto entry = architectures.substr(0, end);
    architectures = end == std::string_view::npos ? "" : architectures.substr(end + 1);

    int version = 0;
    const char* rest = std::from_chars(entry.data(), entry.data() + entry.size(), version).ptr;
    const bool letter = rest != entry.data() + entry.size() && (*rest == 'a' || *rest == 'f');
    const bool ptx = !entry.ends_with("-real"), machine_code = !entry.ends_with("-virtual");
    const int its_major = version / 10, its_minor = version % 10;
    if (letter ? major == its_major && minor == its_minor
               : (machine_code && major == its_major && minor >= its_minor) || (ptx && 10 * major + minor >= version))
      return true;
  }
  return false;
}

}  // namespace mnist::cuda
