// What `fused` calls only for several models or several GPUs, neither of which the emulator has; and its kernels in
// fp32, for which g++ takes many minutes.
#include "engines/fused/ranks.h"
#include "kernels/fused/kernels.h"

namespace mnist {
namespace fused {

template <Precision kPrecision>
struct KernelTable<kPrecision, Pack> {
  static std::vector<KernelRow> rows();
};
template <Precision kPrecision>
std::vector<KernelRow> KernelTable<kPrecision, Pack>::rows() {
  return {};
}
template <>
std::vector<KernelRow> KernelTable<Precision::kFp32, State>::rows() {
  return {};
}
template struct KernelTable<Precision::kFp32, Pack>;
template struct KernelTable<Precision::kTf32, Pack>;
template struct KernelTable<Precision::kBf16, Pack>;

void Ranks::exchange_z2(State&, const Batch&) { std::abort(); }
void Ranks::exchange_dy2(State&, const Batch&) { std::abort(); }
void Ranks::exchange_gradients(State&, const Batch&) { std::abort(); }

}  // namespace fused

nccl::Communicator::~Communicator() = default;

}  // namespace mnist
