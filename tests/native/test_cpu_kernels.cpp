// Every kernel of every instruction set this machine has, against the float64 reference ops. Outputs start as NaN and
// have guard words behind them.
#include <algorithm>
#include <cstring>

#include "cpu/aligned.h"
#include "cpu/kernels.h"
#include "cpu/reference_ops.h"
#include "testing.h"

namespace {

using namespace mnist;
using namespace mnist::cpu;
using Doubles = std::vector<double>;

// Rounding of float32 sums of up to 3136 terms; a wrong index is off by 1e-2 and more.
constexpr double kBound = 2e-6;
constexpr int kArea2 = kPool1Side * kPool1Side;

// A kernel's operand: on a cache line, NaN where nothing was written, and a guard behind it.
class Buffer {
 public:
  explicit Buffer(std::size_t size, float value = std::numeric_limits<float>::quiet_NaN())
      : values_(size + kGuard), size_(size) {
    std::fill_n(values_.data(), size, value);
    std::fill_n(values_.data() + size, kGuard, kGuardValue);
  }
  Buffer(const std::vector<float>& values) : Buffer(values.size()) { std::ranges::copy(values, values_.data()); }
  Buffer(Buffer&&) = default;
  ~Buffer() {
    for (std::size_t i = 0; values_.data() && i < kGuard; ++i) CHECK(values_[size_ + i] == kGuardValue);
  }
  operator float*() const { return values_.data(); }
  Doubles doubles(std::size_t count) const { return {values_.data(), values_.data() + count}; }
  Doubles doubles() const { return doubles(size_); }

 private:
  static constexpr std::size_t kGuard = 16;
  static constexpr float kGuardValue = 12345.0f;
  AlignedArray<float> values_;
  std::size_t size_;
};

std::vector<float> normal(std::size_t count, unsigned seed) { return testing::random_normal<float>(count, seed); }

struct TestScratch {
  Buffer input = Buffer(kInputTilesSize), output = Buffer(kOutputTilesSize);
  AlignedArray<double> patches = AlignedArray<double>(kTaps * kImagePixels);
  operator Scratch() const { return {input, output, patches.data()}; }
};

// x (30,32) from an image (28,28).
Buffer padded_image(const Doubles& image) {
  Buffer x(kImageSize, 0.0f);
  for (int p = 0; p < kImageSide; ++p)
    for (int q = 0; q < kImageSide; ++q) x[(p + 1) * kPixelRow + q + 1] = float(image[p * kImageSide + q]);
  return x;
}

// (16,16,32) with a border of zeros from (32,14,14), and back.
Buffer padded_a1(const Doubles& a) {
  Buffer padded(kA1Size, 0.0f);
  for (int c = 0; c < kConv1Channels; ++c)
    for (int k = 0; k < kArea2; ++k)
      padded[(k / kPool1Side + 1) * kA1Row + (k % kPool1Side + 1) * kConv1Channels + c] = float(a[c * kArea2 + k]);
  return padded;
}
Doubles inside_of_a1(const float* padded) {
  Doubles a(kPool1Size);
  for (int c = 0; c < kConv1Channels; ++c)
    for (int k = 0; k < kArea2; ++k)
      a[c * kArea2 + k] = padded[(k / kPool1Side + 1) * kA1Row + (k % kPool1Side + 1) * kConv1Channels + c];
  return a;
}

// Index in z (49,4,64) of channel c, row p, column q.
int z_index(int c, int p, int q) { return ((p / 2 * kPool2Side + q / 2) * 4 + p % 2 * 2 + q % 2) * kConv2Channels + c; }

struct Image {
  const char* name;
  Doubles pixels;
};

std::vector<Image> images() {
  Doubles blob(kImagePixels, -0.42);  // a flat background, as digits have
  for (int p = 9; p < 20; ++p)
    for (int q = 11; q < 17; ++q) blob[p * kImageSide + q] = 0.1 * (p - q) + 1;
  return {{"normal", testing::random_normal<double>(kImagePixels, 1)},
          {"digit-like", blob},
          {"constant", Doubles(kImagePixels, -0.42)},
          {"zero", Doubles(kImagePixels, 0.0)},
          {"large", Doubles(kImagePixels, 1e4)}};
}

void test_moments(const Kernels& kernels, const Image& image) {
  const Buffer x = padded_image(image.pixels);
  Doubles want(kPatchMoments), got(kPatchMoments, 1.0);  // adds
  for (int p = 0; p < kImageSide; ++p)
    for (int q = 0; q < kImageSide; ++q) {
      double patch[kTaps];
      for (int t = 0; t < kTaps; ++t) patch[t] = x[(p + t / 3) * kPixelRow + q + t % 3];
      double* to = want.data() + kTaps;
      for (int i = 0; i < kTaps; ++i) {
        want[i] += patch[i];
        for (int j = i; j < kTaps; ++j) *to++ += patch[i] * patch[j];
      }
    }
  for (auto& value : want) value += 1;
  kernels.patch_moments(got.data(), x, TestScratch());
  CHECK_CLOSE(got, want, 1e-12, std::string("patch_moments of ") + image.name);
}

void test_conv1(const Kernels& kernels, const Image& image) {
  const std::string of = std::string(" of ") + image.name;
  const Buffer x = padded_image(image.pixels), w(normal(kTaps * kConv1Channels, 2)), t(normal(kConv1Channels, 3));
  Doubles weight(kConv1Channels * kTaps), z(kConv1Channels * kImagePixels), want(kPool1Size), bias = t.doubles();
  for (int c = 0; c < kConv1Channels; ++c)
    for (int tap = 0; tap < kTaps; ++tap) weight[c * kTaps + tap] = w[tap * kConv1Channels + c];
  const Doubles pixels = [&] {  // as float32 has them
    Doubles p;
    for (const double v : image.pixels) p.push_back(float(v));
    return p;
  }();
  reference::conv2d_forward(z.data(), pixels.data(), weight.data(), bias.data(), 1, 1, kConv1Channels, kImageSide);
  std::vector<std::uint8_t> want_route(kPool1Size), got_route(kPool1Size);
  reference::relu_max_pool2d_forward(want.data(), want_route.data(), z.data(), kConv1Channels, kPool1Side);

  Buffer a1(kA1Size), again(kA1Size);
  AlignedArray<std::int32_t> route(kPool1Size);
  kernels.conv1_forward(a1, route.data(), x, w, t);
  kernels.conv1_forward(again, nullptr, x, w, t);
  CHECK_CLOSE(inside_of_a1(a1), want, kBound, "conv1_forward" + of);
  CHECK(inside_of_a1(again) == inside_of_a1(a1));
  for (int c = 0; c < kConv1Channels; ++c)
    for (int k = 0; k < kArea2; ++k) got_route[c * kArea2 + k] = std::uint8_t(route[k * kConv1Channels + c]);
  // In float64 equal patches give equal sums here: the order of the additions is the same. So ties are ties on both
  // sides, and only a value next to another or to 0 may be decided otherwise.
  int differ = 0;
  for (int i = 0; i < kPool1Size; ++i) differ += got_route[i] != want_route[i];
  CHECK(differ <= 3);

  // Backward through the kernel's own decisions.
  const Doubles da1 = testing::random_normal<double>(kPool1Size, 4);
  const Buffer gradient = padded_a1(da1);
  const Doubles rounded = inside_of_a1(gradient);
  Doubles dz(z.size()), dw(weight.size()), wanted((kTaps + 1) * kConv1Channels);
  reference::relu_max_pool2d_backward(dz.data(), rounded.data(), got_route.data(), kConv1Channels, kPool1Side);
  reference::conv2d_backward_weight(dw.data(), dz.data(), pixels.data(), 1, 1, kConv1Channels, kImageSide);
  for (int c = 0; c < kConv1Channels; ++c) {
    for (int tap = 0; tap < kTaps; ++tap) wanted[tap * kConv1Channels + c] = dw[c * kTaps + tap];
    for (int k = 0; k < kImagePixels; ++k) wanted[kTaps * kConv1Channels + c] += dz[c * kImagePixels + k];
  }
  Buffer sums((kTaps + 1) * kConv1Channels);
  kernels.conv1_backward(sums, gradient, route.data(), x);
  CHECK_CLOSE(sums.doubles(), wanted, kBound, "conv1_backward" + of);
}

void test_conv2(const Kernels& kernels) {
  const TestScratch scratch;
  const Doubles a = inside_of_a1(padded_a1(testing::random_normal<double>(kPool1Size, 5)));
  const Buffer a1 = padded_a1(a), w(normal(kConv1Channels * kTaps * kConv2Channels, 6));
  Buffer sign(kConv2Channels), u(kUSize), ut(kUSize);
  Affine2 affine{};
  for (int c = 0; c < kConv2Channels; ++c) {
    sign[c] = c % 3 == 0 ? -1.0f : 1.0f;
    affine.live[c] = c % 7 == 0 ? 0 : -1;
    affine.scale[c] = 0.5f + 0.01f * float(c);
    affine.alpha[c] = 0.02f * float(c - 30);
    affine.kappa[c] = 0.01f * float(20 - c);
  }
  for (int channel = 0; channel < kConv1Channels; ++channel) kernels.conv2_weight(u, ut, w, sign, channel);

  Doubles weight(kConv2Channels * kConv1Channels * kTaps), z(kConv2Channels * kArea2), want_sums(2 * kConv2Channels);
  for (int o = 0; o < kConv2Channels; ++o)
    for (int i = 0; i < kConv1Channels; ++i)
      for (int tap = 0; tap < kTaps; ++tap)
        weight[(o * kConv1Channels + i) * kTaps + tap] = double(sign[o]) * w[(i * kTaps + tap) * kConv2Channels + o];
  const Doubles no_bias(kConv2Channels);
  reference::conv2d_forward(z.data(), a.data(), weight.data(), no_bias.data(), 1, kConv1Channels, kConv2Channels,
                            kPool1Side);
  Doubles want(kZ2Size), extrema(kFeatures);
  for (int c = 0; c < kConv2Channels; ++c)
    for (int k = 0; k < kArea2; ++k) {
      const double value = z[c * kArea2 + k];
      want[z_index(c, k / kPool1Side, k % kPool1Side)] = value;
      want_sums[c] += value;
      want_sums[kConv2Channels + c] += value * value;
    }
  for (int cell = 0; cell < kFeatures; ++cell) {
    const int tile = cell / kConv2Channels, c = cell % kConv2Channels;
    const double* first = &want[tile * 4 * kConv2Channels + c];
    extrema[cell] = *first;
    for (int k = 1; affine.live[c] && k < 4; ++k) extrema[cell] = std::max(extrema[cell], first[k * kConv2Channels]);
  }
  Buffer got(kZ2Size), e(kFeatures), sums(2 * kConv2Channels);
  kernels.conv2_forward(got, e, sums, a1, u, affine.live, scratch);
  CHECK_CLOSE(got.doubles(), want, kBound, "conv2_forward z");
  CHECK_CLOSE(e.doubles(), extrema, kBound, "conv2_forward e");
  CHECK_CLOSE(sums.doubles(), want_sums, kBound, "conv2_forward sums");

  // Backward, from the kernel's own z, so that both sides see the same maxima.
  const Buffer g(normal(kFeatures, 7));
  Doubles dz(z.size()), da(a.size()), dw(weight.size());
  for (int tile = 0; tile < kTiles; ++tile)
    for (int c = 0; c < kConv2Channels; ++c) {
      const float* window = got + tile * 4 * kConv2Channels + c;
      int where = 0;
      for (int k = 1; affine.live[c] && k < 4; ++k)
        if (window[k * kConv2Channels] > window[where * kConv2Channels]) where = k;
      for (int k = 0; k < 4; ++k) {
        const int p = tile / kPool2Side * 2 + k / 2, q = tile % kPool2Side * 2 + k % 2;
        dz[c * kArea2 + p * kPool1Side + q] =
            (k == where ? double(affine.scale[c]) * g[tile * kConv2Channels + c] : 0.0) + affine.alpha[c] +
            double(affine.kappa[c]) * window[k * kConv2Channels];
      }
    }
  reference::conv2d_backward_data(da.data(), dz.data(), weight.data(), 1, kConv1Channels, kConv2Channels, kPool1Side);
  reference::conv2d_backward_weight(dw.data(), dz.data(), a.data(), 1, kConv1Channels, kConv2Channels, kPool1Side);
  Buffer da1(kA1Size), du(3 * kUSize), gradient(kConv1Channels * kTaps * kConv2Channels);
  // Three slabs: one image, the same image twice, and once more: four times the gradient.
  for (int slab = 0; slab < 3; ++slab)
    kernels.conv2_backward(da1, du + slab * kUSize, true, g, got, a1, affine, ut, scratch);
  kernels.conv2_backward(da1, du + kUSize, false, g, got, a1, affine, ut, scratch);
  CHECK_CLOSE(inside_of_a1(da1), da, kBound, "conv2_backward da1");
  for (int channel = 0; channel < kConv1Channels; ++channel)
    kernels.conv2_weight_gradient(gradient + channel * kTaps * kConv2Channels, du, kUSize, 3, sign, channel);
  Doubles want_gradient(dw.size());
  for (int o = 0; o < kConv2Channels; ++o)
    for (int i = 0; i < kConv1Channels; ++i)
      for (int tap = 0; tap < kTaps; ++tap)
        want_gradient[(i * kTaps + tap) * kConv2Channels + o] =
            4.0 * sign[o] * dw[(o * kConv1Channels + i) * kTaps + tap];
  CHECK_CLOSE(gradient.doubles(), want_gradient, kBound, "conv2_backward and conv2_weight_gradient");

  // Where the input is flat, all outputs of a channel are equal to the last bit, so that a tie stays one.
  Buffer flat(kA1Size, 0.0f), flat_z(kZ2Size), flat_e(kFeatures);
  for (int p = 1; p <= kPool1Side; ++p)
    for (int q = 1; q <= kPool1Side; ++q)
      for (int c = 0; c < kConv1Channels; ++c) flat[p * kA1Row + q * kConv1Channels + c] = 0.3f + 0.01f * float(c);
  kernels.conv2_forward(flat_z, flat_e, sums, flat, u, affine.live, scratch);
  const float* centre = flat_z + 24 * 4 * kConv2Channels;  // tile (3,3), away from the border
  CHECK(std::all_of(centre, centre + 4 * kConv2Channels,
                    [&](const float& v) { return v == centre[(&v - centre) % kConv2Channels]; }));
}

void test_linear(const Kernels& kernels, int rows) {
  const std::string of = " of " + std::to_string(rows);
  Affine2 affine{};
  for (int c = 0; c < kConv2Channels; ++c) {
    affine.scale[c] = 0.5f + 0.01f * float(c);
    affine.shift[c] = 0.02f * float(c - 30);
    affine.mean[c] = 0.03f * float(c - 20);
  }
  const Buffer e(normal(rows * kFeatures, 8)), w(normal(kFeatures * kHidden, 9)), bias(normal(kHidden, 10));
  const auto a2_of = [&](int row, int f) {
    const int c = f % kConv2Channels;
    return std::max(0.0, double(affine.scale[c]) * e[row * kFeatures + f] + affine.shift[c]);
  };
  Doubles a2(rows * kFeatures), weight(kHidden * kFeatures), want(rows * kHidden);
  for (int row = 0; row < rows; ++row)
    for (int f = 0; f < kFeatures; ++f) a2[row * kFeatures + f] = a2_of(row, f);
  for (int f = 0; f < kFeatures; ++f)
    for (int o = 0; o < kHidden; ++o) weight[o * kFeatures + f] = w[f * kHidden + o];
  reference::linear_forward(want.data(), a2.data(), weight.data(), bias.doubles().data(), rows, kFeatures, kHidden);

  Buffer a(rows * kFeatures), hidden(rows * kHidden), scratch(kLinearRows * kPixelFeatures);
  kernels.bn2_relu(a, e, kFeatures, rows, kTiles, affine);
  CHECK_CLOSE(a.doubles(), a2, kBound, "bn2_relu" + of);
  kernels.fc1_forward(hidden, e, w, bias, rows, affine, scratch);
  CHECK_CLOSE(hidden.doubles(), want, kBound, "fc1_forward" + of);

  // Backward of the features of one pixel.
  constexpr int kPixel = 17, kFirst = kPixel * kPixelFeatures;
  const Buffer dh(normal(rows * kHidden, 11));
  Doubles da2(a2.size()), dw(weight.size()), dbias(kHidden);
  reference::linear_backward(da2.data(), dw.data(), dbias.data(), dh.doubles().data(), a2.data(), weight.data(), rows,
                             kFeatures, kHidden);
  Buffer wt(kHidden * kPixelFeatures), got_dw(kPixelFeatures * kHidden, 1.0f), sums(2 * kPixelFeatures, 1.0f);
  Buffer g(e.doubles().size());
  std::copy_n(static_cast<float*>(e), rows * kFeatures, static_cast<float*>(g));
  kernels.fc1_transpose(wt, w + kFirst * kHidden);
  kernels.fc1_backward(g + kFirst, got_dw, sums, dh, wt, rows, affine, scratch);
  Doubles want_g = e.doubles(), want_dw(kPixelFeatures * kHidden), want_sums(2 * kPixelFeatures, 1.0);
  for (int f = 0; f < kPixelFeatures; ++f) {
    for (int o = 0; o < kHidden; ++o) want_dw[f * kHidden + o] = 1 + dw[o * kFeatures + kFirst + f];
    for (int row = 0; row < rows; ++row) {
      const int i = row * kFeatures + kFirst + f;
      const double gradient = a2[i] > 0 ? da2[i] : 0;
      want_sums[f] += gradient;
      want_sums[kPixelFeatures + f] += gradient * (double(e[i]) - affine.mean[f]);
      want_g[i] = gradient;
    }
  }
  CHECK_CLOSE(g.doubles(), want_g, kBound, "fc1_backward g" + of);
  CHECK_CLOSE(got_dw.doubles(), want_dw, kBound, "fc1_backward dw" + of);
  CHECK_CLOSE(sums.doubles(), want_sums, kBound, "fc1_backward sums" + of);

  // fc2, its classes padded to 16.
  const Buffer h(normal(rows * kHidden, 12));
  Buffer w2(kClasses * kHidden), w2t(kHidden * kClassLanes, 0.0f), bias2(kClassLanes, 0.0f);
  Buffer logits(rows * kClassLanes), dlogits(rows * kClassLanes, 0.0f), got_dh(rows * kHidden);
  Buffer got_dw2(kClasses * kHidden, 1.0f);
  const auto random = normal(kClasses * kHidden, 13);
  for (int k = 0; k < kClasses; ++k) {
    bias2[k] = float(k);
    for (int o = 0; o < kHidden; ++o) w2t[o * kClassLanes + k] = w2[k * kHidden + o] = random[k * kHidden + o];
    for (int row = 0; row < rows; ++row) dlogits[row * kClassLanes + k] = random[(row * kClasses + k) % random.size()];
  }
  Doubles want_logits(rows * kClasses), narrow(rows * kClasses), want_dh(rows * kHidden), want_dw2(kClasses * kHidden),
      dbias2(kClasses), got_logits(rows * kClasses);
  reference::linear_forward(want_logits.data(), h.doubles().data(), w2.doubles().data(), bias2.doubles().data(), rows,
                            kHidden, kClasses);
  kernels.fc2_forward(logits, h, w2t, bias2, rows);
  for (int i = 0; i < rows * kClasses; ++i) {
    const int padded = i / kClasses * kClassLanes + i % kClasses;
    got_logits[i] = logits[padded];
    narrow[i] = dlogits[padded];
  }
  CHECK_CLOSE(got_logits, want_logits, kBound, "fc2_forward" + of);
  reference::linear_backward(want_dh.data(), want_dw2.data(), dbias2.data(), narrow.data(), h.doubles().data(),
                             w2.doubles().data(), rows, kHidden, kClasses);
  for (int i = 0; i < rows * kHidden; ++i)
    if (!(h[i] > 0)) want_dh[i] = 0;
  for (auto& value : want_dw2) value += 1;
  kernels.fc2_backward(got_dh, dlogits, w2, h, rows);
  kernels.fc2_weight_gradient(got_dw2, dlogits, h, rows);
  CHECK_CLOSE(got_dh.doubles(), want_dh, kBound, "fc2_backward" + of);
  CHECK_CLOSE(got_dw2.doubles(), want_dw2, kBound, "fc2_weight_gradient" + of);
}

void test_sgd(const Kernels& kernels, int count) {
  Buffer w(normal(count, 14));
  const Buffer dw(normal(count, 15));
  Doubles want = w.doubles();
  reference::sgd_update(want.data(), dw.doubles().data(), 0.05, count);
  kernels.sgd_update(w, dw, 0.05f, count);
  CHECK_CLOSE(w.doubles(), want, 1e-7, "sgd_update of " + std::to_string(count));
}

}  // namespace

int main() {
  CHECK(std::strcmp(supported_kernels().back()->isa, "baseline") == 0);
  for (const Kernels* kernels : supported_kernels()) {
    std::printf("%s\n", kernels->isa);
    for (const auto& image : images()) {
      test_moments(*kernels, image);
      test_conv1(*kernels, image);
    }
    test_conv2(*kernels);
    for (const int rows : {1, 2, 3, 7, 13, 16, 31, 63, 64}) test_linear(*kernels, rows);
    for (const int count : {1, 15, 16, 17, 8192}) test_sgd(*kernels, count);
  }
  return testing::finish();
}
