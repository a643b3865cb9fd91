// The ends of a step: normalising, gathering by index, and recording loss and right answers.
#include "cpu/reference_ops.h"
#include "gpu_testing.h"
#include "kernels/normalize.h"
#include "kernels/step.h"
#include "mnist/model.h"

using namespace mnist;
using namespace testing;

namespace {

void test_normalize() {
  std::vector<std::uint8_t> u(3 * kImagePixels);
  for (std::size_t k = 0; k < u.size(); ++k) u[k] = std::uint8_t(k);
  std::vector<double> want;
  for (const auto value : u) want.push_back((value / 255.0 - kPixelMean) / kPixelStd);
  const Guarded<std::uint8_t> gu(u);
  const Guarded<float> x(std::int64_t(u.size()));
  kernels::naive::normalize_forward(x.data(), gu.data(), std::int64_t(u.size()), nullptr);
  CHECK_CLOSE(x.read("normalize"), want, 1e-7, "normalize");
}

// Two steps in a row: the state moves on by itself.
void test_gather_and_record(std::int64_t batch) {
  constexpr int kDataset = 50;
  std::vector<std::uint8_t> images(kDataset * kImagePixels), labels(kDataset);
  for (std::size_t k = 0; k < images.size(); ++k) images[k] = std::uint8_t(k * 31 + k / kImagePixels);
  for (int k = 0; k < kDataset; ++k) labels[k] = std::uint8_t(k * 3 % 10);
  std::vector<std::int32_t> order(2 * batch);
  for (std::int64_t k = 0; k < 2 * batch; ++k) order[k] = std::int32_t(k * 17 % kDataset);

  const Guarded<std::uint8_t> dataset_images(images), dataset_labels(labels), got_images(batch * kImagePixels),
      got_labels(batch);
  const Guarded<std::int32_t> gorder(order);
  const kernels::StepState start;
  const cuda::DeviceBuffer<kernels::StepState> state(1);
  cuda::upload(state.data(), {&start, 1}, nullptr);
  const cuda::DeviceBuffer<StepResult> results(2);
  const Guarded<float> rate(1), rates(std::vector<float>{0.5f, 0.125f});
  for (int step = 0; step < 2; ++step) {
    kernels::gather_batch(got_images.data(), got_labels.data(), dataset_images.data(), dataset_labels.data(),
                          gorder.data(), state.data(), batch, nullptr);
    std::vector<std::uint8_t> want_images, want_labels;
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto from = order[step * batch + b];
      want_images.insert(want_images.end(), images.begin() + from * kImagePixels,
                         images.begin() + (from + 1) * kImagePixels);
      want_labels.push_back(labels[from]);
    }
    CHECK(got_images.read("images") == want_images);
    CHECK(got_labels.read("labels") == want_labels);

    // Scores with ties: the first maximum counts.
    auto scores = random_normal<float>(batch * kClasses, 5 + step);
    for (auto& score : scores) score = std::round(score);
    const auto X = widen(scores);
    std::vector<double> log_p(scores.size());
    reference::log_softmax_forward(log_p.data(), X.data(), batch, kClasses);
    int correct = 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      const double* row = X.data() + b * kClasses;
      correct += std::max_element(row, row + kClasses) - row == want_labels[b];
    }
    const Guarded<float> gscores(scores), glog_p(std::vector<float>(log_p.begin(), log_p.end()));
    const kernels::StepRecord<float> record{results.data(), state.data(), rate.data(), rates.data()};
    kernels::record_step(record, glog_p.data(), gscores.data(), got_labels.data(), batch, nullptr);
    CHECK(rate.read("learning rate")[0] == (step == 0 ? 0.5f : 0.125f));
    StepResult got[2];
    cuda::download(got, results.data(), nullptr);
    const double want = reference::nll_loss_forward(log_p.data(), want_labels.data(), batch, kClasses);
    CHECK(std::abs(got[step].loss - want) <= 1e-7 * want);
    CHECK(got[step].correct == correct);
  }
  kernels::StepState end;
  cuda::download({&end, 1}, state.data(), nullptr);
  CHECK(end.cursor == 2 * batch && end.step == 2);
}

}  // namespace

int main() {
  require_gpu();
  test_normalize();
  for (const auto batch : kBatches) test_gather_and_record(batch);
  return finish_on_gpu();
}
