// The operators on the host: float against float64.
#include "operator_cases.h"

using namespace testing;

int main() {
  check_results(all_results<Vector, float>(-1), all_results<Vector, double>(-1), 2e-6);
  return finish();
}
