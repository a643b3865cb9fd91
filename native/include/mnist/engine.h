// The seam: what an engine offers, the registry of all engines, and the types that cross between them.
//
// Every engine trains the network of model.h. Public methods validate and then call the private virtual ones, so
// that all engines make the same checks with the same words. Host C++ only: no CUDA type is visible here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mnist/communicator.h"
#include "mnist/errors.h"
#include "mnist/initial.h"
#include "mnist/kernel_use.h"
#include "mnist/model.h"
#include "mnist/step.h"

namespace mnist {

enum class Precision { kFp64, kFp32, kTf32, kBf16 };
enum class Placement { kDevice, kHost };           // where the training images live between steps
enum class BatchNormMode { kPopulation, kBatch };  // which statistics logits() normalises with

const char* to_string(Precision precision);
Precision parse_precision(const std::string& name);  // throws ArgumentError

// A GPU with less than the one that is here; 0 multiprocessors: no limits.
struct GpuLimits {
  int multiprocessors = 0, shared_bytes = 0;  // of shared memory a thread block
};

// A launcher of the user's own in the place of an engine's `op`, for engines that take them: number `number` of those
// in the shared object at `library` (native/gpu/judge/own.h). It lacks the op's arrays whose bits are set in
// `left_out`.
struct OwnOp {
  std::string op, library;
  int number = 0;
  unsigned left_out = 0;
};

struct EngineOptions {
  Precision precision = Precision::kFp32;
  int threads = 0;                // host engines: 0 means one for each core this process may use
  int device = 0;                 // CUDA engines: ordinal of the GPU
  bool check_every_step = false;  // CUDA engines: no graphs, and an error surfaces in the step that made it
  GpuLimits limits;               // for tests, of engines that take them: what runs on a smaller GPU from before Hopper
  int multiprocessors = 0;        // of these engines, too: for how many a training step is cut up, 0 for all
  std::vector<OwnOp> own_ops;     // of those that the engine's info names
};

// What evaluation reports: the losses of the images added up, and how many of each class were right. An image whose
// scores are not all finite is wrong.
struct Score {
  double loss = 0;
  std::int64_t correct[kClasses] = {};
};
Score score(std::span<const double> logits, std::span<const std::uint8_t> labels);  // logits (N, kClasses), labels (N)

// Every discontinuous decision of a forward pass. `pool*` holds, for each pooled cell, the window position that
// carries the gradient (2*dy + dx, the first maximum in scan order) or kDead where ReLU stopped it; `relu3` is 1
// where fc1's ReLU passed. Sizes: batch x (kPool1Size, kPool2Size, kHidden), channels before rows before columns.
struct Routing {
  static constexpr std::uint8_t kDead = mnist::kDead;
  std::vector<std::uint8_t> pool1, pool2, relu3;
};

// One step seen from inside: everything a test or a lesson needs, without an update.
struct ProbeOptions {
  double upstream = 1.0;             // gradient of the final objective with respect to the mean loss
  const Routing* routing = nullptr;  // decisions to follow instead of taking them
};
struct Probe {
  double loss = 0;
  std::int32_t correct = 0;
  std::vector<double> gradients;  // kParameterCount, addressed by kParameters
  std::vector<double> a1, a2;     // pooled activations, batch x kPool1Size / kPool2Size; empty if never formed
  std::vector<double> h, logits;  // batch x kHidden (after ReLU), batch x kClasses
  Routing routing;                // the one that was used
};

// When something ran: seconds since the first step began, and how long.
struct Span {
  double start = 0, seconds = 0;
};

// One op of a step as profile() saw it: its time, and the least that it has to move and to compute.
struct OpTime {
  std::string phase, op;
  std::string unit;             // what multiplies: "fma", or tensor cores: "tf32", "3xtf32", "bf16", "fp16", "3xfp16"
  double bytes = 0, flops = 0;  // a multiply-add is two operations
  double seconds = 0;           // median over the steps
  std::vector<Span> spans;      // of each step
  std::vector<KernelUse> kernels;  // that it launches
};

// How an engine adds up what is summed over a batch below float64, which says how far it may be from float64:
// mnist_cuda/engine/tolerances.py has the bounds.
enum class Summation {
  kPartial,  // partial sums first: the error hardly grows with the batch
  kPlain,    // one term after the other
  kLibrary,  // as its library does: plainly over all positions of all images, too
};
const char* to_string(Summation summation);

struct EngineInfo {
  std::string name;
  std::string summary;                // one line, for tables
  std::string device;                 // "cpu" or "cuda"
  std::vector<Precision> precisions;  // the first is the default
  int auto_priority = 0;              // of those that can run here, `auto` takes the engine with the lowest
  Summation summation = Summation::kPlain;
  bool follows_routing = false;           // probe() takes decisions instead of making them
  bool takes_limits = false;              // EngineOptions::limits and multiprocessors
  bool shares_batches = false;            // join()
  bool fleets = false;                    // fleet(), where the GPU has what it needs
  bool one_launch_per_phase = false;      // of a step
  std::vector<std::string> own_ops;       // that EngineOptions::own_ops may replace
  std::vector<std::string> libraries;     // that it loads when it is made
  std::int64_t host_bytes_per_image = 0;  // of a batch, with a probe's results: measured, rounded up; 0: no matter
};

class Fleet;

class Engine {
 public:
  Engine(EngineInfo info, EngineOptions options);
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const EngineInfo& info() const { return info_; }
  const EngineOptions& options() const { return options_; }

  // From now on this engine and those of other ranks train one model. train, compute_statistics, evaluate and profile
  // are called on all of them with the same arguments, each computes its share of every batch, and all have the same
  // results. Other calls are one engine's; an engine on a GPU profiles alone. For engines that share batches. All ranks
  // call it together. `transport` says how the sums of engines on GPUs come to each other: "peers", "nccl" or "host";
  // empty for the first of these that all can have. UnavailableError where one is asked for that is not to be had.
  void join(std::shared_ptr<Communicator> ranks, const std::string& transport = "");
  // How that is, in words; empty for engines on the host and without other ranks.
  virtual std::string transport() const { return ""; }

  // Parameters cross as float64 or float32 whatever the engine stores: a float survives the round trip unchanged.
  void set_parameters(std::span<const double> values);  // kParameterCount, all finite
  void set_parameters(std::span<const float> values);
  void get_parameters(std::span<double> values) const;
  void get_parameters(std::span<float> values) const;
  // Into the memory of the engine's GPU: kParameterCount of its own type, double in fp64, else float; complete on
  // return. ArgumentError of an engine on the host, which has none.
  void get_device_parameters(void* values) const;
  // The initial values that a random stream gives: see initial.h.
  void initialize_parameters(const Pcg64& stream);

  // Population statistics for evaluation; a training step makes them stale.
  bool has_statistics() const { return has_statistics_; }
  void set_statistics(std::span<const double> values);  // kStatisticCount; variances >= 0
  void get_statistics(std::span<double> values) const;
  void compute_statistics();  // over the whole data set, layer 1 first, then layer 2 under layer 1's

  // The training set: images n x kImagePixels, labels n values below kClasses. Copied. For an engine on a GPU and with
  // kDevice the images may also lie in the memory of a GPU, complete.
  void set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                   Placement placement = Placement::kDevice);
  std::int64_t dataset_size() const { return dataset_size_; }

  // Trains on order[0..batch), order[batch..2*batch), ...: one step each; a rest makes a last, smaller step.
  // `learning_rates` and `results` have one element a step. Returns when all steps are done. A step gives the same
  // bits in whatever call it is made, so that the caller may cut many steps into calls: mnist_cuda/engine/__init__.py
  // does.
  void train(std::span<const std::int32_t> order, std::int64_t batch, std::span<const double> learning_rates,
             std::span<StepResult> results);
  // The number of steps that train() makes of these arguments. Throws ArgumentError where train() would.
  std::int64_t require_steps(std::span<const std::int32_t> order, std::int64_t batch,
                             std::span<const double> learning_rates) const;

  // Whether the next steps depend on nothing but the parameters: set_parameters() of what get_parameters() gives, in an
  // engine like this one, is followed by the same bits.
  virtual bool resumable() const { return true; }

  // Scores before log_softmax, n x kClasses. kBatch takes the n images as one batch.
  void logits(std::span<const std::uint8_t> images, BatchNormMode mode, std::span<double> scores);

  // The same into the memory of the engine's GPU, n x kClasses of its own type, complete on return; the images too may
  // lie in the memory of a GPU.
  void device_logits(std::span<const std::uint8_t> images, BatchNormMode mode, void* scores);

  // The images that evaluate() scores, by population statistics. Copied, to the GPU where there is one.
  void set_evaluation_set(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels);
  std::int64_t evaluation_size() const { return evaluation_size_; }
  Score evaluate();

  Probe probe(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
              const ProbeOptions& options = {});

  // Times the ops of a training step on `batch` images of the data set, one after the other, `steps` times. They add
  // up to the step, with what it costs to look: marks, and no overlap of ops. Parameters and statistics stay.
  std::vector<OpTime> profile(std::int64_t batch, std::int64_t steps);

  // Room for several models that train side by side, for engines that can, each as by an engine with so many
  // multiprocessors; it must not outlive this engine. Throws UnavailableError where they cannot, ArgumentError for a
  // batch of no more images than multiprocessors, or one for which so many have kernels for one model alone.
  std::unique_ptr<Fleet> fleet(int models, std::int64_t batch, int multiprocessors);

  // What its products are made of, in words: the precision, and how it is reached where that is not by its own type.
  virtual std::string arithmetic() const { return to_string(options_.precision); }
  // Which of a library's algorithms were chosen so far, a line each; empty for an engine with nothing to choose.
  virtual std::vector<std::string> algorithms() const { return {}; }

  // For tests of all that an engine can do. Batch sizes from which on a step is made in another way than of one image
  // less: by other kernels, cut up differently, or with another round of a loop, as far as that matters; ascending.
  virtual std::vector<std::int64_t> batch_thresholds() const { return {}; }
  // And how many images it takes at once for population statistics and for logits under them; 0: all.
  virtual std::int64_t evaluation_chunk() const { return 0; }

  Communicator* ranks() const { return ranks_.get(); }  // null: this engine alone
  const std::shared_ptr<Communicator>& shared_ranks() const { return ranks_; }

  static std::int64_t step_count(std::int64_t samples, std::int64_t batch) {
    return samples / batch + (samples % batch > 0);
  }

 private:
  void require_for_logits(std::span<const std::uint8_t> images, BatchNormMode mode) const;

  virtual void do_join(const std::string&) {}
  virtual void do_set_parameters(std::span<const double> values) = 0;
  virtual void do_get_parameters(std::span<double> values) const = 0;
  // By default by way of the two above.
  virtual void do_set_float_parameters(std::span<const float> values);
  virtual void do_get_float_parameters(std::span<float> values) const;
  virtual void do_initialize_parameters(const Pcg64& stream);
  // Of engines on a GPU.
  virtual void do_get_device_parameters(void*) const {}
  virtual void do_device_logits(std::span<const std::uint8_t>, BatchNormMode, void*) {}
  virtual void do_set_statistics(std::span<const double> values) = 0;
  virtual void do_get_statistics(std::span<double> values) const = 0;
  virtual void do_compute_statistics() = 0;
  virtual void do_set_dataset(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                              Placement placement) = 0;
  virtual void do_train(std::span<const std::int32_t> order, std::int64_t batch, std::span<const double> learning_rates,
                        std::span<StepResult> results) = 0;
  virtual void do_logits(std::span<const std::uint8_t> images, BatchNormMode mode, std::span<double> scores) = 0;
  // By default kept on the host and scored by do_logits.
  virtual void do_set_evaluation_set(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels);
  virtual Score do_evaluate();
  virtual Probe do_probe(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                         const ProbeOptions& options) = 0;
  // Learning rate 0. `order` has steps + 1 batches, for one step to warm up with.
  virtual std::vector<OpTime> do_profile(std::span<const std::int32_t> order, std::int64_t batch) = 0;

  virtual std::unique_ptr<Fleet> do_fleet(int models, std::int64_t batch, int multiprocessors);

  friend class Fleet;
  EngineInfo info_;
  EngineOptions options_;
  std::shared_ptr<Communicator> ranks_;
  std::int64_t dataset_size_ = 0, evaluation_size_ = 0;
  std::vector<std::uint8_t> evaluation_images_, evaluation_labels_;  // of the default
  bool has_statistics_ = false;
};

// Models that train side by side on the engine's data set.
class Fleet {
 public:
  Fleet(Engine& engine, int models, std::int64_t batch) : engine_(engine), models_(models), batch_(batch) {}
  virtual ~Fleet() = default;
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  int models() const { return models_; }
  std::int64_t batch() const { return batch_; }

  void store(int model);  // the model becomes what the engine holds
  void load(int model);   // and the other way round

  // Engine::train() of each model: orders (models, steps * batch), learning_rates and results (models, steps).
  void train(std::span<const std::int32_t> orders, std::span<const double> learning_rates,
             std::span<StepResult> results);

 private:
  void require_model(int model, const char* what) const;

  virtual void do_store(int model) = 0;
  virtual void do_load(int model) = 0;
  virtual void do_train(std::span<const std::int32_t> orders, std::span<const double> learning_rates,
                        std::span<StepResult> results) = 0;

  Engine& engine_;
  int models_;
  std::int64_t batch_;
};

// One row of the registry. `unavailable` answers with the reason why this build or machine cannot run the engine in
// that precision, for a CUDA engine on GPU `device`, empty if it can; it throws ArgumentError for an ordinal that does
// not exist where there are GPUs. `create` is null for an engine that is not in this build. `share_for` answers how
// many multiprocessors a fleet's model with this batch size gets, and so which bits, on every GPU; 0 if it must train
// alone.
struct EngineRow {
  EngineInfo info;
  std::string (*unavailable)(Precision precision, int device);
  std::unique_ptr<Engine> (*create)(const EngineInfo& info, const EngineOptions& options);
  int (*share_for)(std::int64_t batch) = nullptr;  // null: the engine has no fleets
};

// All engines, slowest rung first. The list lives in engines/registry.cpp and nowhere else.
std::span<const EngineRow> engines();

// Throws ArgumentError for an unknown name, a precision the engine lacks or limits that it does not take,
// UnavailableError with the reason.
std::unique_ptr<Engine> create_engine(const std::string& name, const EngineOptions& options,
                                      std::span<const EngineRow> rows = engines());

// What the CUDA runtime says of this machine. Never throws.
struct CudaStatus {
  bool compiled = false;  // this build contains CUDA code
  int device_count = 0;
  int driver_version = 0;  // 1000*major + 10*minor; 0 if there is no driver
  int runtime_version = 0;
  std::string architectures;  // the build's list, as CMake has it
  std::string reason;         // one sentence why no GPU can be used; empty if one can
};
CudaStatus cuda_status();

// A GPU as the driver shows it; its place in the list is the ordinal that engines take.
struct Gpu {
  std::string name;
  std::string compute_capability;  // such as 9.0
  std::int64_t memory_bytes = 0;
  int multiprocessors = 0;
};
std::vector<Gpu> gpus();  // empty where there is none, or no CUDA code in this build

// One sentence why this build cannot use GPU `device`, empty if it can. Throws ArgumentError for an ordinal that
// does not exist.
std::string cuda_device_reason(int device);

// Makes the context of GPU `device`, which takes some tenths of a second that another thread can use. Does nothing
// where that is not possible: the next call that uses the GPU reports the reason.
void cuda_warm_up(int device);

}  // namespace mnist
