// MNIST_REQUIRE: checks what a caller passes in.
//
// Kernels' launchers check too, and nvcc reads what a .cu file includes once for every architecture: <string> and
// <sstream> took it longer than most kernels, so this header and cuda/check.h do without them.
#pragma once

#include <iosfwd>

namespace mnist {

// Takes the parts of a sentence as a stream does.
class Sentence {
 public:
  Sentence();
  ~Sentence();
  Sentence(const Sentence&) = delete;
  Sentence& operator=(const Sentence&) = delete;

  Sentence& operator<<(const char* text);
  Sentence& operator<<(int value);
  Sentence& operator<<(unsigned value);
  Sentence& operator<<(long value);
  Sentence& operator<<(unsigned long value);
  Sentence& operator<<(double value);
  template <class String>
    requires requires(const String& string) { string.substr(); }
  Sentence& operator<<(const String& string) {
    return write(string.data(), string.size());
  }

  [[noreturn]] void refuse() const;  // throws ArgumentError

 private:
  Sentence& write(const char* text, unsigned long size);

  std::ostringstream* stream_;
};

}  // namespace mnist

// MNIST_REQUIRE(count > 0, "train: batch size is " << count << ", expected at least 1");
#define MNIST_REQUIRE(condition, sentence)                        \
  do {                                                            \
    if (!(condition)) (::mnist::Sentence() << sentence).refuse(); \
  } while (false)
