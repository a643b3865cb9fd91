// A user's shared object, opened.
#include "engines/own_ops.h"

#include "libraries/dynlib.h"

namespace mnist {

OwnLaunch open_own(const std::string& library) {
  cuda::DynamicLibrary opened;
  std::string why;
  const std::string names[] = {library};
  if (!opened.open(names, &why)) throw UnavailableError("your kernels cannot be loaded: " + why);
  OwnLaunch launch = nullptr;
  opened.bind(launch, "mnist_own_launch");
  return launch;
}

}  // namespace mnist
