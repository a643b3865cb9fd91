// DynamicLibrary: a shared library opened at run time. It is never closed: CUDA libraries do not survive that.
#pragma once

#include <span>
#include <string>

namespace mnist::cuda {

class DynamicLibrary {
 public:
  // Opens the first of `names` (paths, or names for the loader to find) that can be opened, with its symbols kept to
  // itself. False if none can: `*why` then holds the loader's words.
  bool open(std::span<const std::string> names, std::string* why);

  // Sets `function` to the symbol; throws UnavailableError if the library lacks it.
  template <class F>
  void bind(F& function, const std::string& name) const {
    function = reinterpret_cast<F>(symbol(name));
  }

  const std::string& path() const { return path_; }

 private:
  void* symbol(const std::string& name) const;

  void* handle_ = nullptr;
  std::string path_;
};

}  // namespace mnist::cuda
