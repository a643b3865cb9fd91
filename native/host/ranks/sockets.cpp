// Ranks that are processes of one machine: a star of socket pairs around rank 0.
//
// Everything is a frame, a header and its bytes. For a collective call each rank sends rank 0 a frame and gets one
// back. Rank 0 reads the ranks in their order and adds as it reads: that makes the sums those of in_process.cpp, bit by
// bit.
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "mnist/communicator.h"
#include "mnist/errors.h"
#include "ranks/add.h"

namespace mnist {
namespace {

enum class Kind : std::uint32_t { kGather, kSum, kLeave };

struct Header {
  Kind kind;
  std::int32_t code;  // exit code, of kLeave
  std::uint64_t bytes;
};

constexpr std::size_t kLongestReason = 1000;  // bytes

class Sockets final : public Communicator {
 public:
  Sockets(int rank, int size, std::vector<int> sockets) : Communicator(rank, size), sockets_(std::move(sockets)) {}

  ~Sockets() override {
    for (const int socket : sockets_) ::close(socket);
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (rank() > 0) {
      send(0, Kind::kGather, mine);
      receive(0, Kind::kGather, all);
      return;
    }
    std::ranges::copy(mine, all.begin());
    for (int from = 1; from < size(); ++from)
      receive(from, Kind::kGather, all.subspan(from * mine.size(), mine.size()));
    for (int to = 1; to < size(); ++to) send(to, Kind::kGather, all);
  }

  void sum(std::span<float> values) override { sum_at_rank_0(values); }
  void sum(std::span<double> values) override { sum_at_rank_0(values); }

  void leave(int code, const std::string& reason) override {
    const std::lock_guard lock(sending_);
    left_ = true;
    const auto bytes = std::as_bytes(std::span(reason)).first(std::min(reason.size(), kLongestReason));
    const Header header{Kind::kLeave, code, bytes.size()};
    std::vector<std::byte> frame(sizeof header + bytes.size());
    std::ranges::copy(std::as_bytes(std::span(&header, 1)), frame.begin());
    std::ranges::copy(bytes, frame.begin() + sizeof header);
    for (const int socket : sockets_) (void)::send(socket, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  int socket_of(int rank) const { return sockets_[this->rank() > 0 ? 0 : rank - 1]; }

  template <class T>
  void sum_at_rank_0(std::span<T> values) {
    const auto bytes = std::as_writable_bytes(values);
    if (rank() > 0) {
      send(0, Kind::kSum, bytes);
      receive(0, Kind::kSum, bytes);
      return;
    }
    room_.resize(std::max(room_.size(), bytes.size()));
    for (int from = 1; from < size(); ++from) {
      receive(from, Kind::kSum, std::span(room_).first(bytes.size()));
      ranks::add(values, reinterpret_cast<const T*>(room_.data()), false);
    }
    for (int to = 1; to < size(); ++to) send(to, Kind::kSum, bytes);
  }

  void send(int to, Kind kind, std::span<const std::byte> bytes) {
    const std::lock_guard lock(sending_);
    if (left_) lost({rank(), 0, "has left"});
    Header header{kind, 0, bytes.size()};
    iovec parts[] = {{&header, sizeof header}, {const_cast<std::byte*>(bytes.data()), bytes.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    while (message.msg_iovlen > 0) {
      auto sent = ::sendmsg(socket_of(to), &message, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) gone(to);
      for (; message.msg_iovlen > 0 && std::size_t(sent) >= message.msg_iov->iov_len; --message.msg_iovlen)
        sent -= std::exchange(message.msg_iov, message.msg_iov + 1)->iov_len;
      if (message.msg_iovlen > 0) {
        message.msg_iov->iov_base = static_cast<std::byte*>(message.msg_iov->iov_base) + sent;
        message.msg_iov->iov_len -= std::size_t(sent);
      }
    }
  }

  // False where the other end is closed.
  bool read(int from, std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const auto got = ::recv(socket_of(from), bytes.data(), bytes.size(), MSG_WAITALL);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      bytes = bytes.subspan(std::size_t(got));
    }
    return true;
  }

  // Never returns where a frame of another kind or length comes.
  void receive(int from, Kind kind, std::span<std::byte> bytes) {
    Header header;
    if (!read(from, std::as_writable_bytes(std::span(&header, 1)))) lost({from, 0, ""});
    if (header.kind == Kind::kLeave) said_goodbye(from, header);
    if (header.kind != kind || header.bytes != bytes.size())
      lost({from, 0, "not at the same step as rank " + std::to_string(rank())});
    if (!read(from, bytes)) lost({from, 0, ""});
  }

  [[noreturn]] void said_goodbye(int from, const Header& header) {
    std::string reason(std::min<std::size_t>(header.bytes, kLongestReason), ' ');
    if (!read(from, std::as_writable_bytes(std::span(reason)))) reason.clear();
    lost({from, header.code, reason});
  }

  // After a rank no longer reads: what it said last, if it said anything.
  [[noreturn]] void gone(int rank) {
    Header header;
    if (read(rank, std::as_writable_bytes(std::span(&header, 1))) && header.kind == Kind::kLeave)
      said_goodbye(rank, header);
    lost({rank, 0, ""});
  }

  const std::vector<int> sockets_;
  std::mutex sending_;  // a part of a frame is not to be broken by another
  bool left_ = false;   // and nothing follows a goodbye
  std::vector<std::byte> room_;
};

}  // namespace

std::shared_ptr<Communicator> socket_communicator(int rank, int size, std::vector<int> sockets) {
  const std::size_t expected = rank > 0 ? 1 : std::size_t(size) - 1;
  MNIST_REQUIRE(size > 0 && rank >= 0 && rank < size && sockets.size() == expected,
                "socket_communicator: " << sockets.size() << " sockets for rank " << rank << " of " << size
                                        << ", expected " << expected);
  return std::make_shared<Sockets>(rank, size, std::move(sockets));
}

}  // namespace mnist
