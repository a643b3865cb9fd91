// Ranks: which images of a batch each gets, and that both ways of talking give the same bits and name the rank that
// left.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <thread>

#include "dummy_engine.h"
#include "mnist/communicator.h"

namespace {

using namespace mnist;

using Ranks = std::vector<std::shared_ptr<Communicator>>;

// Processes are threads here: the sockets between them are the same.
Ranks connected_communicators(int size) {
  std::vector<int> of_rank_0;
  Ranks others;
  for (int rank = 1; rank < size; ++rank) {
    std::array<int, 2> ends;
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
    of_rank_0.push_back(ends[0]);
    others.push_back(socket_communicator(rank, size, {ends[1]}));
  }
  Ranks all = {socket_communicator(0, size, of_rank_0)};
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

// Each rank in a thread of its own.
void on_all(const Ranks& ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&] { body(*rank); });
  for (auto& thread : threads) thread.join();
}

void test_shares() {
  for (const std::int64_t count : {0, 1, 2, 3, 7, 63, 64, 65, 60000})
    for (const int size : {1, 2, 3, 4, 8, 100}) {
      std::int64_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const auto [first, last] = images_of_rank(count, rank, size);
        CHECK(first == end);
        CHECK(last - first == count / size || last - first == (count + size - 1) / size);
        end = last;
      }
      CHECK(end == count);
    }
}

template <class T>
std::vector<T> values_of(int rank, std::size_t count) {
  auto values = testing::random_normal<T>(count, unsigned(rank));
  if (count > 2) values[1] = rank == 0 ? T(1e20) : rank == 1 ? T(1) : T(-1e20);  // their sum depends on the order
  return values;
}

template <class T>
void test_sum(const Ranks& ranks, std::size_t count) {
  std::vector<T> want = values_of<T>(0, count);
  for (int rank = 1; rank < int(ranks.size()); ++rank) {
    const auto more = values_of<T>(rank, count);
    for (std::size_t i = 0; i < count; ++i) want[i] += more[i];
  }
  std::vector<std::vector<T>> got(ranks.size());
  on_all(ranks, [&](Communicator& rank) {
    auto& values = got[rank.rank()] = values_of<T>(rank.rank(), count);
    for (int again = 0; again < 3; ++again) {
      values = values_of<T>(rank.rank(), count);
      rank.sum(std::span(values));
    }
  });
  for (const auto& values : got) CHECK(values == want);
}

void test_gather(const Ranks& ranks, std::size_t count) {
  std::vector<std::byte> want;
  const auto bytes_of = [&](int rank) { return std::vector<std::byte>(count, std::byte(rank + 1)); };
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto mine = bytes_of(int(rank));
    want.insert(want.end(), mine.begin(), mine.end());
  }
  std::vector<std::vector<std::byte>> got(ranks.size());
  on_all(ranks, [&](Communicator& rank) {
    auto& all = got[rank.rank()] = std::vector<std::byte>(ranks.size() * count);
    rank.all_gather(bytes_of(rank.rank()), all);
  });
  for (const auto& all : got) CHECK(all == want);
}

// What every rank but `leaver` gets to know when that one leaves while they add.
std::vector<Departure> departures(Ranks ranks, int leaver) {
  std::vector<Departure> known;
  std::mutex mutex;
  on_all(ranks, [&](Communicator& rank) {
    std::vector<double> values(300000);
    Departure departure{.code = 5, .reason = "memory ran out"};
    if (rank.rank() != leaver) {
      try {
        rank.sum(std::span(values));
      } catch (const RankLostError&) {
      }
      departure = rank.departure();
      const std::lock_guard lock(mutex);
      known.push_back(departure);
    }
    rank.leave(departure.code, departure.reason);
    ranks[rank.rank()].reset();  // as the end of a process does
  });
  return known;
}

template <class Make>
void test_leaving(Make make) {
  for (const int leaver : {0, 1, 2}) {
    const auto known = departures(make(3), leaver);
    CHECK(known.size() == 2);
    for (const auto& departure : known) {
      CHECK(departure.code == 5);
      CHECK(departure.reason == "memory ran out");
      CHECK(departure.rank == leaver || departure.rank == 0);  // rank 0 passes it on
    }
  }
}

// A rank that another thread says goodbye for adds no more, and neither does the one that waits for it.
void test_leaving_by_another_thread(const Ranks& ranks) {
  bool lost[2] = {};
  const auto add = [&](int rank) {
    std::vector<double> values(1000);
    try {
      ranks[rank]->sum(std::span(values));
    } catch (const RankLostError&) {
      lost[rank] = true;
    }
  };
  std::thread waiting([&] { add(1); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ranks[0]->leave(0, "stopped");
  waiting.join();
  add(0);
  CHECK(lost[0] && lost[1]);
}

// Nobody's values are read once its call is over: ThreadSanitizer sees it.
template <class Make>
void test_leaving_at_any_moment(Make make) {
  for (int moment = 0; moment < 40; ++moment) {
    Ranks ranks = make(2);
    std::thread leaver([moment, rank_0 = ranks[0]] {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * moment));
      rank_0->leave(0, "stopped");
    });
    on_all(ranks, [&](Communicator& rank) {
      for (bool lost = false; !lost;) {
        std::vector<float> values(20000);
        try {
          rank.sum(std::span(values));
        } catch (const RankLostError&) {
          std::ranges::fill(values, 1.f);
          rank.leave(0, "");
          lost = true;
        }
      }
      ranks[rank.rank()].reset();  // as the end of a process does
    });
    leaver.join();
  }
}

// A rank that is gone without a word, and one that does something else than the others.
void test_sockets() {
  std::array<int, 2> ends;
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
  const auto rank_0 = socket_communicator(0, 2, {ends[0]});
  auto rank_1 = socket_communicator(1, 2, {ends[1]});
  std::vector<double> values(2);
  std::vector<std::byte> bytes(2);
  std::thread other([&] {
    try {
      rank_1->all_gather(std::span(bytes).first(1), bytes);
    } catch (const RankLostError&) {
    }
    rank_1.reset();
  });
  std::string sentence;
  try {
    rank_0->sum(std::span(values));
  } catch (const RankLostError& error) {
    sentence = error.what();
  }
  CHECK(sentence == "rank 1: not at the same step as rank 0");
  rank_0->leave(0, "");
  other.join();
  sentence.clear();
  try {
    std::vector<double> many(1 << 20);
    rank_0->sum(std::span(many));
  } catch (const RankLostError& error) {
    sentence = error.what();
  }
  CHECK(sentence == "rank 1 is gone");
  CHECK(rank_0->departure().reason == "not at the same step as rank 0");  // the first one stays
}

}  // namespace

int main() {
  test_shares();
  for (const int size : {1, 2, 3, 5})
    for (const auto& ranks : {in_process_communicators(size), connected_communicators(size)})
      for (const std::size_t count : {0, 1, 130, 421834}) {
        test_sum<float>(ranks, count);
        test_sum<double>(ranks, count);
        test_gather(ranks, count);
      }
  test_leaving(in_process_communicators);
  test_leaving(connected_communicators);
  test_leaving_by_another_thread(in_process_communicators(2));
  test_leaving_by_another_thread(connected_communicators(2));
  test_leaving_at_any_moment(in_process_communicators);
  test_leaving_at_any_moment(connected_communicators);
  test_sockets();
  return testing::finish();
}
