// The other ranks of a training on GPUs: what a step adds up over them, and how their parts come to each other.
#pragma once

#include "cuda/buffer.h"
#include "kernels/fused/ranks/exchange.h"
#include "libraries/nccl.h"

namespace mnist::fused {

// A batch as a rank sees it, or an engine by itself, to which both numbers are the same.
struct Batch {
  std::int64_t images;  // that a step computes here
  std::int64_t whole;   // of all ranks
  bool counts = true;   // false: this rank has no image of it, and computes one that is not added to the others'
  // In device memory the indices of all images of the first batch, where order has those of this rank only.
  const std::int32_t* first = nullptr;
};

// All ranks make theirs together, each with its GPU selected, and make the same exchanges. These queue work; where
// parts do not come by the GPUs themselves they also wait.
class Ranks {
 public:
  // How parts come to the others. Peers: kernels write them to the other GPUs' memory. Nccl: it gathers them between
  // two kernels. Host: they go through host memory and `all`; ranks that are threads of one process have no other way,
  // as what one of them asks of CUDA may wait for kernels that wait for another one.
  enum class Transport { kPeers, kNccl, kHost };

  // transport: "peers", "nccl" or "host"; empty takes the first of these that all ranks have. Throws UnavailableError
  // where the one that is asked for is not to be had.
  Ranks(std::shared_ptr<Communicator> all, Precision precision, int device, const std::string& transport,
        cudaStream_t stream);
  ~Ranks() {
    for (void* memory : opened_) (void)cudaIpcCloseMemHandle(memory);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return all_->rank(); }
  int size() const { return all_->size(); }
  const std::string& description() const { return description_; }  // of the transport, with why it is none before it
  bool in_graphs() const { return transport_ != Transport::kHost; }

  // What this rank has of a batch; `first` is left to the caller.
  Batch rank_batch(std::int64_t whole) const;
  // What every share of a batch is cut up for, so that all ranks run the same kernels.
  std::int64_t largest_share(std::int64_t whole) const { return (whole + size() - 1) / size(); }

  // A phase's state becomes that of the next one, with sums of all ranks. Between head and exchange_dy2() comes
  // fc1_backward, on keeping_fc1().
  void exchange_z2(State& s, const Batch& batch);
  State keeping_fc1(State s) const {
    s.gradients = gradients_.data();
    s.learning_rate = &totals_.data()->zero;
    return s;
  }
  void exchange_dy2(State& s, const Batch& batch);
  void exchange_gradients(State& s, const Batch& batch);

 private:
  struct Card;
  std::string why_no_peers(std::span<const Card> cards);
  std::string open_peers(std::span<const Card> cards);
  bool all_agree(const std::string& why);
  void choose(int device, const std::string& asked);

  template <class Launch>
  void exchange(int which, const Batch& batch, State s, Launch launch);
  void bring(void* to, const void* from, std::int64_t bytes);

  std::shared_ptr<Communicator> all_;
  Precision precision_;
  cudaStream_t stream_;
  Transport transport_ = Transport::kHost;
  std::string description_;
  cuda::DeviceBuffer<std::uint8_t> box_;  // what the others write to: rounds, and all ranks' parts of each exchange
  std::uint8_t* boxes_[kMostPeers] = {};  // of all ranks
  std::vector<void*> opened_;             // those of other processes
  cuda::DeviceBuffer<GradientSums> own_;  // where a part is left for NCCL or the host to bring
  cuda::DeviceBuffer<Totals> totals_;
  cuda::DeviceBuffer<float> gradients_;
  std::unique_ptr<nccl::Communicator> nccl_;
  cuda::PinnedBuffer<std::byte> sent_, received_;
};

}  // namespace mnist::fused
