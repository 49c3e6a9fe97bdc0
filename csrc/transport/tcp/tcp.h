// Between processes that a network connects: sockets without blocking, made when a pair of ranks needs them,
// one epoll for all of them inside the waiting of whoever waits.
//
// A pair of ranks has as many streams as it needs to fill the wire: either end dials when it has something to
// say and there is none, and both use all of them, in both directions. Frames carry numbers, so it does not
// matter which stream one takes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "transport/remote/remote.h"
#include "transport/tcp/stream.h"

namespace ringreduce {

class TcpTransport : public RemoteTransport, private Stream::Owner {
 public:
  // Collective over the ranks that `exchange` connects, twice. Throws InvalidArgument where RINGREDUCE_IFACE
  // or RINGREDUCE_TCP_STREAMS says what cannot be, Error where this host has no network at all.
  static std::unique_ptr<TcpTransport> create(int rank, int world, const Exchange& exchange);
  ~TcpTransport() override;

  const char* name() const override { return "tcp"; }
  bool distant() const override { return settings_.distant; }
  std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) override {
    return create(rank, world, exchange);
  }
  void close() override;
  void disown() override { disowned_ = true; }

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
    bool oversubscribed = false;
    bool distant = false;
    int streams = 0;  // per pair; 0: as many as it takes
  };
  struct Link {
    std::vector<Stream*> ready;
    int dialing = 0;
    Stream* pulse = nullptr;
    Clock::time_point beat;
    std::size_t next = 0;  // address to try
    int hang_ups = 0;
    std::string problem;  // with the last address
    std::optional<Clock::time_point> retry;
    int wanted = 1;  // streams
    Clock::time_point measured;
  };
  struct Forks;
  friend struct Forks;

  explicit TcpTransport(int rank, int world, Settings settings);
  static std::vector<Listener> listen();
  static int streams_by_environment();

  bool take_frame(int peer, Outgoing& frame) override { return take(peer, frame); }
  void frame_written(int peer, const Outgoing& frame) override { written(peer, frame); }
  bool drop_frame(int peer, const Outgoing& frame) override;
  Landing land_frame(int peer, const FrameHeader& header) override { return land(peer, header); }
  void frame_landed(int peer, const FrameHeader& header, const Landing& landing) override {
    landed(peer, header, landing);
  }

  Stream& add(std::unique_ptr<Stream> stream, bool connecting);
  void watch(Stream& stream);
  void dial(int peer, Purpose purpose);
  void dial_failed(Stream& stream);
  void try_next(int peer, Purpose purpose, const std::string& problem);
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
  void see_off(Lock& lock);
  void close_in_child();

  Settings settings_;
  Descriptor epoll_, event_;
  std::map<std::uint64_t, std::unique_ptr<Stream>> streams_;
  std::uint64_t next_id_ = 2;  // 0 and 1: the listener's and the event's
  std::vector<Link> links_;
  bool looked_for_broken_ = false;
  int strangers_ = 0, complaints_ = 0;
  std::optional<Clock::time_point> shut_until_;  // for strangers
  bool table_full_ = false;                      // of file descriptors
  Clock::time_point clock_looked_;
  bool closed_ = false, disowned_ = false;
  std::thread latecomers_;  // are answered by it, once the calls have ended by a failure
};

}  // namespace ringreduce
