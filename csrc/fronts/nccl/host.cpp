// The side of the process that made a unique id, where ranks meet.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "fronts/nccl/errors.h"
#include "fronts/nccl/meeting.h"
#include "transport/interface/environment.h"
#include "transport/interface/exchange.h"
#include "transport/interface/thread.h"

namespace ringreduce::nccl_api {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char magic[8] = {'r', 'i', 'n', 'g', 'n', 'c', 'c', '1'};
constexpr std::size_t most_strangers = 64;
constexpr seconds stranger_has{10};
constexpr seconds reader_has{10};

std::timed_mutex answering;  // held during an answer, which the end of the process does not cut off

// A connection: a stranger until its proof arrives.
struct Guest {
  explicit Guest(int fd) : socket(fd) {}
  // Whether all of `value` has arrived.
  template <class Value>
  bool take(Value& value) {
    if (heard.size() < sizeof value) return false;
    std::memcpy(static_cast<void*>(&value), heard.data(), sizeof value);
    heard.erase(0, sizeof value);
    return true;
  }
  void say(const std::string& bytes) const { send_all(socket.get(), bytes, Clock::now() + reader_has); }

  Descriptor socket;
  const Clock::time_point since = Clock::now();
  std::optional<Greeting> greeting;
  Answer answer{};
  int rank = -1;  // known after its proof
  bool gone = false;
  std::string heard;
  std::optional<std::string> blob;  // for this round
};

std::string framed(Frame::Kind kind, const std::string& bytes) {
  return bytes_of(Frame{kind, static_cast<std::uint32_t>(bytes.size())}) + bytes;
}

class Host {
 public:
  Host(const Invitation& invitation, std::vector<Descriptor> listeners)
      : invitation_(invitation), listeners_(std::move(listeners)) {}

  void serve() {
    while (!over_) {
      wait();
      for (Guest& guest : guests_) attend(guest);
      forget_strangers();
      finish_round();
    }
  }

 private:
  bool is_rank(const Guest& guest) const { return guest.rank >= 0; }

  void wait() {
    std::vector<pollfd> all;
    for (const Descriptor& listener : listeners_) all.push_back({listener.get(), POLLIN, 0});
    for (const Guest& guest : guests_) {
      if (!guest.gone) all.push_back({guest.socket.get(), POLLIN, 0});
    }
    poll(all.data(), all.size(), guests_.empty() ? -1 : 500);
    for (std::size_t i = 0; i < listeners_.size(); ++i) {
      if (all[i].revents == 0) continue;
      const int fd = accept4(all[i].fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) guests_.emplace_back(fd);
    }
  }

  void attend(Guest& guest) {
    char bytes[16384];
    while (!guest.gone && guest.heard.size() <= longest_blob) {
      const ssize_t got = ::recv(guest.socket.get(), bytes, sizeof bytes, 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
      guest.gone = got <= 0;
      if (got > 0) guest.heard.append(bytes, static_cast<std::size_t>(got));
    }
    if (!guest.greeting) greet(guest);
    if (guest.greeting && !is_rank(guest)) admit(guest);
    Frame frame{};
    if (!is_rank(guest) || guest.blob || guest.heard.size() < sizeof frame) return;
    std::memcpy(static_cast<void*>(&frame), guest.heard.data(), sizeof frame);
    if (frame.bytes > longest_blob) return fail("rank " + std::to_string(guest.rank) + " sent too much");
    if (guest.heard.size() < sizeof frame + frame.bytes) return;
    guest.blob = guest.heard.substr(sizeof frame, frame.bytes);
    guest.heard.erase(0, sizeof frame + frame.bytes);
  }

  void greet(Guest& guest) {
    Greeting greeting{};
    if (!guest.take(greeting)) return;
    guest.greeting = greeting;
    if (std::memcmp(greeting.magic, magic, sizeof magic) != 0) {
      guest.gone = true;
      return;
    }
    std::memcpy(guest.answer.nonce, random_bytes(sizeof guest.answer.nonce).data(),
                sizeof guest.answer.nonce);
    guest.answer.proof = proof_over(invitation_, greeting, guest.answer).of("accept");
    guest.say(bytes_of(guest.answer));
  }

  void admit(Guest& guest) {
    Digest proof{};
    if (guest.gone || !guest.take(proof)) return;
    guest.gone = !proof_over(invitation_, *guest.greeting, guest.answer).holds("dial", proof);
    if (guest.gone) return;
    const Greeting& greeting = *guest.greeting;
    const std::string name = "rank " + std::to_string(greeting.rank);
    guest.gone = greeting.rank < 0 || greeting.rank >= greeting.world;
    if (guest.gone) return;
    guest.rank = greeting.rank;
    if (came_++ == 0) {
      world_ = greeting.world;
      until_ = Clock::now() + patience;
    }
    if (greeting.build != this_build()) return fail(name + " " + mismatch(greeting.build));
    if (greeting.world != world_) {
      return fail(name + " asks for a communicator of " + std::to_string(greeting.world) +
                  " ranks, but another rank for one of " + std::to_string(world_));
    }
    const auto same = std::count_if(guests_.begin(), guests_.end(),
                                    [&](const Guest& other) { return other.rank == greeting.rank; });
    if (same > 1) return fail("two callers claim to be " + name + " of " + std::to_string(world_));
  }

  void forget_strangers() {
    const auto now = Clock::now();
    const auto is_stranger = [&](const Guest& guest) { return !is_rank(guest); };
    auto strangers = static_cast<std::size_t>(std::count_if(guests_.begin(), guests_.end(), is_stranger));
    guests_.remove_if([&](const Guest& guest) {
      const bool goes = is_stranger(guest) &&
                        (guest.gone || now - guest.since > stranger_has || strangers > most_strangers);
      if (goes) --strangers;
      return goes;
    });
  }

  // Ranks leave after they have met, before the next round begins for any of them.
  void finish_round() {
    if (over_ || came_ == 0) return;
    std::vector<const Guest*> ranks(static_cast<std::size_t>(world_));
    bool all = true, begun = false, there = false;
    std::string missing, gone;
    for (const Guest& guest : guests_) {
      if (is_rank(guest)) ranks[static_cast<std::size_t>(guest.rank)] = &guest;
    }
    for (int rank = 0; rank < world_; ++rank) {
      const Guest* const guest = ranks[static_cast<std::size_t>(rank)];
      if (!guest) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      if (guest && guest->gone && !guest->blob) gone = std::to_string(rank);
      all = all && guest && guest->blob;
      begun = begun || (guest && guest->blob);
      there = there || (guest && !guest->gone);
    }
    if (all) return answer(ranks);
    if (!gone.empty() && (begun || !missing.empty()))
      return fail("rank " + gone + " left while the ranks were meeting");
    if (!missing.empty() && Clock::now() > until_) {
      return fail("waited " + std::to_string(patience.count()) +
                  " minutes, but these ranks have not arrived: " + missing);
    }
    over_ = !there;
  }

  void answer(const std::vector<const Guest*>& ranks) {
    std::string all;
    for (const Guest* guest : ranks) all += framed(Frame::blob, *guest->blob);
    const std::lock_guard lock(answering);
    for (Guest& guest : guests_) {
      if (!is_rank(guest)) continue;
      guest.blob.reset();
      if (!guest.gone) guest.say(all);
    }
  }

  void fail(const std::string& why) {
    for (const Guest& guest : guests_) {
      if (is_rank(guest) && !guest.gone) guest.say(framed(Frame::failure, why));
    }
    over_ = true;
  }

  const Invitation invitation_;
  const std::vector<Descriptor> listeners_;
  std::list<Guest> guests_;
  int world_ = 0, came_ = 0;
  Clock::time_point until_;
  bool over_ = false;
};

}  // namespace

nccl::UniqueId invite() {
  Invitation invitation{};
  std::memcpy(invitation.magic, magic, sizeof magic);
  invitation.build = this_build();
  std::memcpy(invitation.secret, random_bytes(sizeof invitation.secret).data(), sizeof invitation.secret);
  std::vector<Address> own = own_addresses(environment("RINGREDUCE_IFACE"));
  if (own.size() > Invitation::most_addresses) own[Invitation::most_addresses - 1] = own.back();
  own.resize(std::min(own.size(), Invitation::most_addresses));
  std::vector<Descriptor> listeners;
  for (Address address : own) {
    Descriptor socket = listen_at(address);
    if (socket.get() < 0) continue;
    invitation.addresses[listeners.size()] = address;
    listeners.push_back(std::move(socket));
  }
  if (listeners.empty()) throw Error("cannot open a socket to listen on");
  [[maybe_unused]] static const int at_end = std::atexit([] {
    if (answering.try_lock_for(reader_has)) answering.unlock();
  });
  auto host = std::make_shared<Host>(invitation, std::move(listeners));
  thread_without_signals([host = std::move(host)] { host->serve(); }).detach();
  nccl::UniqueId id{};
  std::memcpy(&id, &invitation, sizeof invitation);
  return id;
}

Invitation read(const nccl::UniqueId& id) {
  Invitation invitation{};
  std::memcpy(static_cast<void*>(&invitation), &id, sizeof invitation);
  if (std::memcmp(invitation.magic, magic, sizeof magic) != 0) {
    throw Refusal(nccl::invalid_argument,
                  "the unique id was not made by this library: load it on all ranks, including the one that "
                  "calls ncclGetUniqueId");
  }
  if (invitation.build != this_build()) {
    throw Refusal(nccl::invalid_argument, "the rank that made the unique id " + mismatch(invitation.build));
  }
  return invitation;
}

}  // namespace ringreduce::nccl_api
