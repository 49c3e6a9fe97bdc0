// One connection to a peer: both ends prove that they belong to the job, then exchange frames in both
// directions. Knows nothing of lanes.
//
// Dialer                                        Acceptor
//   hello (build, who, to whom, a random number)   ->
//                                                  <-   another random number, HMAC(secret, "accept" + both)
//   HMAC(secret, "dial" + both)                    ->
// Neither trusts a byte of the other before it has seen the other's proof.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "transport/interface/descriptor.h"
#include "transport/remote/frames.h"
#include "transport/tcp/addresses.h"
#include "transport/tcp/channel.h"
#include "transport/tcp/secret.h"

namespace ringreduce {

// Distinguishes builds that cannot read each other's messages: the library's version, and the protocol's.
struct Build {
  char name[32];
  friend bool operator==(const Build&, const Build&) = default;
};
Build this_build();
// Describes the mismatch with another build, whose name may be arbitrary bytes.
std::string mismatch(const Build& theirs);

// How frames are protected in transit.
enum class Guard : std::uint32_t {
  nothing,
  checksums,  // detect bytes that change by chance
  tls,        // also stops attackers from reading or changing them
};

// The data that the ranks of one group share.
struct Membership {
  int rank = 0, world = 1;
  std::string group;   // 16 bytes that name it
  std::string secret;  // that proves membership
  Guard guard = Guard::nothing;
};

enum class Purpose : std::uint32_t {
  frames,
  pulse,  // carries nothing: the system's own answers show that the peer lives
};

class Stream {
 public:
  enum class State : std::uint8_t { connecting, greeting, answering, proving, securing, ready };
  // Bytes arrived that are not what was sent, here or at the peer, which has said so. Nothing more is
  // trusted.
  enum class Damage : std::uint8_t { none, here, there };

  // Accepts, or dials the rank that should be there; the socket is connecting then.
  Stream(std::uint64_t id, Descriptor socket, const Membership& membership, Frames& frames);
  Stream(std::uint64_t id, Descriptor socket, const Membership& membership, Frames& frames, int to,
         Purpose purpose);

  const std::uint64_t id;
  const Clock::time_point since = Clock::now();

  int fd() const { return socket_.get(); }
  void close_descriptor() { socket_.reset(); }
  void give_up(const std::string& why) { fail(why); }
  bool hang_up();  // as if the other end had hung up
  bool dialed() const { return dialed_; }
  Purpose purpose() const { return static_cast<Purpose>(hello_.purpose); }
  int peer() const { return peer_; }  // -1 until it is known
  State state() const { return state_; }
  bool proved() const { return state_ == State::ready; }
  // Why it is unusable; empty if it works.
  const std::string& broken() const { return broken_; }
  bool ended() const { return ended_; }      // properly, by the other end
  bool died() const { return died_; }        // the other end, says its system
  bool blocked() const { return blocked_; }  // the system accepts no more bytes now
  void unblock() { blocked_ = false; }
  // Bytes that the system has not accepted yet, but will.
  std::size_t queued() const { return mute_ ? 0 : queued_ + channel_->holds(); }
  // Nothing can be sent any more, but bytes may still arrive.
  bool mute() const { return mute_; }
  Damage damage() const { return damage_; }
  // Stops writing, except for what it has taken; its end then means nothing.
  void retire() { retired_ = true; }
  bool retired() const { return retired_; }

  // Advances the proofs; false if nothing moved.
  bool shake_hands();
  // Reads at most about this many bytes. True if anything arrived.
  bool read(std::size_t most);
  // True if anything was sent.
  bool write();
  // Leaves bytes to other streams as long as the system still has some to send here.
  void hold_little();
  // Sends one meaningless byte; allowed after the hello.
  void beat();
  // Stops using the caller's memory, for reading and writing.
  void withdraw();
  void forget();

  bool watched = false;   // for becoming writable
  std::size_t route = 0;  // the address that was dialed

 private:
  struct Hello {
    char magic[8];
    Build build;
    std::int32_t from, to, world;
    std::uint32_t purpose;
    char group[16];
    char nonce[16];
  };
  struct Answer {
    char magic[8];
    char nonce[16];
    Digest proof;
  };

  bool fail(const std::string& why);  // false
  bool say(const void* bytes, std::size_t count);
  bool hear(void* value, std::size_t count, const char* otherwise = nullptr);
  bool begins_well(const char* otherwise);
  bool go_further();
  bool connect_further();
  bool read_hello();
  bool read_answer();
  bool skip_beats();
  bool read_proof();
  bool secure();
  Proof proof() const;
  bool receive(std::size_t most, std::size_t& received, bool& more);
  void receive_nothing(ssize_t got);
  void unpack();
  void begin_frame();
  void end_frame();
  void fill();
  void account(std::size_t bytes);
  void land(std::size_t bytes);

  Descriptor socket_;
  std::unique_ptr<Channel> channel_;
  const Membership& membership_;
  Frames& frames_;  // that it carries
  State state_ = State::connecting;
  bool dialed_ = false;
  int peer_ = -1;
  bool blocked_ = false;
  std::string broken_;
  bool died_ = false;
  bool ended_ = false;
  bool mute_ = false;
  bool secured_ = false;
  Damage damage_ = Damage::none;
  bool retired_ = false;
  std::size_t write_ahead_ = 256 << 10;    // bytes passed to the system at once
  std::size_t longest_ = ~std::size_t{0};  // bytes of a message that are taken at once
  Hello hello_{};
  Answer answer_{};
  std::string heard_;        // of the proofs
  std::size_t skipped_ = 0;  // beats before the proof

  std::deque<Outgoing> writing_;
  std::size_t queued_ = 0;        // bytes of them, headers too
  std::size_t gone_ = 0;          // bytes of the first of them
  std::vector<std::byte> inbox_;  // read ahead
  std::size_t inbox_begin_ = 0, inbox_end_ = 0;
  bool in_frame_ = false;
  FrameHeader header_;  // of the frame being read
  Landing landing_;
  std::size_t landed_ = 0;   // bytes of it
  std::uint32_t check_ = 0;  // of the header and those bytes
};

}  // namespace ringreduce
