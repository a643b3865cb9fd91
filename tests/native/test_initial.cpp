// numpy's PCG64 stream, skipping in it, and scores, on the host.
#include "testing.h"

using namespace mnist;
using namespace testing;

namespace {

// numpy.random.PCG64(numpy.random.SeedSequence([0, 0])): its state, its increment, its first outputs.
constexpr Pcg64 kStart{Pcg64::Word(0x1aa1b5345996452du) << 64 | 0x9585eb7a69561e3u,
                       Pcg64::Word(0x418ddadb3af71a82u) << 64 | 0x588133bc447873a9u};
constexpr std::uint64_t kOutputs[] = {0xa30febcfd9c2825f, 0x4510bdf882d9d721, 0xa7d3da94ecde8b8, 0x43b27b61342f01d};

void test_stream() {
  Pcg64 stream = kStart;
  for (const auto want : kOutputs) CHECK(stream.next() == want);
  for (const std::uint64_t count : {0, 1, 2, 3, 1000, 421642}) {
    Pcg64 one_by_one = kStart, at_once = kStart;
    for (std::uint64_t i = 0; i < count; ++i) one_by_one.next();
    at_once.skip(count);
    CHECK(one_by_one.state == at_once.state);
  }
}

void test_scores() {
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> logits(5 * kClasses, -1e4);
  const std::vector<std::uint8_t> labels = {3, 4, 0, 1, 9};
  logits[3] = 1e4;                                          // right
  logits[10 + 3] = 1e4;                                     // wrong by 2e4
  for (int k = 0; k < kClasses; ++k) logits[20 + k] = 0.5;  // a tie: the first one counts
  const Score finite = score(std::span(logits).first(30), std::span(labels).first(3));
  for (int k = 0; k < kClasses; ++k) CHECK(finite.correct[k] == (k == 3 || k == 0));
  CHECK(std::abs(finite.loss - (2e4 + std::log(10.0))) <= 1e-8);
  logits[30] = std::nan("");
  logits[30 + 1] = 2e4;
  logits[40 + 9] = infinity;
  for (const std::size_t row : {3, 4}) {
    const Score one = score(std::span(logits).subspan(row * kClasses, kClasses), std::span(labels).subspan(row, 1));
    for (const auto correct : one.correct) CHECK(correct == 0);
    CHECK(!std::isfinite(one.loss));
  }
}

}  // namespace

int main() {
  test_stream();
  test_scores();
  return finish();
}
