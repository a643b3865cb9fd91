// What communicators share: sums by way of all_gather, and which rank left.
#include "mnist/communicator.h"

#include <algorithm>
#include <utility>

#include "ranks/add.h"

namespace mnist {
namespace {

template <class T>
void sum_gathered(Communicator& ranks, std::span<T> values, std::vector<std::byte>& room) {
  room.resize(std::max(room.size(), ranks.size() * values.size_bytes()));
  ranks.all_gather(std::as_bytes(values), std::span(room).first(ranks.size() * values.size_bytes()));
  for (int rank = 0; rank < ranks.size(); ++rank)
    ranks::add(values, reinterpret_cast<const T*>(room.data() + rank * values.size_bytes()), rank == 0);
}

}  // namespace

void Communicator::sum(std::span<float> values) { sum_gathered(*this, values, room_); }
void Communicator::sum(std::span<double> values) { sum_gathered(*this, values, room_); }

Departure Communicator::departure() const {
  const std::lock_guard lock(mutex_);
  return departure_;
}

void Communicator::lost(Departure departure) {
  const std::string who = "rank " + std::to_string(departure.rank);
  const std::string sentence = departure.reason.empty() ? who + " is gone" : who + ": " + departure.reason;
  {
    const std::lock_guard lock(mutex_);
    if (departure_.rank < 0) departure_ = std::move(departure);
  }
  throw RankLostError(sentence);
}

}  // namespace mnist
