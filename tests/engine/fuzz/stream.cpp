// Two ranks at the ends of a connection on which somebody changes, adds and leaves out bytes. Neither end
// takes the other for a rank of its job if that happened before it had the other's proof.
#include "transport/tcp/stream.h"

#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "input.h"
#include "transport/remote/remote.h"

namespace ringreduce::fuzz {
namespace {

const std::string group(16, 'g'), secret = "secret";

// A rank of two whose frames travel on one stream.
class Rank final : public RemoteTransport {
 public:
  Rank(int rank, Descriptor socket, std::optional<Purpose> dials)
      : RemoteTransport("stream", rank, 2, true), membership_{rank, 2, group, secret} {
    if (dials) {
      stream_.emplace(0, std::move(socket), membership_, frames_, 1 - rank, *dials);
    } else {
      stream_.emplace(0, std::move(socket), membership_, frames_);
    }
  }
  ~Rank() override { stream_->forget(); }

  Stream& stream() { return *stream_; }
  void move() {
    const Lock lock(mutex_);
    move_locked();
  }

  std::unique_ptr<Transport> among(int, int, const Exchange&) override { return nullptr; }
  void close() override {
    const Lock lock(mutex_);
    control_.say_bye();
  }

 private:
  bool carries() const { return stream_->proved() && stream_->broken().empty(); }
  void move_locked() {
    if (!stream_->proved()) stream_->shake_hands();
    if (carries()) stream_->read(1 << 16);
    dispatch(1 - rank);
    if (!stream_->broken().empty()) control_.lost(1 - rank, stream_->broken(), stream_->died());
  }
  void dispatch(int peer) override {
    if (control_.is_lost(peer)) return frames_.discard(peer);
    stream_->unblock();
    if (carries() && stream_->purpose() == Purpose::frames) stream_->write();
  }
  bool progress(Lock&, Clock::duration) override {
    move_locked();
    throw Ended();  // in a wait: there is nobody here who would end it
  }
  void interrupt() override {}
  void look_after(int) override {}
  void withdraw() override { stream_->withdraw(); }
  bool connected(int) const override { return carries(); }

  const Membership membership_;
  std::optional<Stream> stream_;
};

struct Pair {
  Descriptor one, other;
};
Pair connected_pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0) std::abort();
  return {Descriptor(fds[0]), Descriptor(fds[1])};
}

// One direction of the connection.
class Way {
 public:
  // `proof` is how many bytes it takes to prove oneself.
  Way(const Descriptor& from, const Descriptor& to, std::size_t proof)
      : from_(from), to_(to), proof_(proof) {}

  std::size_t taken() const { return taken_; }
  bool spoilt_proof() const { return spoilt_; }

  void pass(std::size_t most) { send(take(most)); }
  void change(char by) {
    std::string byte = take(1);
    if (byte.empty()) return;
    byte[0] = static_cast<char>(byte[0] ^ by);
    spoilt_ |= by != 0 && taken_ <= proof_;
    send(byte);
  }
  void leave_out(std::size_t most) {
    const bool early = taken_ < proof_;
    spoilt_ |= !take(most).empty() && early;
  }
  void add(const std::string& bytes) {
    spoilt_ |= !bytes.empty() && taken_ < proof_;
    send(bytes);
  }

 private:
  std::string take(std::size_t most) {
    std::array<char, 4096> bytes;
    const ssize_t got = ::recv(from_.get(), bytes.data(), std::min(most, bytes.size()), MSG_DONTWAIT);
    taken_ += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }
  void send(const std::string& bytes) {
    ::send(to_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  const Descriptor &from_, &to_;
  const std::size_t proof_;
  std::size_t taken_ = 0;
  bool spoilt_ = false;
};

using Memory = std::array<std::byte, 4096>;  // the callers'

void use(Rank& rank, Input& input, Memory& memory) {
  const int lane = input.below(Transport::lanes), peer = 1 - rank.rank;
  const std::size_t bytes = input.take<std::uint16_t>() % memory.size();
  Message message;
  switch (input.below(8)) {
    case 0:
      std::ignore = rank.send(lane, {&peer, 1}, memory.data(), bytes, 7);
      return;
    case 1:
      std::ignore = rank.lend(lane, {&peer, 1}, memory.data(), bytes, 7, nullptr);
      return;
    case 2:
      return rank.place(lane, peer, memory.data(), bytes, 7);
    case 3:
      return rank.show({std::vector<std::uint64_t>{3}, 1, 0, "blob"});
    case 4:
      if (bytes < 64) return rank.close();
      if (bytes < 128) return rank.abort(Failure(Cause::timeout, peer, "late"));
      return;
    default:
      if (rank.poll(lane, peer, message)) rank.release(lane, peer);
  }
}

// Both ends, and who sits between them.
struct Connection {
  Pair here = connected_pair(), there = connected_pair();
  Rank dialer, acceptor;
  Way out, back;

  Connection(Purpose purpose, std::size_t proof, std::size_t answer)
      : dialer(0, std::move(here.one), purpose),
        acceptor(1, std::move(there.one), std::nullopt),
        out(here.other, there.other, proof),
        back(there.other, here.other, answer) {}

  void go_on() {
    out.pass(4096);
    back.pass(4096);
    dialer.move();
    acceptor.move();
  }
};

// What the ends say before they are believed: the dialer, and the acceptor.
std::pair<std::size_t, std::size_t> lengths_of_proofs() {
  Connection connection(Purpose::frames, 0, 0);
  for (int i = 0; i < 4; ++i) connection.go_on();
  if (!connection.dialer.stream().proved() || !connection.acceptor.stream().proved()) std::abort();
  return {connection.out.taken(), connection.back.taken()};
}

void meddle(Way& way, int how, Input& input) {
  switch (how) {
    case 0:
      return way.change(input.take<char>());
    case 1:
      return way.leave_out(static_cast<std::size_t>(input.below(256)));
    case 2:
      return way.add(input.text(static_cast<std::size_t>(input.below(64))));
    default:
      return way.pass(static_cast<std::size_t>(1 + input.below(255)));
  }
}

void run(Input& input) {
  static const auto [proof, answer] = lengths_of_proofs();
  const auto purpose = static_cast<Purpose>(input.below(2));
  Memory memory{};
  Connection connection(purpose, proof, answer);
  while (!input.empty()) {
    const int what = input.below(256);
    Rank& rank = what & 1 ? connection.acceptor : connection.dialer;
    const int how = what / 2 % 16;
    if (how < 4) {
      meddle(what & 1 ? connection.back : connection.out, how, input);
    } else if (how == 4) {
      if (rank.stream().proved()) rank.stream().beat();
    } else if (how < 8) {
      use(rank, input, memory);
    } else {
      connection.go_on();
    }
    // A pulse may beat before its proof, so that bytes may be added there.
    if (purpose == Purpose::pulse) continue;
    if (connection.back.spoilt_proof() && connection.dialer.stream().proved()) std::abort();
    if (connection.out.spoilt_proof() && connection.acceptor.stream().proved()) std::abort();
  }
}

}  // namespace
}  // namespace ringreduce::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ringreduce::fuzz::Input input(data, size);
  try {
    ringreduce::fuzz::run(input);
  } catch (const ringreduce::fuzz::Ended&) {
  } catch (const ringreduce::Error&) {
  }
  return 0;
}
