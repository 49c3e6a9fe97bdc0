// The transport between the ranks of an MPI job: MPI's messages carry our frames, point to point only. A
// small frame is one message, with its header at the end, which gives its bytes the alignment that MPI
// prefers. For a large one the header goes first, and the bytes then go directly from their source to their
// destination.
//
// There is one open receive for each peer that has something to say, and a hello announces one that will. The
// cost of a look therefore grows with the peers in use, and none of these receives is from any source, which
// costs some libraries a look at each of their devices.
#pragma once

#include <mpi.h>

#include <atomic>
#include <vector>

#include "fronts/mpi/transport/home.h"
#include "fronts/mpi/transport/library.h"
#include "transport/interface/cores.h"
#include "transport/remote/remote.h"
#include "transport/tcp/addresses.h"

namespace ringreduce::mpi {

class MpiTransport : public RemoteTransport {
 public:
  // Collective over the ranks that `exchange` connects, all of `home`.
  static std::unique_ptr<RemoteTransport> create(std::shared_ptr<Home> home, int rank, int world,
                                                 const Exchange& exchange);
  ~MpiTransport() override;

  void check() override;
  void check_background() override;
  std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) override {
    return create(home_, rank, world, exchange);
  }
  void close() override;

 protected:
  void dispatch(int peer) override;
  bool send_at_once(int peer, const Outgoing& frame) override;
  bool progress(Lock& lock, Clock::duration limit) override;
  // Where ranks share cores, a look that finds nothing yields the core.
  bool looks_quickly() const override { return !facts_.oversubscribed; }
  void interrupt() override { interrupted_.store(true); }
  void look_after(int peer) override;
  void withdraw() override;
  bool connected(int peer) const override { return open_[peer] != 0; }
  void answer_latecomers() override;

 private:
  // A rank's report about itself.
  struct Member {
    HostIdentity host;
    Cores cores;
    std::uint64_t processes = 0;  // the namespace of its process id
    std::uint64_t started = 0;    // distinguishes it from a later process with the same id
    std::int32_t process = 0;
    std::int32_t place = 0;    // its rank in the home
    std::int32_t number = -1;  // of the new group, if it leads it
  };
  // The purpose of a request.
  struct Purpose {
    enum class Kind : std::uint8_t { hello, frame, bulk, sent };
    Kind kind{};
    int peer = -1;
    Buffer* buffer = nullptr;  // that receives a frame, or that one is sent from if it is not the frame's own
    Outgoing frame{};          // of what is sent
    FrameHeader header{};      // of bulk data being received
    Landing landing{};
    bool ends_frame = false;  // after this the whole frame is on the wire
    bool idle = false;        // a frame has arrived, and no receive for the next one is open yet
  };

  MpiTransport(std::shared_ptr<Home> home, int rank, int world, std::vector<Member> members, bool crowded);
  static Member own_member(Home& home);
  static std::uint64_t start_of(int process);

  struct Begun {
    int code = MPI_SUCCESS, done = 0;
  };
  enum class Cancelled : std::uint8_t { yes, came, no };

  // work.cpp
  static std::size_t longest_whole(bool crowded);
  bool is_whole(const FrameHeader& header) const;
  void add(MPI_Request request, const Purpose& purpose);
  void listen_for_hello();
  void receive(std::size_t index, std::byte* at, std::size_t bytes, int tag);
  void listen(std::size_t index);
  void listen_again();
  void open(int peer, bool greet);
  void drop_finished();
  bool sending() const;
  void send(int peer, const Outgoing& frame);
  void send_copy(int peer, const Outgoing& frame);
  void send_bytes(const void* data, std::size_t bytes, int tag, const Purpose& purpose);
  Begun begin_to_send(const void* data, std::size_t bytes, int peer, int tag, MPI_Request& request);
  void sent(const Purpose& purpose);
  bool look();
  bool test_in_order();
  bool test_all();
  bool look_a_while();
  void finish(std::size_t index, const MPI_Status& status, int code);
  Buffer* frame_came(int peer, Buffer* buffer, std::size_t bytes);
  void receive_bulk(std::size_t index);
  void unreachable(int peer, int code);
  void failed(std::size_t index, int code);

  // end.cpp
  Cancelled cancel(MPI_Request& request, Clock::time_point deadline);
  void divert(int peer, Clock::time_point deadline);
  void hand_over(Clock::time_point deadline);
  void see_off(Lock& lock);
  void let_go();

  int place_of(int peer) const { return members_[peer].place; }

  const std::shared_ptr<Home> home_;
  const std::vector<Member> members_;
  const Tags tags_;
  const std::size_t slot_bytes_;     // of the longest frame that is sent as one message
  std::vector<int> peers_by_place_;  // or -1
  std::vector<char> open_;           // whether frames have been exchanged
  // MPI's running operations for us: requests, and at the same index their purposes. The first is for hellos.
  std::vector<MPI_Request> requests_;
  std::vector<Purpose> purposes_;
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
  bool some_finished_ = false, some_idle_ = false;
  unsigned looks_ = 0;
  Buffer* copy_ = nullptr;  // from which the next frame that is copied is sent, or null
  bool in_turn_ = false;    // see Turn; under the lock
  std::atomic<bool> interrupted_{false};
  bool closed_ = false, lost_some_ = false;
};

}  // namespace ringreduce::mpi
