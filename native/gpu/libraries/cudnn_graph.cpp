// Descriptors of the graph interface, the choice of an engine, and the graphs.
#include "libraries/cudnn_graph.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <utility>

#include "cuda/signal_handlers.h"

namespace mnist::cudnn {
namespace {

constexpr std::int64_t kMaxCandidates = 64, kMaxNotes = 16;

// Owner of one backend descriptor. set() and finalize() report failure instead of throwing: a shape that cuDNN does
// not support is an answer here, not a fault.
class Descriptor {
 public:
  explicit Descriptor(int type) { ok_ = api().BackendCreateDescriptor(type, raw_.put()) == kSuccess; }

  template <class T>
  Descriptor& set(int attribute, int type, std::span<const T> values) {
    ok_ = ok_ && api().BackendSetAttribute(raw_.get(), attribute, type, std::int64_t(values.size()), values.data()) ==
                     kSuccess;
    return *this;
  }
  template <class T>
  Descriptor& set(int attribute, int type, const T& value) {
    return set(attribute, type, std::span<const T>(&value, 1));
  }
  Descriptor& set(int attribute, const Descriptor& value) {
    ok_ = ok_ && value.ok_;
    return set(attribute, kTypeDescriptor, value.get());
  }
  Descriptor& finalize() {
    ok_ = ok_ && api().BackendFinalize(raw_.get()) == kSuccess;
    return *this;
  }

  // Up to `room` values; those that are there.
  template <class T>
  std::vector<T> get(int attribute, int type, std::int64_t room) const {
    std::vector<T> values(room);
    std::int64_t count = 0;
    const int status = api().BackendGetAttribute(raw_.get(), attribute, type, room, &count, values.data());
    values.resize(status == kSuccess ? std::min(count, room) : 0);
    return values;
  }

  bool ok() const { return ok_; }
  RawBackend get() const { return raw_.get(); }
  Owner<RawBackend> release() { return std::move(raw_); }

 private:
  Owner<RawBackend> raw_;
  bool ok_ = false;
};

bool contains(const std::vector<int>& notes, int note) { return std::ranges::find(notes, note) != notes.end(); }

std::string last_error() {
  char text[512] = "";
  api().GetLastErrorString(text, sizeof text);
  std::string line = text[0] ? text : "no reason given";
  std::ranges::replace(line, '\n', ' ');
  return line;
}

// What became of the engines that were not taken.
struct Tally {
  int nondeterministic = 0, inexact = 0, unsupported = 0, too_large = 0, refused = 0;
  std::string reason;  // cuDNN's, of the last one that it does not support

  std::string text() const {
    std::string list;
    const auto add = [&](int count, const std::string& what) {
      if (count) list += (list.empty() ? "" : ", ") + std::to_string(count) + " " + what;
    };
    add(nondeterministic, "not deterministic");
    add(inexact, "not of float32 products");
    add(too_large, "with too large a workspace");
    add(refused, "refused by a test");
    add(unsupported, "not supported (" + reason + ")");
    return list.empty() ? "it offers no engine" : "of its engines " + list;
  }
};

}  // namespace

// A graph while it is being described; tensor() and set() are about its last operation.
class Graph {
 public:
  Graph(RawContext context, int type) : context_(context) { then(type); }

  Graph& then(int type) {
    operations_.push_back(std::make_unique<Descriptor>(type));
    return *this;
  }

  // The next pointer of Plan::run, bound to `attribute`.
  Graph& tensor(int attribute, const Shape& shape, bool by_value = false) {
    ids_.push_back(std::int64_t(tensors_.size()) + 1);
    return add_tensor(attribute, shape, by_value, false);
  }
  // An array without a pointer: one operation makes it, others read it.
  Graph& between(int attribute, const Shape& shape) { return add_tensor(attribute, shape, false, true); }
  // An array of either kind once more, by its number.
  Graph& again(int attribute, int tensor) {
    operations_.back()->set(attribute, *tensors_[tensor]);
    return *this;
  }
  template <class T>
  Graph& set(int attribute, int type, const T& value) {
    operations_.back()->set(attribute, type, value);
    return *this;
  }
  Graph& set(int attribute, Descriptor value) {
    auto& part = parts_.emplace_back(std::make_unique<Descriptor>(std::move(value)));
    operations_.back()->set(attribute, *part);
    return *this;
  }

  Plan plan(const Rules& rules) {
    const cuda::SignalHandlers kept;  // cuDNN may compile
    Plan chosen;
    Descriptor graph(kOperationGraph);
    bool ok = true;
    std::vector<RawBackend> operations;
    for (const auto& operation : operations_) {
      ok = ok && operation->finalize().ok();
      operations.push_back(operation->get());
    }
    if (ok)
      graph.set(kOperationGraphOps, kTypeDescriptor, std::span<const RawBackend>(operations))
          .set(kOperationGraphHandle, kTypeHandle, context_)
          .finalize();
    Tally tally;
    if (ok && graph.ok()) {
      for (const int mode : {int(kHeuristicsA), int(kHeuristicsFallback)}) {
        if (chosen) break;
        auto candidates = ranked(graph, mode);
        for (const auto engine : rules.first) add_engine(candidates, graph, engine);
        chosen = first_allowed(candidates, rules, tally);
      }
      if (!chosen) {
        tally = {};
        std::vector<Candidate> candidates;
        const auto count = graph.get<std::int64_t>(kOperationGraphEngineCount, kTypeInt64, 1);
        for (std::int64_t engine = 0; !count.empty() && engine < count[0]; ++engine)
          add_engine(candidates, graph, engine);
        chosen = first_allowed(candidates, rules, tally);
      }
    } else {
      tally.unsupported = 1;
      tally.reason = last_error();
    }
    if (!chosen) chosen.text_ = tally.text();
    return chosen;
  }

 private:
  struct Candidate {
    std::unique_ptr<Descriptor> config;
    std::int64_t engine = -1;
    std::vector<int> notes;
  };

  Plan first_allowed(std::vector<Candidate>& candidates, const Rules& rules, Tally& tally) const {
    std::ranges::stable_sort(candidates, {}, [&](const Candidate& c) {
      return std::ranges::find(rules.first, c.engine) - rules.first.begin();
    });
    for (const auto& candidate : candidates) {
      const auto& notes = candidate.notes;
      const auto passed_over = [&](bool why, int& count) { return why && ++count; };
      if (passed_over(contains(notes, kNoteNondeterministic), tally.nondeterministic)) continue;
      if (passed_over(!rules.tensor_cores && (contains(notes, kNoteTensorCore) || contains(notes, kNoteDownConvert) ||
                                              contains(notes, kNoteReducedReduction)),
                      tally.inexact))
        continue;
      Descriptor plan(kExecutionPlan);
      plan.set(kPlanHandle, kTypeHandle, context_).set(kPlanEngineConfig, *candidate.config).finalize();
      if (passed_over(!plan.ok(), tally.unsupported)) {
        tally.reason = last_error();
        continue;
      }
      const auto bytes = plan.get<std::int64_t>(kPlanWorkspaceSize, kTypeInt64, 1);
      if (passed_over(bytes.empty() || bytes[0] > rules.workspace_bytes, tally.too_large)) continue;
      Plan chosen;
      chosen.ids_ = ids_;
      char text[96];
      std::snprintf(text, sizeof text, "engine %d, workspace %.1f MB%s%s%s", int(candidate.engine), bytes[0] / 1e6,
                    contains(notes, kNoteTensorCore) ? ", tensor cores" : "", contains(notes, kNoteFft) ? ", FFT" : "",
                    contains(notes, kNoteWinograd) ? ", Winograd" : "");
      if (passed_over(rules.refuse && rules.refuse(text), tally.refused)) continue;
      chosen.text_ = text;
      chosen.plan_ = std::make_shared<const Owner<RawBackend>>(plan.release());
      return chosen;
    }
    return {};
  }

  // What the heuristics offer, best first.
  std::vector<Candidate> ranked(const Descriptor& graph, int mode) const {
    Descriptor heuristics(kHeuristics);
    heuristics.set(kHeuristicsOperationGraph, graph).set(kHeuristicsMode, kTypeHeuristicsMode, mode).finalize();
    std::vector<Candidate> candidates;
    if (!heuristics.ok()) return candidates;
    std::vector<RawBackend> raw;
    for (std::int64_t i = 0; i < kMaxCandidates; ++i) {
      candidates.push_back({std::make_unique<Descriptor>(kEngineConfig)});
      raw.push_back(candidates.back().config->get());
    }
    std::int64_t count = 0;
    const int status = api().BackendGetAttribute(heuristics.get(), kHeuristicsResults, kTypeDescriptor, kMaxCandidates,
                                                 &count, raw.data());
    candidates.resize(status == kSuccess ? std::min(count, kMaxCandidates) : 0);
    for (auto& candidate : candidates) {
      const Descriptor engine(kEngine);
      RawBackend held = engine.get();
      (void)api().BackendGetAttribute(candidate.config->get(), kEngineConfigEngine, kTypeDescriptor, 1, &count, &held);
      const auto index = engine.get<std::int64_t>(kEngineIndex, kTypeInt64, 1);
      if (!index.empty()) candidate.engine = index[0];
      candidate.notes = engine.get<int>(kEngineNumericalNote, kTypeNumericalNote, kMaxNotes);
    }
    return candidates;
  }

  // An engine by its number with its default settings: the heuristics do not offer all that there are.
  static void add_engine(std::vector<Candidate>& candidates, const Descriptor& graph, std::int64_t index) {
    Descriptor engine(kEngine);
    engine.set(kEngineOperationGraph, graph).set(kEngineIndex, kTypeInt64, index).finalize();
    Candidate candidate{std::make_unique<Descriptor>(kEngineConfig), index};
    if (!candidate.config->set(kEngineConfigEngine, engine).finalize().ok()) return;
    candidate.notes = engine.get<int>(kEngineNumericalNote, kTypeNumericalNote, kMaxNotes);
    candidates.push_back(std::move(candidate));
  }

  Graph& add_tensor(int attribute, const Shape& shape, bool by_value, bool is_virtual) {
    auto& tensor = tensors_.emplace_back(std::make_unique<Descriptor>(kTensor));
    const std::array<std::int64_t, 4> dimensions{shape.n, shape.c, shape.h, shape.w};
    const auto [n, c, h, w] = dimensions;
    const auto strides = shape.channels_last ? std::array<std::int64_t, 4>{h * w * c, 1, w * c, c}
                                             : std::array<std::int64_t, 4>{c * h * w, h * w, w, 1};
    tensor->set(kTensorUniqueId, kTypeInt64, std::int64_t(tensors_.size()))
        .set(kTensorDataType, kTypeDataType, shape.type)
        .set(kTensorAlignment, kTypeInt64, std::int64_t(16))
        .set(kTensorDimensions, kTypeInt64, std::span<const std::int64_t>(dimensions))
        .set(kTensorStrides, kTypeInt64, std::span<const std::int64_t>(strides))
        .set(kTensorIsByValue, kTypeBoolean, by_value)
        .set(kTensorIsVirtual, kTypeBoolean, is_virtual)
        .finalize();
    return again(attribute, int(tensors_.size()) - 1);
  }

  RawContext context_;
  std::vector<std::unique_ptr<Descriptor>> operations_, tensors_, parts_;  // they live as long as the graph
  std::vector<std::int64_t> ids_;                                          // of the pointers
};

void Plan::run(RawContext context, std::initializer_list<const void*> pointers, void* workspace) const {
  Descriptor pack(kVariantPack);
  pack.set(kVariantPackIds, kTypeInt64, std::span<const std::int64_t>(ids_))
      .set(kVariantPackPointers, kTypePointer, std::span<const void* const>(pointers.begin(), pointers.size()))
      .set(kVariantPackWorkspace, kTypePointer, workspace)
      .finalize();
  MNIST_CUDNN(BackendExecute(context, plan_->get(), pack.get()));
}

namespace {

Descriptor convolution_3x3() {
  constexpr std::array<std::int64_t, 2> kOnes{1, 1};
  const std::span<const std::int64_t> ones(kOnes);
  Descriptor convolution(kConvolution);
  convolution.set(kConvolutionComputeType, kTypeDataType, int(kFloat))
      .set(kConvolutionMode, kTypeConvolutionMode, int(kCrossCorrelation))
      .set(kConvolutionSpatialDims, kTypeInt64, std::int64_t(2))
      .set(kConvolutionDilations, kTypeInt64, ones)
      .set(kConvolutionStrides, kTypeInt64, ones)
      .set(kConvolutionPrePaddings, kTypeInt64, ones)
      .set(kConvolutionPostPaddings, kTypeInt64, ones)
      .finalize();
  return convolution;
}

Descriptor max_pool_2x2() {
  constexpr std::array<Fraction, 2> kTwo{{{2, 1}, {2, 1}}}, kZero{{{0, 1}, {0, 1}}};
  const std::span<const Fraction> two(kTwo), zero(kZero);
  Descriptor resample(kResample);
  resample.set(kResampleMode, kTypeResampleMode, int(kMaxPool))
      .set(kResampleComputeType, kTypeDataType, int(kFloat))
      .set(kResampleNanPropagation, kTypeNanPropagation, int(kPropagateNan))
      .set(kResamplePaddingMode, kTypePaddingMode, int(kNegativeInfinityPad))
      .set(kResampleSpatialDims, kTypeInt64, std::int64_t(2))
      .set(kResampleWindow, kTypeFraction, two)
      .set(kResampleStrides, kTypeFraction, two)
      .set(kResamplePrePaddings, kTypeFraction, zero)
      .set(kResamplePostPaddings, kTypeFraction, zero)
      .finalize();
  return resample;
}

Descriptor pointwise(int mode) {
  Descriptor descriptor(kPointwise);
  descriptor.set(kPointwiseMode, kTypePointwiseMode, mode)
      .set(kPointwiseComputeType, kTypeDataType, int(kFloat))
      .finalize();
  return descriptor;
}

Descriptor sum() {
  Descriptor descriptor(kReduction);
  descriptor.set(kReductionOperator, kTypeReduction, int(kReduceAdd))
      .set(kReductionComputeType, kTypeDataType, int(kFloat))
      .finalize();
  return descriptor;
}

Shape by_channel(const Shape& x) { return {kFloat, 1, x.c, 1, 1}; }
Shape pooled(int type, const Shape& x) { return {type, x.n, x.c, x.h / 2, x.w / 2}; }
constexpr Shape kNumber{kFloat, 1, 1, 1, 1};

// By Direction: the operation, and its attributes.
constexpr struct {
  int operation, x, w, y, convolution, alpha, beta;
} kConvolutions[] = {
    {kConvolutionForward, kForwardX, kForwardW, kForwardY, kForwardConvolution, kForwardAlpha, kForwardBeta},
    {kConvolutionBackwardData, kBackwardDataDx, kBackwardDataW, kBackwardDataDy, kBackwardDataConvolution,
     kBackwardDataAlpha, kBackwardDataBeta},
    {kConvolutionBackwardFilter, kBackwardFilterX, kBackwardFilterDw, kBackwardFilterDy, kBackwardFilterConvolution,
     kBackwardFilterAlpha, kBackwardFilterBeta},
};

// Its arrays are 0, 1 and 2.
Graph conv2d_graph(Direction direction, RawContext context, const Shape& x, const Shape& w, const Shape& y) {
  const auto& its = kConvolutions[int(direction)];
  Graph graph(context, its.operation);
  graph.tensor(its.x, x)
      .tensor(its.w, w)
      .tensor(its.y, y)
      .set(its.convolution, convolution_3x3())
      .set(its.alpha, kTypeFloat, 1.0f)
      .set(its.beta, kTypeFloat, 0.0f);
  return graph;
}

// All but y; x is array 0 and epsilon 5.
Graph norm_forward(RawContext context, const Shape& x) {
  Graph graph(context, kNormForward);
  graph.set(kNormForwardMode, kTypeNormMode, int(kBatchNorm))
      .set(kNormForwardPhase, kTypeNormPhase, int(kNormTraining))
      .tensor(kNormForwardX, x)
      .tensor(kNormForwardScale, by_channel(x))
      .tensor(kNormForwardBias, by_channel(x))
      .tensor(kNormForwardMean, by_channel(x))
      .tensor(kNormForwardInverse, by_channel(x))
      .tensor(kNormForwardEpsilon, kNumber, true);
  return graph;
}

}  // namespace

Plan conv2d_plan(Direction direction, RawContext context, const Shape& x, const Shape& w, const Shape& y,
                 const Rules& rules) {
  return conv2d_graph(direction, context, x, w, y).plan(rules);
}

Plan batch_norm_forward_plan(RawContext context, const Shape& x, const Rules& rules) {
  return norm_forward(context, x).tensor(kNormForwardY, x).plan(rules);
}

Plan batch_norm_backward_plan(RawContext context, const Shape& x, const Rules& rules) {
  return Graph(context, kNormBackward)
      .set(kNormBackwardMode, kTypeNormMode, int(kBatchNorm))
      .tensor(kNormBackwardX, x)
      .tensor(kNormBackwardDx, x)
      .tensor(kNormBackwardScale, by_channel(x))
      .tensor(kNormBackwardMean, by_channel(x))
      .tensor(kNormBackwardInverse, by_channel(x))
      .tensor(kNormBackwardDscale, by_channel(x))
      .tensor(kNormBackwardDbias, by_channel(x))
      .tensor(kNormBackwardDy, x)
      .plan(rules);
}

Plan max_pool2d_forward_plan(RawContext context, const Shape& x, const Rules& rules) {
  return Graph(context, kResampleForward)
      .set(kResampleForwardResample, max_pool_2x2())
      .tensor(kResampleForwardX, x)
      .tensor(kResampleForwardY, pooled(x.type, x))
      .tensor(kResampleForwardIndex, pooled(kInt8, x))
      .plan(rules);
}

Plan max_pool2d_backward_plan(RawContext context, const Shape& dx, const Rules& rules) {
  return Graph(context, kResampleBackward)
      .set(kResampleBackwardResample, max_pool_2x2())
      .tensor(kResampleBackwardDx, dx)
      .tensor(kResampleBackwardDy, pooled(dx.type, dx))
      .tensor(kResampleBackwardIndex, pooled(kInt8, dx))
      .plan(rules);
}

Plan conv2d_sums_plan(RawContext context, const Shape& x, const Shape& w, const Shape& y, const Rules& rules) {
  return conv2d_graph(Direction::kForward, context, x, w, y)
      .then(kReductionOperation)
      .set(kReductionDescriptor, sum())
      .again(kReductionX, 2)
      .tensor(kReductionY, by_channel(y))
      .then(kPointwiseOperation)
      .set(kPointwiseDescriptor, pointwise(kPointwiseMultiply))
      .again(kPointwiseX, 2)
      .again(kPointwiseB, 2)
      .between(kPointwiseY, y)  // 4
      .then(kReductionOperation)
      .set(kReductionDescriptor, sum())
      .again(kReductionX, 4)
      .tensor(kReductionY, by_channel(y))
      .plan(rules);
}

Plan batch_norm_finalize_plan(RawContext context, const Shape& x, const Rules& rules) {
  Graph graph(context, kBnFinalize);
  graph.set(kBnFinalizeMode, kTypeBnFinalizeMode, int(kBnFinalizeTraining))
      .set(kBnFinalizeComputeType, kTypeDataType, int(kFloat));
  for (const int attribute : {kBnFinalizeSum, kBnFinalizeSquares, kBnFinalizeScale, kBnFinalizeBias,
                              kBnFinalizeRunningMean, kBnFinalizeRunningVar, kBnFinalizeNextMean, kBnFinalizeNextVar,
                              kBnFinalizeMean, kBnFinalizeInverse, kBnFinalizeFactor, kBnFinalizeShift})
    graph.tensor(attribute, by_channel(x));
  return graph.tensor(kBnFinalizeCount, {kInt64, 1, 1, 1, 1}, true)
      .tensor(kBnFinalizeEpsilon, kNumber, true)
      .tensor(kBnFinalizeMomentum, kNumber, true)
      .plan(rules);
}

Plan scale_relu_plan(RawContext context, const Shape& x, const Rules& rules) {
  return Graph(context, kPointwiseOperation)
      .set(kPointwiseDescriptor, pointwise(kPointwiseMultiply))
      .tensor(kPointwiseX, x)
      .tensor(kPointwiseB, by_channel(x))
      .between(kPointwiseY, x)  // 2
      .then(kPointwiseOperation)
      .set(kPointwiseDescriptor, pointwise(kPointwiseAdd))
      .again(kPointwiseX, 2)
      .tensor(kPointwiseB, by_channel(x))
      .between(kPointwiseY, x)  // 4
      .then(kPointwiseOperation)
      .set(kPointwiseDescriptor, pointwise(kPointwiseRelu))
      .again(kPointwiseX, 4)
      .tensor(kPointwiseY, x)
      .plan(rules);
}

Plan batch_norm_relu_forward_plan(RawContext context, const Shape& x, const Rules& rules) {
  return norm_forward(context, x)
      .between(kNormForwardY, x)
      .then(kPointwiseOperation)
      .set(kPointwiseDescriptor, pointwise(kPointwiseRelu))
      .again(kPointwiseX, 6)
      .tensor(kPointwiseY, x)
      .plan(rules);
}

}  // namespace mnist::cudnn
