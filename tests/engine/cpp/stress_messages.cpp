#include <array>
#include <thread>

#include "schedule/catalogue.h"
#include "stress.h"

namespace stress {

void messages_on(Communicator& comm, void (*beside)(Communicator&)) {
  if (comm.size() == 1) return;
  std::thread other([&comm, beside] { beside(comm); });
  const int next = (comm.rank() + 1) % comm.size(), previous = (comm.rank() + comm.size() - 1) % comm.size();
  for (const std::size_t count : {1, 500, 200000}) {
    Floats x = filled(comm.rank(), 0, count), y(count);
    const auto sent = comm.submit({.peer = next, .data = x.data(), .count = count, .tag = 7});
    comm.transfer({.sends = false, .peer = previous, .data = y.data(), .count = count, .tag = 7});
    require(sent->wait(std::nullopt, [] {}), "sent");
    require(y == filled(previous, 0, count), "received");
  }
  other.join();
}

namespace {

Transfer message(bool sends, int peer, int tag, Floats& buffer) {
  return {.sends = sends, .peer = peer, .data = buffer.data(), .count = buffer.size(), .tag = tag};
}

int handle_of(Collective collective, std::string_view name) {
  return static_cast<int>(find_algorithm(collective, name) - catalogue().data());
}

}  // namespace

// Everybody sends to everybody, itself included, with several tags, and receives in another order: half of
// the tags by source, from a second thread, the others from any. Small ones pile up, large ones wait for
// their turn.
void tags_on(Communicator& comm) {
  constexpr int tags = 4;
  const int world = comm.size();
  const std::size_t sizes[tags] = {1, 3000, 30000, 100000};
  std::vector<std::shared_ptr<Work>> works;
  std::vector<Floats> sent(static_cast<std::size_t>(world) * tags);
  for (int peer = 0; peer < world; ++peer) {
    for (int tag = 0; tag < tags; ++tag) {
      Floats& x = sent[static_cast<std::size_t>(peer * tags + tag)];
      x = filled(comm.rank(), static_cast<std::size_t>(tag), sizes[tag]);
      works.push_back(comm.submit(message(true, peer, tag, x)));
    }
  }
  std::thread named([&] {
    for (int tag = tags - 1; tag >= tags / 2; --tag) {
      for (int peer = world - 1; peer >= 0; --peer) {
        Floats y(sizes[tag]);
        require(comm.transfer(message(false, peer, tag, y)) == peer, "the named source");
        require(y == filled(peer, static_cast<std::size_t>(tag), sizes[tag]), "what it sent");
      }
    }
  });
  for (int tag = tags / 2 - 1; tag >= 0; --tag) {
    std::vector<int> seen(static_cast<std::size_t>(world));
    for (int i = 0; i < world; ++i) {
      Floats y(sizes[tag]);
      int source = any_source;
      if (i % 2 == 0) {
        source = comm.transfer(message(false, any_source, tag, y));
      } else {
        const auto work = comm.submit(message(false, any_source, tag, y));
        require(work->wait(std::nullopt, [] {}), "received from any");
        source = work->source();
      }
      require(source >= 0 && source < world && seen[static_cast<std::size_t>(source)]++ == 0, "each once");
      require(y == filled(source, static_cast<std::size_t>(tag), sizes[tag]), "what any rank sent");
    }
  }
  named.join();
  for (const auto& work : works) require(work->wait(std::nullopt, [] {}), "sent");
}

// A large message that its sender is stuck with is in front of the small one that is asked for.
void fetched_on(Communicator& comm) {
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size(), previous = (comm.rank() + comm.size() - 1) % comm.size();
  std::thread sender([&] {
    Floats large = filled(comm.rank(), 0, 100000), small = filled(comm.rank(), 0, 3);
    comm.transfer(message(true, next, 5, large));
    comm.transfer(message(true, next, 6, small));
  });
  Floats small(3), large(100000);
  require(comm.transfer(message(false, any_source, 6, small)) == previous, "the small one's source");
  comm.transfer(message(false, previous, 5, large));
  require(small == filled(previous, 0, 3) && large == filled(previous, 0, 100000), "both are right");
  sender.join();
}

// Small messages to everyone, which all ranks read in one place, many after each other, between others.
void told_on(Communicator& comm) {
  const int one_shot = handle_of(Collective::all_reduce, "one_shot");
  const int direct = handle_of(Collective::all_gather, "direct");
  const auto world = static_cast<std::size_t>(comm.size());
  std::vector<Floats> behind(20);
  std::vector<std::shared_ptr<Work>> works;
  for (std::size_t i = 0; i < 400; ++i) {
    const std::size_t count = std::array{1, 10, 3, 11, 7}[i % 5];  // ten floats are the most
    Floats x = filled(comm.rank(), i, count), all(world), sum(count), gathered(world);
    for (std::size_t k = 0; k < count; ++k) sum[k] = sum_of(comm.size(), i + k);
    for (std::size_t r = 0; r < world; ++r) gathered[r] = value(static_cast<int>(r), i);
    comm.run({.collective = Collective::all_gather,
              .input = x.data(),
              .output = all.data(),
              .count = 1,
              .algorithm = direct});
    require(all == gathered, "gathered from everyone");
    const Call reduction{.input = x.data(), .output = x.data(), .count = count, .algorithm = one_shot};
    comm.run(reduction);
    require(x == sum, "told to everyone");
    if (i % 20 != 19) continue;
    Floats& later = behind[i / 20] = filled(comm.rank(), 0, 10);
    works.push_back(
        comm.submit({.input = later.data(), .output = later.data(), .count = 10, .algorithm = one_shot}));
  }
  for (const auto& work : works) require(work->wait(std::nullopt, [] {}), "told by the progress thread");
  for (const Floats& later : behind) {
    for (std::size_t k = 0; k < 10; ++k) require(later[k] == sum_of(comm.size(), k), "told behind");
  }
}

}  // namespace stress
