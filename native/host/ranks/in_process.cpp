// Ranks that are threads: each shows the others where its bytes are, and waits until all have read them.
#include <algorithm>
#include <condition_variable>
#include <utility>

#include "mnist/communicator.h"

namespace mnist {
namespace {

// What the ranks of one process share.
struct Meeting {
  explicit Meeting(int size) : bytes(size) {}

  std::mutex mutex;
  std::condition_variable changed;
  int waiting = 0;
  std::int64_t round = 0;  // how often all have met
  Departure departure;
  std::vector<std::span<const std::byte>> bytes;  // of each rank
};

class InProcess final : public Communicator {
 public:
  InProcess(int rank, int size, std::shared_ptr<Meeting> meeting)
      : Communicator(rank, size), meeting_(std::move(meeting)) {}

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    meeting_->bytes[rank()] = mine;
    meet(true);
    bool same = true;
    for (int rank = 0; rank < size(); ++rank) {
      const auto theirs = meeting_->bytes[rank];
      same &= theirs.size() == mine.size();
      if (same) std::ranges::copy(theirs, all.begin() + rank * mine.size());
    }
    meet(false);  // even if a rank has left: others may still read what is ours, and all of them come
    if (!same) lost({rank(), 0, "the ranks are not at the same step"});
  }

  void leave(int code, const std::string& reason) override {
    const std::lock_guard lock(meeting_->mutex);
    if (meeting_->departure.rank < 0) meeting_->departure = {rank(), code, reason};
    meeting_->changed.notify_all();
  }

 private:
  // Returns when all ranks are here; with `may_end` it throws if one has left.
  void meet(bool may_end) {
    std::unique_lock lock(meeting_->mutex);
    const auto round = meeting_->round;
    const auto ended = [&] { return may_end && meeting_->departure.rank >= 0; };
    if (!ended() && ++meeting_->waiting == size()) {
      meeting_->waiting = 0;
      ++meeting_->round;
      meeting_->changed.notify_all();
    }
    meeting_->changed.wait(lock, [&] { return meeting_->round != round || ended(); });
    if (meeting_->round != round) return;
    const Departure departure = meeting_->departure;
    lock.unlock();
    lost(departure);
  }

  std::shared_ptr<Meeting> meeting_;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> in_process_communicators(int size) {
  const auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::shared_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_shared<InProcess>(rank, size, meeting));
  return ranks;
}

}  // namespace mnist
