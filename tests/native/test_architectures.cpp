// Which GPUs a build's list of architectures serves.
#include "cuda/architectures.h"
#include "testing.h"

int main() {
  using mnist::cuda::runs_on;
  CHECK(runs_on("90a-real", 9, 0));
  CHECK(!runs_on("90a-real", 8, 0));
  CHECK(!runs_on("90a-real", 10, 0));
  CHECK(!runs_on("90a", 10, 0));  // PTX of 90a serves 9.0 alone
  CHECK(runs_on("80-real", 8, 0));
  CHECK(runs_on("80-real", 8, 9));
  CHECK(!runs_on("80-real", 7, 5));
  CHECK(!runs_on("80-real", 9, 0));
  CHECK(!runs_on("86-real", 8, 0));
  CHECK(runs_on("80", 9, 0));
  CHECK(runs_on("80-virtual", 12, 0));
  CHECK(!runs_on("80", 7, 5));
  CHECK(runs_on("80;90a-real", 12, 0));
  CHECK(runs_on("80-real;90a-real", 9, 0));
  CHECK(!runs_on("80-real;90a-real", 10, 0));
  CHECK(runs_on("100-real;120", 12, 1));
  CHECK(!runs_on("100-real;120", 11, 0));
  CHECK(!runs_on("", 9, 0));
  return testing::finish();
}
