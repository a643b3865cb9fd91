// What MNIST_REQUIRE says and throws.
#include "mnist/require.h"

#include <sstream>

#include "mnist/errors.h"

namespace mnist {

Sentence::Sentence() : stream_(new std::ostringstream) {}
Sentence::~Sentence() { delete stream_; }

Sentence& Sentence::operator<<(const char* text) { return *stream_ << text, *this; }
Sentence& Sentence::operator<<(int value) { return *stream_ << value, *this; }
Sentence& Sentence::operator<<(unsigned value) { return *stream_ << value, *this; }
Sentence& Sentence::operator<<(long value) { return *stream_ << value, *this; }
Sentence& Sentence::operator<<(unsigned long value) { return *stream_ << value, *this; }
Sentence& Sentence::operator<<(double value) { return *stream_ << value, *this; }
Sentence& Sentence::write(const char* text, unsigned long size) { return stream_->write(text, long(size)), *this; }

void Sentence::refuse() const { throw ArgumentError(stream_->str()); }

}  // namespace mnist
