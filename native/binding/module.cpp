// The Python module mnist_cuda._native: converts and forwards, never computes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#ifdef MNIST_WITH_CUDA
#include "cuda/buffer.h"
#include "cuda/stream.h"
#include "libraries/cuda_libs.h"
#endif
#include "cpu/kernels.h"
#include "interpreter.h"
#include "mnist/engine.h"
#include "mnist/op_bench.h"
#include "mnist/operators.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace mnist;
using interpreter::Released;

namespace {

constexpr double kPatience = 2;  // seconds that threads have at the program's end to come back from native code

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using NumpyVector = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T>
std::span<const T> view(const Vector<T>& array) {
  return {array.data(), array.size()};
}

template <class T>
NumpyVector<T> to_numpy(std::vector<T>&& values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return NumpyVector<T>(owned->data(), {owned->size()}, owner);
}

// What work() gives, which runs without the interpreter's lock.
template <class Work>
auto without_gil(Work work) {
  const Released released;
  return work();
}

// make(value) of each.
template <class Values, class Make>
nb::list list_of(const Values& values, Make make) {
  nb::list list;
  for (const auto& value : values) list.append(make(value));
  return list;
}

// Ranks of a launcher: gather(mine, all) is of the library by which they meet, in Python. What it raises passes
// through.
class Launched final : public Communicator {
 public:
  Launched(int rank, int size, nb::callable gather) : Communicator(rank, size), gather_(std::move(gather)) {}
  ~Launched() override {
    interpreter::with_lock([&] { gather_.reset(); });
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (mine.empty()) return;
    const auto memory = [](const void* data, std::size_t size) {
      auto* start = static_cast<char*>(const_cast<void*>(data));
      return nb::steal(PyMemoryView_FromMemory(start, Py_ssize_t(size), PyBUF_WRITE));
    };
    interpreter::with_lock([&] { gather_(memory(mine.data(), mine.size()), memory(all.data(), all.size())); });
  }
  void leave(int, const std::string&) override {}  // the program that launched the others ends them

 private:
  nb::object gather_;
};

nb::dict info_dict(const EngineInfo& info) {
  std::vector<std::string> precisions;
  for (const auto precision : info.precisions) precisions.emplace_back(to_string(precision));
  nb::dict d;
  d["name"] = info.name;
  d["summary"] = info.summary;
  d["device"] = info.device;
  d["precisions"] = precisions;
  d["rank"] = info.auto_priority;
  d["summation"] = to_string(info.summation);
  d["follows_routing"] = info.follows_routing;
  d["takes_limits"] = info.takes_limits;
  d["shares_batches"] = info.shares_batches;
  d["fleets"] = info.fleets;
  d["one_launch_per_phase"] = info.one_launch_per_phase;
  d["own_ops"] = info.own_ops;
  d["libraries"] = info.libraries;
  d["host_bytes_per_image"] = info.host_bytes_per_image;
  return d;
}

nb::list kernels_list(const std::vector<KernelUse>& kernels) {
  return list_of(kernels, [](const KernelUse& kernel) {
    nb::dict d;
    d["name"] = kernel.name;
    d["symbol"] = kernel.symbol;
    d["grid"] = nb::make_tuple(kernel.grid[0], kernel.grid[1], kernel.grid[2]);
    d["block"] = nb::make_tuple(kernel.block[0], kernel.block[1], kernel.block[2]);
    d["registers"] = kernel.registers;
    d["local_bytes"] = kernel.local_bytes;
    d["shared_bytes"] = kernel.shared_bytes;
    d["blocks_per_multiprocessor"] = kernel.blocks_per_multiprocessor;
    d["occupancy"] = kernel.occupancy;
    return d;
  });
}

nb::dict roofs_dict(const Roofs& roofs) {
  nb::dict d;
  d["bytes_per_second"] = roofs.bytes_per_second;
  d["fma_flops"] = roofs.fma_flops;
  if (roofs.tf32_flops > 0) d["tf32_flops"] = roofs.tf32_flops;
  if (roofs.bf16_flops > 0) d["bf16_flops"] = roofs.bf16_flops;
  return d;
}

// A table of model.h as [(name, shape, offset, size)].
template <class Table>
nb::list table_list(const Table& table) {
  return list_of(table, [](const Parameter& p) {
    nb::list shape;
    for (int d = 0; d < p.ndim; ++d) shape.append(p.shape[d]);
    return nb::make_tuple(p.name, nb::tuple(shape), p.offset, p.size);
  });
}

template <class T>
NumpyVector<T> parameters_of(const Engine& engine) {
  auto values = std::make_unique_for_overwrite<T[]>(kParameterCount);
  without_gil([&] { engine.get_parameters(std::span(values.get(), kParameterCount)); });
  T* data = values.release();
  return NumpyVector<T>(data, {std::size_t(kParameterCount)},
                        nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); }));
}

// ---- arrays in a GPU's memory, which pass as addresses --------------------------------------------------------------

using GpuBytes = nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cuda>;

std::span<const std::uint8_t> bytes_at(std::uintptr_t address, std::size_t count) {
  return {reinterpret_cast<const std::uint8_t*>(address), count};
}

#ifdef MNIST_WITH_CUDA
// New memory of GPU `device`, of `count` numbers, which fill(data) sets, as arrays of the tensors in `table`: a list of
// (array, address), each of which keeps all of it.
template <class T, class Table, class Fill>
nb::list gpu_arrays(int device, std::int64_t count, const Table& table, Fill fill) {
  auto buffer = without_gil([&] {
    const cuda::DeviceGuard guard(device);
    auto made = std::make_unique<cuda::DeviceBuffer<T>>(count);
    fill(made->data());
    return made;
  });
  T* const data = buffer->data();
  const nb::capsule owner(buffer.release(), [](void* p) noexcept { delete static_cast<cuda::DeviceBuffer<T>*>(p); });
  nb::list arrays;
  for (const auto& tensor : table) {
    const std::vector<std::size_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.ndim);
    const nb::ndarray<nb::array_api, T> array(data + tensor.offset, shape.size(), shape.data(), owner, nullptr,
                                              nb::dtype<T>(), nb::device::cuda::value, device);
    arrays.append(nb::make_tuple(array, reinterpret_cast<std::uintptr_t>(data + tensor.offset)));
  }
  return arrays;
}

// The same by the engine's own type; fill(data) takes a pointer to void.
template <class Table, class Fill>
nb::list gpu_arrays_of(const Engine& engine, std::int64_t count, const Table& table, Fill fill) {
  const int device = engine.options().device;
  if (engine.options().precision == Precision::kFp64) return gpu_arrays<double>(device, count, table, fill);
  return gpu_arrays<float>(device, count, table, fill);
}
#endif

// As Python passes it: the address of an array as a number, 0 for null.
template <class A>
using FromPython = std::conditional_t<std::is_pointer_v<A>, std::uintptr_t, A>;

template <class A>
A to_native(FromPython<A> value) {
  if constexpr (std::is_pointer_v<A>)
    return reinterpret_cast<A>(value);
  else
    return value;
}

// A method of Operators<T> as name(device, stream, addresses and sizes in the method's order).
template <class T, class Result, class... Args>
void def_operator(nb::module_& m, const std::string& name, Result (Operators<T>::*method)(Args...)) {
  m.def(
      name.c_str(),
      [method](int device, std::uintptr_t stream, FromPython<Args>... args) {
        return ((*operators_on<T>(device, to_native<void*>(stream))).*method)(to_native<Args>(args)...);
      },
      nb::call_guard<Released>());
}

template <class T>
void def_operators(nb::module_& m, const std::string& type) {
  def_operator(m, "conv_bn_relu_pool_forward_" + type, &Operators<T>::conv_bn_relu_pool_forward);
  def_operator(m, "conv_bn_relu_pool_backward_" + type, &Operators<T>::conv_bn_relu_pool_backward);
  def_operator(m, "conv_bn_relu_pool_scratch_" + type, &Operators<T>::conv_bn_relu_pool_scratch);
  def_operator(m, "linear_forward_" + type, &Operators<T>::linear_forward);
  def_operator(m, "linear_backward_" + type, &Operators<T>::linear_backward);
  def_operator(m, "linear_scratch_" + type, &Operators<T>::linear_scratch);
  def_operator(m, "log_softmax_nll_forward_" + type, &Operators<T>::log_softmax_nll_forward);
  def_operator(m, "log_softmax_nll_backward_" + type, &Operators<T>::log_softmax_nll_backward);
}

// What steps report, as arrays of losses and of right images.
nb::tuple results_tuple(std::span<const StepResult> results) {
  std::vector<double> losses(results.size());
  std::vector<std::int32_t> correct(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    losses[i] = results[i].loss;
    correct[i] = results[i].correct;
  }
  return nb::make_tuple(to_numpy(std::move(losses)), to_numpy(std::move(correct)));
}

// What there is: engines, GPUs, libraries.
void def_registry(nb::module_& m) {
  m.def("engines", [] { return list_of(engines(), [](const EngineRow& row) { return info_dict(row.info); }); });
  // Why an engine cannot run here in some precisions, by their names; only the rows that are asked for load what they
  // need.
  m.def(
      "unavailable",
      [](const std::string& name, int device) {
        std::map<std::string, std::string> reasons;
        for (const auto& row : engines())
          if (row.info.name == name)
            for (const auto precision : row.info.precisions)
              if (auto reason = row.unavailable(precision, device); !reason.empty())
                reasons[to_string(precision)] = std::move(reason);
        return reasons;
      },
      "name"_a, "device"_a, nb::call_guard<Released>());
  m.def(
      "share_for",
      [](const std::string& name, std::int64_t batch) {
        for (const auto& row : engines())
          if (row.info.name == name && row.share_for) return row.share_for(batch);
        return 0;
      },
      "name"_a, "batch"_a);
  m.def("warm_up", &cuda_warm_up, "device"_a, nb::call_guard<Released>());
  m.def("cuda_status", [] {
    const CudaStatus status = without_gil(cuda_status);
    nb::dict d;
    d["compiled"] = status.compiled;
    d["device_count"] = status.device_count;
    d["driver_version"] = status.driver_version;
    d["runtime_version"] = status.runtime_version;
    d["architectures"] = status.architectures;
    d["reason"] = status.reason;
    return d;
  });
  m.def("gpus", [] {
    return list_of(gpus(), [](const Gpu& gpu) {
      nb::dict d;
      d["name"] = gpu.name;
      d["compute_capability"] = gpu.compute_capability;
      d["memory_bytes"] = gpu.memory_bytes;
      d["multiprocessors"] = gpu.multiprocessors;
      return d;
    });
  });
#ifdef MNIST_WITH_CUDA
  m.def("set_library_path", &cuda::set_library_path, "library"_a, "path"_a);
  m.def("gpu_libraries", [] {
    return list_of(cuda::gpu_libraries(), [](const cuda::LibraryInfo& library) {
      return nb::make_tuple(library.name, library.version, library.path, library.reason);
    });
  });
#else
  m.def("set_library_path", [](const std::string&, const std::string&) {}, "library"_a, "path"_a);
  m.def("gpu_libraries", [] { return nb::list(); });
#endif
  m.def(
      "create_engine",
      [](const std::string& name, const std::string& precision, int threads, int device, bool check_every_step,
         int multiprocessors, int shared_bytes, int step_multiprocessors,
         const std::vector<std::tuple<std::string, std::string, int, unsigned>>& own_ops) {
        EngineOptions options{
            parse_precision(precision), threads, device, check_every_step, {multiprocessors, shared_bytes},
            step_multiprocessors};
        for (const auto& [op, library, number, left_out] : own_ops)
          options.own_ops.push_back({op, library, number, left_out});
        const Released released;
        return create_engine(name, options);
      },
      "name"_a, "precision"_a, "threads"_a, "device"_a, "check_every_step"_a = false, "multiprocessors"_a = 0,
      "shared_bytes"_a = 0, "step_multiprocessors"_a = 0,
      "own_ops"_a = std::vector<std::tuple<std::string, std::string, int, unsigned>>());
}

void def_ranks(nb::module_& m) {
  nb::class_<Communicator>(m, "Communicator")
      .def_prop_ro("rank", &Communicator::rank)
      .def_prop_ro("size", &Communicator::size)
      .def("all_gather",
           [](Communicator& ranks, nb::bytes mine) {
             const std::span bytes(static_cast<const std::byte*>(mine.data()), mine.size());
             std::vector<std::byte> all(ranks.size() * bytes.size());
             without_gil([&] { ranks.all_gather(bytes, all); });
             return nb::bytes(all.data(), all.size());
           })
      .def("leave", &Communicator::leave, "code"_a, "reason"_a, nb::call_guard<Released>())
      .def_prop_ro("departure", [](const Communicator& ranks) {
        const Departure departure = ranks.departure();
        return nb::make_tuple(departure.rank, departure.code, departure.reason);
      });
  m.def("images_of_rank", [](std::int64_t count, int rank, int size) {
    const Share share = images_of_rank(count, rank, size);
    return nb::make_tuple(share.first, share.last);
  });
  m.def("in_process_communicators", &in_process_communicators, "size"_a);
  m.def("socket_communicator", &socket_communicator, "rank"_a, "size"_a, "sockets"_a);
  m.def(
      "launched_communicator",
      [](int rank, int size, nb::callable gather) -> std::shared_ptr<Communicator> {
        return std::make_shared<Launched>(rank, size, std::move(gather));
      },
      "rank"_a, "size"_a, "gather"_a);
}

void def_benchmark(nb::module_& m) {
  m.def(
      "bench_ops",
      [](const std::string& op, const std::string& variant, std::int64_t batch, int device) {
        const OpReport report = without_gil([&] { return bench_ops(op, variant, batch, device); });
        const auto if_any = [](bool any, double value) { return any ? nb::object(nb::float_(value)) : nb::none(); };
        nb::dict report_dict;
        report_dict["roofs"] = roofs_dict(report.roofs);
        report_dict["rows"] = list_of(report.rows, [&](const OpTiming& row) {
          nb::dict d;
          d["op"] = row.op;
          d["shape"] = row.shape;
          d["variant"] = row.variant;
          d["why"] = row.why;
          d["library"] = row.library;
          d["unit"] = row.unit;
          d["absent"] = row.absent;
          d["bytes"] = row.bytes;
          d["flops"] = row.flops;
          d["bound"] = row.bound;
          const bool ran = row.absent.empty();
          d["cold_us"] = if_any(ran, 1e6 * row.cold_seconds);
          d["warm_us"] = if_any(ran, 1e6 * row.warm_seconds);
          d["error"] = if_any(ran, row.error);
          d["percent_of_roof"] = if_any(ran && row.percent_of_roof > 0, row.percent_of_roof);
          d["library_ratio"] = if_any(row.library_ratio > 0, row.library_ratio);
          d["kernels"] = kernels_list(row.kernels);
          return d;
        });
        return report_dict;
      },
      "op"_a, "variant"_a, "batch"_a, "device"_a);

  m.def(
      "measure_roofs", [](int device) { return roofs_dict(without_gil([&] { return measure_roofs(device); })); },
      "device"_a);
}

void def_gpu_memory(nb::module_& m) {
  m.def(
      "gpu_bytes",
      [](const GpuBytes& array) {
        return nb::make_tuple(reinterpret_cast<std::uintptr_t>(array.data()), array.size());
      },
      "capsule"_a.noconvert());
  m.def(
      "wait_for_stream",
      [](std::uintptr_t address, std::uintptr_t stream) {
#ifdef MNIST_WITH_CUDA
        cudaPointerAttributes array{};
        MNIST_CHECK(cudaPointerGetAttributes(&array, reinterpret_cast<void*>(address)));
        const cuda::DeviceGuard guard(array.device);  // a GPU has default streams of its own
        MNIST_CHECK(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(stream)));
#else
        (void)address, (void)stream;
        throw UnavailableError("the array is on a GPU: " + cuda_status().reason);
#endif
      },
      "address"_a, "stream"_a, nb::call_guard<Released>());
  m.def(
      "download",
      [](std::uintptr_t address, std::size_t count) {
        std::vector<std::uint8_t> values(count);
#ifdef MNIST_WITH_CUDA
        without_gil(
            [&] { MNIST_CHECK(cudaMemcpy(values.data(), bytes_at(address, count).data(), count, cudaMemcpyDefault)); });
#else
        (void)address;
        throw UnavailableError("the array is on a GPU: " + cuda_status().reason);
#endif
        return to_numpy(std::move(values));
      },
      "address"_a, "count"_a);
}

void def_engine(nb::module_& m) {
  nb::class_<Fleet>(m, "Fleet")
      .def("store", &Fleet::store, "model"_a, nb::call_guard<Released>())
      .def("load", &Fleet::load, "model"_a, nb::call_guard<Released>())
      .def("train", [](Fleet& f, Vector<std::int32_t> orders, Vector<double> learning_rates) {
        std::vector<StepResult> results(learning_rates.size());
        without_gil([&] { f.train(view(orders), view(learning_rates), results); });
        return results_tuple(results);
      });

  nb::class_<Engine>(m, "Engine")
      .def_prop_ro("info", [](const Engine& e) { return info_dict(e.info()); })
      .def("algorithms", &Engine::algorithms)
      .def("arithmetic", &Engine::arithmetic)
      .def("batch_thresholds", &Engine::batch_thresholds)
      .def("evaluation_chunk", &Engine::evaluation_chunk)
      .def_prop_ro("dataset_size", &Engine::dataset_size)
      .def_prop_ro("has_statistics", &Engine::has_statistics)
      .def("join", &Engine::join, "ranks"_a, "transport"_a = "", nb::call_guard<Released>())
      .def_prop_ro("transport", &Engine::transport)
      .def("set_parameters", [](Engine& e, Vector<double> values) { e.set_parameters(view(values)); })
      .def("set_parameters", [](Engine& e, Vector<float> values) { e.set_parameters(view(values)); })
      .def("get_parameters", [](const Engine& e) { return parameters_of<double>(e); })
      .def("get_float_parameters", [](const Engine& e) { return parameters_of<float>(e); })
      .def("initialize_parameters",
           [](Engine& e, std::uint64_t state_high, std::uint64_t state_low, std::uint64_t increment_high,
              std::uint64_t increment_low) {
             using Word = Pcg64::Word;
             const Released released;
             e.initialize_parameters({Word(state_high) << 64 | state_low, Word(increment_high) << 64 | increment_low});
           })
      .def("set_statistics", [](Engine& e, Vector<double> values) { e.set_statistics(view(values)); })
      .def("get_statistics",
           [](const Engine& e) {
             std::vector<double> values(kStatisticCount);
             e.get_statistics(values);
             return to_numpy(std::move(values));
           })
      .def("compute_statistics", &Engine::compute_statistics, nb::call_guard<Released>())
      .def("set_dataset",
           [](Engine& e, Vector<std::uint8_t> images, Vector<std::uint8_t> labels, bool on_device) {
             const Released released;
             e.set_dataset(view(images), view(labels), on_device ? Placement::kDevice : Placement::kHost);
           })
      .def("set_evaluation_set",
           [](Engine& e, Vector<std::uint8_t> images, Vector<std::uint8_t> labels) {
             const Released released;
             e.set_evaluation_set(view(images), view(labels));
           })
      .def_prop_ro("evaluation_size", &Engine::evaluation_size)
      .def("evaluate",
           [](Engine& e) {
             const Score score = without_gil([&] { return e.evaluate(); });
             return nb::make_tuple(std::vector<std::int64_t>(std::begin(score.correct), std::end(score.correct)),
                                   score.loss);
           })
      .def("require_steps",
           [](const Engine& e, Vector<std::int32_t> order, std::int64_t batch, Vector<double> learning_rates) {
             return e.require_steps(view(order), batch, view(learning_rates));
           })
      .def_prop_ro("resumable", &Engine::resumable, nb::call_guard<Released>())
      .def("train",
           [](Engine& e, Vector<std::int32_t> order, std::int64_t batch, Vector<double> learning_rates) {
             std::vector<StepResult> results(batch > 0 ? Engine::step_count(order.size(), batch) : 0);
             without_gil([&] { e.train(view(order), batch, view(learning_rates), results); });
             return results_tuple(results);
           })
      .def("fleet", &Engine::fleet, "models"_a, "batch"_a, "multiprocessors"_a, nb::keep_alive<0, 1>())
      .def("logits",
           [](Engine& e, Vector<std::uint8_t> images, bool population) {
             const auto mode = population ? BatchNormMode::kPopulation : BatchNormMode::kBatch;
             std::vector<double> scores(images.size() / kImagePixels * kClasses);
             without_gil([&] { e.logits(view(images), mode, scores); });
             return to_numpy(std::move(scores));
           })
#ifdef MNIST_WITH_CUDA
      .def("set_gpu_dataset",
           [](Engine& e, std::uintptr_t images, std::size_t pixels, Vector<std::uint8_t> labels) {
             const Released released;
             e.set_dataset(bytes_at(images, pixels), view(labels), Placement::kDevice);
           })
      .def("gpu_logits",
           [](Engine& e, std::uintptr_t images, std::size_t pixels, bool population) {
             const auto mode = population ? BatchNormMode::kPopulation : BatchNormMode::kBatch;
             const std::int64_t count = std::int64_t(pixels) / kImagePixels;
             const Parameter table[] = {{"logits", {count, kClasses}, 2, 0, count * kClasses}};
             return gpu_arrays_of(e, count * kClasses, table,
                                  [&](void* scores) { e.device_logits(bytes_at(images, pixels), mode, scores); });
           })
      .def("gpu_parameters",
           [](const Engine& e) {
             return gpu_arrays_of(e, kParameterCount, kParameters,
                                  [&](void* values) { e.get_device_parameters(values); });
           })
#endif
      .def("profile",
           [](Engine& e, std::int64_t batch, std::int64_t steps) {
             const auto ops = without_gil([&] { return e.profile(batch, steps); });
             return list_of(ops, [](const OpTime& op) {
               nb::dict d;
               d["phase"] = op.phase;
               d["op"] = op.op;
               d["unit"] = op.unit;
               d["bytes"] = op.bytes;
               d["flops"] = op.flops;
               d["us"] = 1e6 * op.seconds;
               d["spans"] = list_of(
                   op.spans, [](const Span& span) { return nb::make_tuple(1e6 * span.start, 1e6 * span.seconds); });
               d["kernels"] = kernels_list(op.kernels);
               return d;
             });
           })
      .def(
          "probe",
          [](Engine& e, Vector<std::uint8_t> images, Vector<std::uint8_t> labels, double upstream, nb::object routing) {
            Routing forced;
            ProbeOptions options{.upstream = upstream};
            if (!routing.is_none()) {
              const auto fill = [&](std::vector<std::uint8_t>& to, int field) {
                const auto from = nb::cast<Vector<std::uint8_t>>(routing[field]);
                to.assign(from.data(), from.data() + from.size());
              };
              fill(forced.pool1, 0);
              fill(forced.pool2, 1);
              fill(forced.relu3, 2);
              options.routing = &forced;
            }
            Probe probe = without_gil([&] { return e.probe(view(images), view(labels), options); });
            nb::dict d;
            d["loss"] = probe.loss;
            d["correct"] = probe.correct;
            d["gradients"] = to_numpy(std::move(probe.gradients));
            d["a1"] = to_numpy(std::move(probe.a1));
            d["a2"] = to_numpy(std::move(probe.a2));
            d["h"] = to_numpy(std::move(probe.h));
            d["logits"] = to_numpy(std::move(probe.logits));
            d["routing"] =
                nb::make_tuple(to_numpy(std::move(probe.routing.pool1)), to_numpy(std::move(probe.routing.pool2)),
                               to_numpy(std::move(probe.routing.relu3)));
            return d;
          },
          "images"_a, "labels"_a, "upstream"_a, "routing"_a.none());
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);
  nb::exception<UnavailableError>(m, "UnavailableError");
  nb::exception<OutOfMemoryError>(m, "OutOfMemoryError");
  nb::exception<RankLostError>(m, "RankLostError");

  m.def("parameters", [] { return table_list(kParameters); });
  m.def("statistics", [] { return table_list(kStatistics); });
  m.attr("PIXEL_MEAN") = kPixelMean;
  m.attr("PIXEL_STD") = kPixelStd;
  m.attr("POOL1_SIZE") = kPool1Size;
  m.attr("POOL2_SIZE") = kPool2Size;
  m.attr("HIDDEN") = kHidden;
  m.attr("CLASSES") = kClasses;
  m.attr("ROUTE_DEAD") = int(Routing::kDead);
  m.attr("BUILD") = MNIST_BUILD_TEXT;
  m.def("ending", &interpreter::ending);
  m.def("closed", [] { return interpreter::door.closed.load(); });
  m.def("close", &interpreter::close, "patience"_a);
  interpreter::forget_threads_after_fork();
  nb::module_::import_("atexit").attr("register")(m.attr("close"), kPatience);
  m.def("host_instructions", [] { return std::string(cpu::supported_kernels().front()->isa); });

  def_registry(m);
  def_ranks(m);
  def_benchmark(m);
  def_gpu_memory(m);
  def_operators<float>(m, "float32");
  def_operators<double>(m, "float64");
  def_engine(m);
}
