// dlopen and dlsym, with the path that was found and the loader's words kept.
#include "libraries/dynlib.h"

#include <dlfcn.h>
#include <link.h>

#include "mnist/errors.h"

namespace mnist::cuda {

bool DynamicLibrary::open(std::span<const std::string> names, std::string* why) {
  for (const auto& name : names) {
    handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) {
      link_map* map = nullptr;
      path_ = ::dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 && map ? map->l_name : name;
      return true;
    }
    const char* error = ::dlerror();
    *why += (why->empty() ? "" : "; ") + std::string(error ? error : name);
  }
  return false;
}

void* DynamicLibrary::symbol(const std::string& name) const {
  void* address = ::dlsym(handle_, name.c_str());
  if (!address) throw UnavailableError(path_ + " has no function " + name + "; it is too old for this build");
  return address;
}

}  // namespace mnist::cuda
