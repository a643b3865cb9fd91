// The ranks that train one model together: which images of a batch each gets, and what they send to each other.
//
// Every rank holds the whole model and the whole data set. Of a batch it computes its share; sums over the batch are
// sums over the ranks, added in their order, so that all ranks go on with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace mnist {

// The part [first, last) of `count` images that a rank gets. The parts follow each other in the order of the ranks and
// differ by one image at most; with fewer images than ranks some are empty.
struct Share {
  std::int64_t first, last;
};
constexpr Share images_of_rank(std::int64_t count, int rank, int size) {
  return {count * rank / size, count * (rank + 1) / size};
}

// Another rank ended. Exit code 7, or the one that it ended with.
struct RankLostError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Which rank ended, with what exit code and why; no reason where it said nothing.
struct Departure {
  int rank = -1;  // none did
  int code = 0;
  std::string reason;
};

// One rank's end. Each call but `leave` is made by all ranks, in the same order and with the same sizes; it returns
// when it is done on this one, and throws RankLostError where another rank has left or is gone.
class Communicator {
 public:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // The bytes of all ranks, in their order, to all of them: all.size() = size() * mine.size().
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  // ((rank 0 + rank 1) + rank 2) + ... of each value, in its own type. By default all gather all values and add them.
  virtual void sum(std::span<float> values);
  virtual void sum(std::span<double> values);

  // Tells the others that this rank ends; from any thread. Does not wait and never fails.
  virtual void leave(int code, const std::string& reason) = 0;
  // Who ended, after a RankLostError.
  Departure departure() const;

 protected:
  [[noreturn]] void lost(Departure departure);

 private:
  const int rank_, size_;
  std::vector<std::byte> room_;
  mutable std::mutex mutex_;
  Departure departure_;  // the first one
};

// Engines in one process, each called by a thread of its own.
std::vector<std::shared_ptr<Communicator>> in_process_communicators(int size);

// Processes of one machine that are connected by socket pairs in blocking mode: rank 0 gives those to rank 1, 2, ...,
// any other rank the one to rank 0. The communicator owns them. Rank 0 gathers, adds and answers.
std::shared_ptr<Communicator> socket_communicator(int rank, int size, std::vector<int> sockets);

}  // namespace mnist
