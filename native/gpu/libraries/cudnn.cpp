// Loading cuDNN, and the few objects that need nothing but a create call.
#include "libraries/cudnn.h"

#include <stdexcept>

#include "libraries/cuda_libs.h"
#include "mnist/errors.h"

namespace mnist::cudnn {
namespace {

Api load() {
  const auto library = cuda::open_library("cudnn", {"libcudnn.so.9"}, "nvidia-cudnn-cu12");
  Api api;
  api.path = library.path();
  library.bind(api.GetVersion, "cudnnGetVersion");
  const std::size_t version = api.GetVersion();
  if (version / 10000 != 9)
    throw UnavailableError(api.path + " is cuDNN " + std::to_string(version) +
                           ", expected version 9; install it with `pip install nvidia-cudnn-cu12`");
#define MNIST_ROW(name, result, parameters) library.bind(api.name, "cudnn" #name);
  MNIST_CUDNN_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
  return api;
}

}  // namespace

const Api& api() {
  static const Api instance = load();  // a throw leaves it unset: the next call tries again
  return instance;
}

void throw_error(int status, const char* expression, const char* file, int line) {
  throw std::runtime_error(std::string("cuDNN: ") + api().GetErrorString(status) + " from " + expression + " at " +
                           file + ":" + std::to_string(line));
}

Owner<RawContext> create_context(cudaStream_t stream) {
  Owner<RawContext> context;
  MNIST_CUDNN(Create(context.put()));
  MNIST_CUDNN(SetStream(context.get(), stream));
  return context;
}

Owner<RawTensor> tensor4d(int type, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w, int format) {
  Owner<RawTensor> tensor;
  MNIST_CUDNN(CreateTensorDescriptor(tensor.put()));
  MNIST_CUDNN(SetTensor4dDescriptor(tensor.get(), format, type, int(n), int(c), int(h), int(w)));
  return tensor;
}

}  // namespace mnist::cudnn
