// The exchanges of `fused` between ranks by themselves, all ranks on one GPU: their totals, and fc1's SGD.
//
// Sums of rows are of whole numbers, which no order of additions changes. fc1's gradients are any floats: they are to
// be added in the order of the ranks.
#include "fused_phase.h"
#include "kernels/fused/ranks/exchange.h"

using namespace testing;

namespace {

constexpr double kMillions = 1 << 23;  // of such numbers the sum is no float
constexpr int kBlocks = 33, kHeadBlocks = 7, kRounds = 3;
constexpr float kLearningRate = 0.125f, kFc1Scale = 1 / 16.f;
constexpr auto kFc1 = kParameters[kFc1Weight];
// State::conv2_max, and behind it what tf32 keeps of fc1's weights: so many in a row make a share of the largest.
constexpr int kConv2Max = fused::kConv2Values / 32, kFc1Max = 2 * fused::kCells2 * fused::kGradientWarps;
constexpr std::int64_t kFc1Share = kFc1.size / (2 * fused::kCells2);

std::vector<float> whole_numbers(Random& random, std::int64_t count, double largest = 8) {
  std::vector<float> values(count);
  for (auto& value : values) value = float(std::floor(random.uniform(-largest, largest + 1)));
  return values;
}
template <class T>
std::vector<double> added_up(const std::vector<T>& rows, std::int64_t width) {
  std::vector<double> total(width);
  for (std::size_t i = 0; i < rows.size(); ++i) total[i % width] += double(rows[i]);
  return total;
}

// What a rank's phases left, and what it learns.
struct Rank {
  cuda::Stream stream;
  std::vector<float> z2, dy2, head, conv2, taps, gradients, weights;
  std::vector<double> moments;
  Guarded<float> gz2, gdy2, ghead, gconv2, gtaps, ggradients, gparameters, grate, gscales, gmax;
  Guarded<double> gmoments;
  Guarded<std::uint16_t> gfc1;
  Guarded<std::uint8_t> box;
  Guarded<fused::Totals> totals;

  Rank(Random random, std::int64_t box_bytes)
      : z2(whole_numbers(random, kBlocks * 2 * kConv2Channels, kMillions)),
        dy2(whole_numbers(random, 2 * kFeatures, kMillions)),
        head(whole_numbers(random, kHeadBlocks * fused::kHeadValues)),
        conv2(whole_numbers(random, kBlocks * fused::kConv2Values)),
        taps(whole_numbers(random, kBlocks * fused::kRoutedTapValues)),
        gradients(random_normal<float>(kParameterCount, random.bits())),
        weights(random_normal<float>(kParameterCount, 5)),  // the same for all
        moments(random.values(kHeadBlocks * fused::kMoments, -9, 9)),
        gz2(z2),
        gdy2(dy2),
        ghead(head),
        gconv2(conv2),
        gtaps(taps),
        ggradients(gradients),
        gparameters(weights),
        grate(std::vector<float>{kLearningRate}),
        gscales(scales()),
        gmax(std::vector<float>(kConv2Max + kFc1Max, -1.f)),
        gmoments(rounded(moments)),
        gfc1(kFc1.size),
        box(std::vector<std::uint8_t>(box_bytes)),
        totals(std::vector<fused::Totals>(1)) {}

  static std::vector<double>& rounded(std::vector<double>& values) {
    for (auto& value : values) value = std::floor(value);
    return values;
  }

  static std::vector<float> scales() {
    std::vector<float> values(fused::kScales, std::numeric_limits<float>::quiet_NaN());
    values[fused::kNextFc1Scale] = kFc1Scale;
    return values;
  }

  State state() const {
    State s{};
    s.z2_sums = gz2.data();
    s.dy2_sums = gdy2.data();
    s.head_sums = ghead.data();
    s.moment_sums = gmoments.data();
    s.conv2_sums = gconv2.data();
    s.routed_tap_sums = gtaps.data();
    s.gradients = ggradients.data();
    s.parameters = gparameters.data();
    s.fc1 = gfc1.data();
    s.learning_rate = grate.data();
    s.scales = gscales.data();
    s.conv2_max = gmax.data();
    s.conv_forward_blocks = s.conv2_backward_blocks = kBlocks;
    s.head_blocks = kHeadBlocks;
    return s;
  }
};

constexpr std::int64_t kRoundsBytes = 3 * fused::kMostExchangeBlocks * fused::kMostPeers * 4;
constexpr std::array<std::int64_t, 3> kBytes = {sizeof(fused::Z2Sums), sizeof(fused::Dy2Sums),
                                                sizeof(fused::GradientSums)};

// Several rounds of all three, as kernels write to the others' memory or with a copy by the host in between. Rank
// `absent` has no image.
void exchange_all(std::vector<Rank>& ranks, Precision precision, bool peers, int absent) {
  const int size = int(ranks.size());
  for (int round = 0; round < kRounds; ++round)
    for (int which = 0; which < 3; ++which) {
      const auto place = kRoundsBytes + (which > 0 ? kBytes[0] : 0) * size + (which > 1 ? kBytes[1] : 0) * size;
      const auto launch = [&](int rank, const fused::RankSums& parts) {
        Rank& r = ranks[rank];
        const State s = r.state();
        if (which == 0) fused::exchange_z2(r.totals.data(), s, parts, r.stream.get());
        if (which == 1) fused::exchange_dy2(r.totals.data(), s, parts, r.stream.get());
        if (which == 2) fused::exchange_gradients(precision, r.totals.data(), s, parts, r.stream.get());
      };
      std::vector<fused::RankSums> parts(size);
      for (int rank = 0; rank < size; ++rank) {
        fused::RankSums& p = parts[rank];
        p.rank = rank;
        p.size = size;
        p.counts = rank != absent;
        p.all = ranks[rank].box.data() + place;
        for (int other = 0; other < size; ++other) {
          p.to[other] = ranks[peers ? other : rank].box.data() + place + rank * kBytes[which];
          if (peers)
            p.rounds[other] = reinterpret_cast<std::uint32_t*>(ranks[other].box.data()) +
                              which * fused::kMostExchangeBlocks * fused::kMostPeers;
        }
        p.targets = peers ? size : 1;
        p.takes = peers;
        if (!peers) p.to[0] = p.to[rank];
        launch(rank, p);
      }
      if (peers) continue;
      MNIST_CHECK(cudaDeviceSynchronize());
      for (int rank = 0; rank < size; ++rank) {
        for (int other = 0; other < size; ++other)
          if (other != rank)
            cuda::copy(ranks[rank].box.data() + place + other * kBytes[which],
                       ranks[other].box.data() + place + other * kBytes[which], kBytes[which], nullptr);
      }
      MNIST_CHECK(cudaDeviceSynchronize());
      for (int rank = 0; rank < size; ++rank) {
        parts[rank].gives = false;
        parts[rank].takes = true;
        launch(rank, parts[rank]);
      }
    }
  MNIST_CHECK(cudaDeviceSynchronize());
}

void check_ranks(Precision precision, int size, bool peers, int absent) {
  const bool scaled = precision == Precision::kTf32;
  const std::string where = std::string(to_string(precision)) + ", " + std::to_string(size) + " ranks, " +
                            (peers ? "by peers" : "by copies") + ", rank " + std::to_string(absent) + " absent: ";
  const std::int64_t box = kRoundsBytes + size * (kBytes[0] + kBytes[1] + kBytes[2]);
  std::vector<Rank> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(Random(rank + 1), box);
  exchange_all(ranks, precision, peers, absent);

  const auto of_all = [&](auto rows, std::int64_t width) {
    std::vector<double> total(width);
    for (int rank = 0; rank < size; ++rank)
      if (rank != absent) {
        const auto part = added_up(ranks[rank].*rows, width);
        for (std::int64_t i = 0; i < width; ++i) total[i] += part[i];
      }
    return total;
  };
  std::vector<float> weights(ranks[0].weights.begin() + kFc1.offset,
                             ranks[0].weights.begin() + kFc1.offset + kFc1.size);
  for (int round = 0; round < kRounds; ++round)
    for (std::int64_t i = 0; i < kFc1.size; ++i) {
      const auto part = [&](int rank) { return rank == absent ? 0.f : ranks[rank].gradients[kFc1.offset + i]; };
      float d = part(0);
      for (int rank = 1; rank < size; ++rank) d += part(rank);
      weights[i] = std::fma(-kLearningRate, d, weights[i]);
    }
  for (int rank = 0; rank < size; ++rank) {
    const Rank& r = ranks[rank];
    const fused::Totals totals = r.totals.read(where + "totals")[0];
    const auto same = [&](const char* what, const auto* got, const std::vector<double>& want) {
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < want.size(); ++i) wrong += !(double(got[i]) == want[i]);
      report(wrong == 0, where + "rank " + std::to_string(rank) + ", " + what + ": " + std::to_string(wrong) + " wrong",
             __FILE__, __LINE__);
    };
    const auto z2 = of_all(&Rank::z2, 2 * kConv2Channels), moments = of_all(&Rank::moments, fused::kMoments);
    // A float and what it lost: rows of z2_sums, cells of dy2_sums.
    const auto split = [](std::vector<double>& to, std::int64_t at, std::int64_t apart, double sum) {
      to[at] = float(sum);
      to[at + apart] = sum - double(float(sum));
    };
    constexpr std::int64_t kColumns = 2 * kConv2Channels;
    std::vector<double> rows(2 * kColumns), cells(2 * kFeatures), dy2(kColumns);
    for (std::int64_t i = 0; i < kColumns; ++i) split(rows, i, kColumns, z2[i]);
    const auto of_cells = of_all(&Rank::dy2, 2 * kFeatures);
    for (std::int64_t i = 0; i < 2 * kFeatures; ++i)
      dy2[i / kFeatures * kConv2Channels + i % kConv2Channels] += of_cells[i];
    for (std::int64_t i = 0; i < kColumns; ++i)
      split(cells, i / kConv2Channels * kFeatures + i % kConv2Channels, kConv2Channels, dy2[i]);
    same("z2_sums", totals.z2_sums, rows);
    same("dy2_sums", totals.dy2_sums, cells);
    same("moment_sums", totals.moment_sums, moments);
    same("head_sums", totals.head_sums, of_all(&Rank::head, fused::kHeadValues));
    same("conv2_sums", totals.conv2_sums, of_all(&Rank::conv2, fused::kConv2Values));
    same("routed_tap_sums", totals.routed_tap_sums, of_all(&Rank::taps, fused::kRoutedTapValues));
    const auto parameters = r.gparameters.read(where + "parameters");
    same("fc1.weight", parameters.data() + kFc1.offset, std::vector<double>(weights.begin(), weights.end()));
    const auto fc1 = r.gfc1.read(where + "fc1");
    std::int64_t wrong = 0, changed = 0;
    for (std::int64_t i = 0; i < kFc1.size; ++i)
      wrong += fc1[i] != (scaled ? bits_of_fp16(weights[i] / kFc1Scale) : bits_of_bf16(to_bf16(weights[i])));
    for (std::int64_t i = 0; i < kParameterCount; ++i)
      changed += (i < kFc1.offset || i >= kFc1.offset + kFc1.size) && parameters[i] != r.weights[i];
    report(wrong == 0, where + "fc1's copy: " + std::to_string(wrong) + " wrong", __FILE__, __LINE__);
    const auto largest = r.gmax.read(where + "the largest weights");
    std::vector<double> shares(2 * fused::kCells2), want(2 * fused::kCells2, -1);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      shares[i] = *std::max_element(&largest[kConv2Max + i * fused::kGradientWarps],
                                    &largest[kConv2Max + i * fused::kGradientWarps] + fused::kGradientWarps);
      for (std::int64_t k = 0; scaled && k < kFc1Share; ++k)
        want[i] = std::max(want[i], double(std::abs(weights[i * kFc1Share + k])));
    }
    same("the largest of fc1.weight", shares.data(), want);
    same("the largest of conv2.weight", largest.data(), std::vector<double>(kConv2Max, -1));
    report(changed == 0, where + "other parameters: " + std::to_string(changed) + " changed", __FILE__, __LINE__);
  }
}

}  // namespace

int main() {
  require_gpu();
  require_code(cuda::kTensorCapability);
  fused::begin_exchanges();
  check_ranks(Precision::kBf16, 1, true, -1);
  for (const int size : {1, 2, 3, 5})
    for (const int absent : {-1, 0, size - 1}) check_ranks(Precision::kBf16, size, false, absent);
  check_ranks(Precision::kTf32, 1, true, -1);
  check_ranks(Precision::kTf32, 3, false, 1);
  return finish();
}
