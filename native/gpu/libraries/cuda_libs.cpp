// Finding and naming the run-time libraries.
#include "libraries/cuda_libs.h"

#include <exception>
#include <map>
#include <mutex>

#include "libraries/cublas.h"
#include "libraries/cudnn.h"
#include "mnist/errors.h"

namespace mnist::cuda {
namespace {

struct Paths {
  std::mutex mutex;
  std::map<std::string, std::string> by_library;
};

Paths& paths() {
  static Paths instance;
  return instance;
}

std::string dotted(std::size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

template <class Api>
LibraryInfo describe(const std::string& name, const Api& (*load)()) {
  LibraryInfo info{.name = name};
  try {
    const auto& api = load();
    info.version = dotted(api.GetVersion());
    info.path = api.path;
  } catch (const std::exception& error) {
    info.reason = error.what();
  }
  return info;
}

}  // namespace

void set_library_path(const std::string& library, const std::string& path) {
  const std::lock_guard lock(paths().mutex);
  paths().by_library[library] = path;
}

DynamicLibrary open_library(const std::string& library, const std::vector<std::string>& sonames,
                            const std::string& package) {
  std::vector<std::string> names;
  {
    const std::lock_guard lock(paths().mutex);
    const auto found = paths().by_library.find(library);
    if (found != paths().by_library.end()) names.push_back(found->second);
  }
  names.insert(names.end(), sonames.begin(), sonames.end());
  DynamicLibrary opened;
  std::string why;
  if (!opened.open(names, &why))
    throw UnavailableError(library + " cannot be loaded (" + why + "); install it with `pip install " + package + "`");
  return opened;
}

std::vector<LibraryInfo> gpu_libraries() { return {describe("cudnn", cudnn::api), describe("cublasLt", cublas::api)}; }

}  // namespace mnist::cuda
