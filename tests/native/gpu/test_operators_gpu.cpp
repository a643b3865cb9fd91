// The operators on a GPU, float and double, against the host's in float64; scratch lies between guard words, too.
#include "gpu_testing.h"
#include "operator_cases.h"

using namespace testing;

int main() {
  require_gpu();
  const auto want = all_results<Vector, double>(-1);
  check_results(all_results<Guarded, float>(0), want, 5e-6);
  check_results(all_results<Guarded, double>(0), want, 1e-13);
  return finish();
}
