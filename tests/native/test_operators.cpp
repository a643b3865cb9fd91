// The operators on the host, in vectors of which AddressSanitizer knows the size: float against float64.
#include <limits>

#include "operator_cases.h"

using namespace testing;

namespace {

template <class T>
class Vector {
 public:
  explicit Vector(std::int64_t count)
      : values_(count, std::numeric_limits<T>::has_quiet_NaN ? std::numeric_limits<T>::quiet_NaN() : T(255)) {}
  explicit Vector(std::vector<T> values) : values_(std::move(values)) {}
  T* data() const { return values_.data(); }
  const std::vector<T>& read(const std::string&) const { return values_; }

 private:
  mutable std::vector<T> values_;
};

}  // namespace

int main() {
  check_results(all_results<Vector, float>(-1), all_results<Vector, double>(-1), 2e-6);
  return finish();
}
