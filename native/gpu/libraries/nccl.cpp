// Loading NCCL, and communicators.
#include "libraries/nccl.h"

#include <cstdlib>
#include <stdexcept>

#include "libraries/cuda_libs.h"

namespace mnist::nccl {
namespace {

Api load() {
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  const auto library = cuda::open_library("nccl", {"libnccl.so.2"}, "nvidia-nccl-cu12");
  Api api;
#define MNIST_ROW(name, result, parameters) library.bind(api.name, "nccl" #name);
  MNIST_NCCL_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
  int version = 0;
  (void)api.GetVersion(&version);
  api.version =
      std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
  return api;
}

void check(int status, const char* call) {
  if (status != kSuccess)
    throw std::runtime_error(std::string("NCCL: ") + api().GetErrorString(status) + " from nccl" + call);
}

}  // namespace

const Api& api() {
  static const Api instance = load();  // a throw leaves it unset: the next call tries again
  return instance;
}

UniqueId unique_id() {
  UniqueId id{};
  check(api().GetUniqueId(&id), "GetUniqueId");
  return id;
}

Communicator::Communicator(int rank, int size, const UniqueId& id) {
  check(api().CommInitRank(&handle_, size, id, rank), "CommInitRank");
}

Communicator::~Communicator() { (void)api().CommAbort(handle_); }

void Communicator::all_gather(void* to, const void* from, std::size_t bytes, cudaStream_t stream) const {
  check(api().AllGather(from, to, bytes, kBytes, handle_, stream), "AllGather");
}

}  // namespace mnist::nccl
