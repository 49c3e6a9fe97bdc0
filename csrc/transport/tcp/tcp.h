// The transport between processes that a network connects. It uses non-blocking sockets, which are opened
// when a pair of ranks needs them, and one epoll for all of them inside the waits of any thread.
//
// A pair of ranks has as many streams as it needs to fill the wire. Either end dials if it has something to
// send and there is no stream, and both use all streams in both directions. Frames are numbered, so any
// stream can carry them.
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
  // Collective over the ranks that `exchange` connects; exchanges twice. Throws InvalidArgument if
  // RINGREDUCE_IFACE or RINGREDUCE_TCP_STREAMS is invalid, and Error if this host has no network. `encrypt`:
  // whether to use TLS, as in init(); if not given, RINGREDUCE_TLS decides.
  static std::unique_ptr<TcpTransport> create(int rank, int world, const Exchange& exchange,
                                              std::optional<bool> encrypt = {});
  static bool encrypts(std::optional<bool> encrypt);
  ~TcpTransport() override;

  std::string way() const override;
  std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) override {
    return create(rank, world, exchange, settings_.encrypt);
  }
  void close() override;

 protected:
  // One address that the peers are told. At others, nothing shows that there is a rank.
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
    int streams = 0;  // per pair; 0: as many as needed
  };

  TcpTransport(const char* name, int rank, int world, Settings settings);
  // The exchanges of create(), and its last step, when the transport has been made.
  static Settings meet(int rank, int world, const Exchange& exchange, std::optional<bool> encrypt);
  void start();
  // Lets progress() wait for this descriptor to become readable, too.
  void watch(int descriptor);
  // Whether frames carry checksums.
  bool checks_frames() const { return settings_.membership.guard == Guard::checksums; }
  void report_damage(int receiver, int sender);
  // Before the end: all bytes arrive, if the peers can be reached.
  virtual void see_off(Lock& lock);

  void dispatch(int peer) override;
  bool progress(Lock& lock, Clock::duration limit) override;
  void interrupt() override;
  void look_after(int peer) override;
  void withdraw() override;
  bool connected(int peer) const override { return !links_[peer].ready.empty(); }
  void answer_latecomers() override;

 private:
  // One connection in the making: attempts at the peer's addresses, side by side, because a silent one must
  // not hold up the others.
  struct Dial {
    std::vector<Stream*> attempts;  // one once connected, none without a dial
    std::size_t begun = 0, route = 0;
    std::size_t refusals = 0;
    Clock::time_point latest, until;
    std::string problem;
  };
  struct Link {
    std::vector<Stream*> ready;
    std::array<Dial, 2> dials;  // by purpose; the pulse's stays connected
    Clock::time_point beat;
    std::size_t route = 0;  // the address that answered last
    int hang_ups = 0;
    std::optional<Clock::time_point> retry;
    int wanted = 1;  // streams
    Clock::time_point measured;
    std::uint64_t lost = 0;  // packets sent again, by then
  };
  struct Forks;
  friend struct Forks;

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
  void share_among_streams(Stream& stream);
  int streams_wanted(Link& link);
  std::size_t not_there_yet() const;
  void begin_anew();
  void close_descriptors();
  void close_in_child();

  Settings settings_;
  std::map<std::uint64_t, std::unique_ptr<Stream>> streams_;
  std::uint64_t next_id_ = 2;  // 0 and 1: the listener's and the event's
  std::vector<Link> links_;
  bool looked_for_broken_ = false;
  bool began_anew_ = false;
  int strangers_ = 0, complaints_ = 0;
  std::optional<Clock::time_point> shut_until_;  // to strangers
  bool table_full_ = false;                      // the table of file descriptors is full
  Clock::time_point clock_looked_;
  bool closed_ = false;
  int waiting_ = 0;         // threads, without the lock
  std::thread latecomers_;  // the thread that answers them, after a failure has ended the calls
};

}  // namespace ringreduce
