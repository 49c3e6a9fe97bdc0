// Between processes that a network connects: sockets without blocking, made when a pair of ranks needs them,
// one epoll for all of them inside the waiting of whoever waits.
//
// A pair of ranks has as many streams as it needs to fill the wire: either end dials when it has something to
// say and there is none, and both use all of them, in both directions. Frames carry numbers, so it does not
// matter which stream one takes.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "transport/remote/remote.h"
#include "transport/tcp/stream.h"

namespace ringreduce {

class TcpTransport : public RemoteTransport {
 public:
  // Collective over the ranks that `exchange` connects, twice. Throws InvalidArgument where RINGREDUCE_IFACE
  // or RINGREDUCE_TCP_STREAMS says what cannot be, Error where this host has no network at all.
  // `encrypt` as init() has it: by TLS, or as RINGREDUCE_TLS says.
  static std::unique_ptr<TcpTransport> create(int rank, int world, const Exchange& exchange,
                                              std::optional<bool> encrypt = {});
  static bool encrypts(std::optional<bool> encrypt);
  ~TcpTransport() override;

  const char* name() const override { return "tcp"; }
  std::string way() const override;
  bool distant() const override { return settings_.distant; }
  std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) override {
    return create(rank, world, exchange, settings_.encrypt);
  }
  void close() override;

 protected:
  void dispatch(int peer) override;
  bool progress(Lock& lock, Clock::duration limit) override;
  void interrupt() override;
  void look_after(int peer) override;
  void withdraw() override;
  bool connected(int peer) const override { return !links_[peer].ready.empty(); }
  void answer_latecomers() override;

 private:
  // Of one address that the peers are told: elsewhere nobody gets to hear that there is a rank.
  struct Listener {
    Descriptor socket;
    Address address;
  };
  struct Settings {
    Descriptor epoll, event;
    std::vector<Listener> listeners;
    Membership membership;
    std::vector<std::vector<Address>> addresses;  // of the peers, in the order in which to try them
    std::optional<bool> encrypt;
    bool oversubscribed = false;
    bool distant = false;
    int streams = 0;  // per pair; 0: as many as it takes
  };
  // How one connection is made: attempts at the peer's addresses, side by side, since a silent one must not
  // hold up the others.
  struct Dial {
    std::vector<Stream*> attempts;  // one once it is connected, none without a dial
    std::size_t begun = 0, route = 0;
    Clock::time_point latest, until;
    std::string problem;
  };
  struct Link {
    std::vector<Stream*> ready;
    std::array<Dial, 2> dials;  // by purpose; that of the pulse keeps it
    Clock::time_point beat;
    std::size_t route = 0;  // the address that answered last
    int hang_ups = 0;
    std::optional<Clock::time_point> retry;
    int wanted = 1;  // streams
    Clock::time_point measured;
  };
  struct Forks;
  friend struct Forks;

  explicit TcpTransport(int rank, int world, Settings settings);
  static std::vector<Listener> listen();
  static int streams_by_environment();

  Stream& add(std::unique_ptr<Stream> stream, bool connecting);
  void watch(Stream& stream);
  Dial& dial_of(int peer, Purpose purpose) { return links_[peer].dials[static_cast<std::size_t>(purpose)]; }
  void meet_neighbours();
  void dial(int peer, Purpose purpose);
  void attempt(int peer, Purpose purpose);
  void attempt_failed(int peer, Purpose purpose, const std::string& problem, bool met);
  void connected(Stream& stream);
  void dial_failed(Stream& stream);
  void give_up(int peer, Purpose purpose);
  void look_at_dial(int peer, Purpose purpose, Clock::time_point now);
  void accept_some();
  void admit(Descriptor socket);
  void turn_door(bool open);
  void make_room_for_strangers();
  bool serve(Stream& stream);
  void begin(Stream& stream);
  void bury();
  void bury(Stream& stream);
  void complain(const Stream& stream);
  void look_at_clock(Clock::time_point now);
  int streams_wanted(Link& link);
  std::size_t not_there_yet() const;
  void report_damage(const Stream& stream);
  void begin_anew();
  void see_off(Lock& lock);
  void close_in_child();

  Settings settings_;
  std::map<std::uint64_t, std::unique_ptr<Stream>> streams_;
  std::uint64_t next_id_ = 2;  // 0 and 1: the listener's and the event's
  std::vector<Link> links_;
  bool looked_for_broken_ = false;
  bool began_anew_ = false;
  int strangers_ = 0, complaints_ = 0;
  std::optional<Clock::time_point> shut_until_;  // for strangers
  bool table_full_ = false;                      // of file descriptors
  Clock::time_point clock_looked_;
  bool closed_ = false;
  std::thread latecomers_;  // are answered by it, once the calls have ended by a failure
};

}  // namespace ringreduce
