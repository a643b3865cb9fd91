// How ranks on GPUs find a way to each other, and the exchanges of a step.
#include "engines/fused/ranks.h"

#include <unistd.h>

#include <cstring>
#include <fstream>

namespace mnist::fused {
namespace {

constexpr int kExchanges = 3;
constexpr std::int64_t kRoundsBytes = kMostExchangeBlocks * kMostPeers * sizeof(std::uint32_t);  // of an exchange
constexpr std::array<std::int64_t, kExchanges> kPartBytes = {sizeof(Z2Sums), sizeof(Dy2Sums), sizeof(GradientSums)};

// Where the parts of an exchange begin in a rank's box; of the one behind the last, its size.
std::int64_t place_of(int exchange, int ranks) {
  std::int64_t place = kExchanges * kRoundsBytes;
  for (int k = 0; k < exchange; ++k) place += (ranks * kPartBytes[k] + 255) / 256 * 256;
  return place;
}

// The same for all processes that could open each other's memory.
std::string machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char host[64] = {};
  (void)::gethostname(host, sizeof host - 1);
  return boot + host;
}

}  // namespace

// What a rank shows the others.
struct Ranks::Card {
  char machine[128], bus[32];  // of its GPU, which has other ordinals in other processes
  std::int64_t process;
  cudaIpcMemHandle_t memory;  // its box

  bool same_machine(const Card& other) const { return std::strcmp(machine, other.machine) == 0; }
  // Why it and another one cannot wait for each other in kernels; empty if they can.
  std::string why_not_with(const Card& other) const {
    if (!same_machine(other)) return "";
    if (process == other.process) return "is a thread of the same process";
    if (std::strcmp(bus, other.bus) == 0) return "has the same GPU";
    return "";
  }
};

Ranks::Ranks(std::shared_ptr<Communicator> all, Precision precision, int device, const std::string& transport,
             cudaStream_t stream)
    : all_(std::move(all)), precision_(precision), stream_(stream), totals_(1), gradients_(kParameterCount) {
  MNIST_REQUIRE(transport.empty() || transport == "peers" || transport == "nccl" || transport == "host",
                "join: transport is '" << transport << "', expected peers, nccl or host");
  constexpr std::int64_t kWholePages = 2 << 20;  // what other processes open holds nothing else
  box_.reserve((place_of(kExchanges, size()) + kWholePages - 1) / kWholePages * kWholePages);
  cuda::fill_bytes(box_.data(), 0, box_.size(), stream);
  cuda::fill_bytes(totals_.data(), 0, 1, stream);
  cuda::fill_bytes(gradients_.data(), 0, kParameterCount, stream);
  begin_exchanges();
  MNIST_CHECK(cudaStreamSynchronize(stream));
  choose(device, transport);
  if (transport_ != Transport::kPeers) own_.reserve(1);
  if (transport_ == Transport::kHost) {
    sent_.reserve(sizeof(GradientSums));
    received_.reserve(size() * std::int64_t(sizeof(GradientSums)));
  }
}

// Whether it is empty on all ranks.
bool Ranks::all_agree(const std::string& why) {
  const std::byte mine{why.empty()};
  std::vector<std::byte> answers(size());
  all_->all_gather({&mine, 1}, answers);
  return std::ranges::all_of(answers, [](std::byte yes) { return yes == std::byte{1}; });
}

void Ranks::choose(int device, const std::string& asked) {
  Card card{.process = ::getpid()};
  std::strncpy(card.machine, machine().c_str(), sizeof card.machine - 1);
  MNIST_CHECK(cudaDeviceGetPCIBusId(card.bus, sizeof card.bus, device));
  if (cudaIpcGetMemHandle(&card.memory, box_.data()) != cudaSuccess) (void)cudaGetLastError();
  std::vector<Card> cards(size());
  all_->all_gather(std::as_bytes(std::span(&card, 1)), std::as_writable_bytes(std::span(cards)));

  std::string reasons;
  const auto settle = [&](const char* name, auto attempt) {
    if (!asked.empty() && asked != name) return false;
    std::string why = attempt();
    if (all_agree(why)) return true;
    if (why.empty()) why = "another rank cannot";
    if (!asked.empty()) throw UnavailableError("ranks cannot reach each other by " + asked + ": " + why);
    reasons += std::string(reasons.empty() ? "" : "; ") + "not by " + name + ": " + why;
    return false;
  };
  if (settle("peers", [&] {
        const std::string why = why_no_peers(cards);
        return all_agree(why) ? open_peers(cards) : why.empty() ? "another rank cannot" : why;
      })) {
    transport_ = Transport::kPeers;
    description_ = "writes to each other's memory";
    return;
  }
  if (settle("nccl", [&]() -> std::string {
        for (int a = 0; a < size(); ++a)
          for (int b = 0; b < a; ++b)
            if (const std::string why = cards[a].why_not_with(cards[b]); !why.empty())
              return "rank " + std::to_string(a) + " " + why + " as rank " + std::to_string(b);
        try {
          (void)nccl::api();
        } catch (const UnavailableError& error) {
          return error.what();
        }
        return "";
      })) {
    transport_ = Transport::kNccl;
    nccl::UniqueId id{};
    if (rank() == 0) id = nccl::unique_id();
    std::vector<nccl::UniqueId> ids(size());
    all_->all_gather(std::as_bytes(std::span(&id, 1)), std::as_writable_bytes(std::span(ids)));
    nccl_ = std::make_unique<nccl::Communicator>(rank(), size(), ids[0]);
    description_ = "NCCL " + nccl::api().version;
  } else {
    description_ = "host memory, which is slow";
  }
  if (!reasons.empty()) description_ += " (" + reasons + ")";
}

// Why this rank cannot write to the memory of all others; empty if it can.
std::string Ranks::why_no_peers(std::span<const Card> cards) {
  if (size() > kMostPeers) return std::to_string(size()) + " ranks, expected at most " + std::to_string(kMostPeers);
  int own = 0;
  MNIST_CHECK(cudaGetDevice(&own));
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    const std::string name = "rank " + std::to_string(other);
    if (!cards[other].same_machine(cards[rank()])) return name + " is on another machine";
    if (const std::string why = cards[other].why_not_with(cards[rank()]); !why.empty()) return name + " " + why;
    int device = 0, can = 0;
    if (cudaDeviceGetByPCIBusId(&device, cards[other].bus) != cudaSuccess) {
      (void)cudaGetLastError();
      return "the GPU of " + name + " is not visible here";
    }
    MNIST_CHECK(cudaDeviceCanAccessPeer(&can, own, device));
    if (!can) return "GPU " + std::to_string(own) + " cannot access GPU " + std::to_string(device);
  }
  return "";
}

// Sets boxes_; what went wrong if it did.
std::string Ranks::open_peers(std::span<const Card> cards) {
  for (int other = 0; other < size(); ++other) {
    const Card& card = cards[other];
    if (other == rank()) {
      boxes_[other] = box_.data();
      continue;
    }
    void* memory = nullptr;
    const cudaError_t error = cudaIpcOpenMemHandle(&memory, card.memory, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return "memory of rank " + std::to_string(other) + " cannot be opened: " + cudaGetErrorString(error);
    }
    opened_.push_back(memory);
    boxes_[other] = static_cast<std::uint8_t*>(memory);
  }
  return "";
}

Batch Ranks::rank_batch(std::int64_t whole) const {
  const Share share = images_of_rank(whole, rank(), size());
  return {std::max<std::int64_t>(share.last - share.first, 1), whole, share.last > share.first};
}

void Ranks::bring(void* to, const void* from, std::int64_t bytes) {
  if (transport_ == Transport::kNccl) return nccl_->all_gather(to, from, std::size_t(bytes), stream_);
  const auto sent = std::span(sent_.data(), std::size_t(bytes)),
             received = std::span(received_.data(), std::size_t(size() * bytes));
  cuda::download(sent, static_cast<const std::byte*>(from), stream_);
  all_->all_gather(sent, received);
  cuda::upload(static_cast<std::byte*>(to), received, stream_);
}

// launch(s, parts): a launch of the exchange, after which all ranks' parts are added up.
template <class Launch>
void Ranks::exchange(int which, const Batch& batch, State s, Launch launch) {
  const std::int64_t bytes = kPartBytes[which], place = place_of(which, size());
  RankSums parts{.rank = rank(), .size = size(), .counts = batch.counts, .all = box_.data() + place};
  if (transport_ == Transport::kPeers) {
    parts.targets = size();
    for (int other = 0; other < size(); ++other) {
      parts.to[other] = boxes_[other] + place + rank() * bytes;
      parts.rounds[other] = reinterpret_cast<std::uint32_t*>(boxes_[other] + which * kRoundsBytes);
    }
    return launch(s, parts);
  }
  parts.targets = 1;
  parts.to[0] = own_.data();
  parts.takes = false;
  launch(s, parts);
  bring(box_.data() + place, own_.data(), bytes);
  parts.gives = false;
  parts.takes = true;
  s.overlap = false;
  launch(s, parts);
}

void Ranks::exchange_z2(State& s, const Batch& batch) {
  exchange(0, batch, s,
           [&](const State& from, const RankSums& parts) { fused::exchange_z2(totals_.data(), from, parts, stream_); });
  s.z2_sums = totals_.data()->z2_sums;
  s.conv_forward_blocks = Totals::kZ2Rows;
}

void Ranks::exchange_dy2(State& s, const Batch& batch) {
  exchange(1, batch, s, [&](const State& from, const RankSums& parts) {
    fused::exchange_dy2(totals_.data(), from, parts, stream_);
  });
  s.dy2_sums = totals_.data()->dy2_sums;
  s.moment_sums = totals_.data()->moment_sums;
  s.head_sums = totals_.data()->head_sums;
  s.head_blocks = 1;
}

void Ranks::exchange_gradients(State& s, const Batch& batch) {
  State with_gradients = s;
  with_gradients.gradients = gradients_.data();
  exchange(2, batch, with_gradients, [&](const State& from, const RankSums& parts) {
    fused::exchange_gradients(precision_, totals_.data(), from, parts, stream_);
  });
  s.conv2_sums = totals_.data()->conv2_sums;
  s.routed_tap_sums = totals_.data()->routed_tap_sums;
  s.conv2_backward_blocks = 1;
  s.batch = int(batch.whole);
}

}  // namespace mnist::fused
