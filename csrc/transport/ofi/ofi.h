// The transport between hosts that a fabric connects, by libfabric. The sockets of TcpTransport carry control
// messages, and show who lives; the fabric carries the flow of messages.
//
// An endpoint accepts messages from anyone. Two ranks therefore exchange their endpoints' names and a random
// key over a socket, whose ends have proved that they belong to the job. What arrives without the key is
// ignored.
//
// A small frame is one message, with its header at the end. Of a large one the header goes first. If it says
// where the bytes are, the receiver reads them, and says when it has. Otherwise they follow under a tag of
// their own. Either way they go directly from their source to their destination.
//
// A rank may have several rails: an endpoint in each of several domains. Small frames and headers take the
// first, and the bytes of large frames take all of them in turn.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/ofi/device.h"
#include "transport/ofi/regions.h"
#include "transport/tcp/tcp.h"

namespace ringreduce {

class OfiTransport : public TcpTransport {
 public:
  static constexpr int exchanges = 3;  // of create()

  // Collective over the ranks that `exchange` connects. Throws Error on all ranks if one of them has no
  // usable provider, and InvalidArgument if they have different ones.
  static std::unique_ptr<OfiTransport> create(int rank, int world, const Exchange& exchange,
                                              const ofi::Wish& wish);
  // The same if a card makes that faster than sockets. Otherwise null on all ranks, after one exchange.
  static std::unique_ptr<OfiTransport> create_if_faster(int rank, int world, const Exchange& exchange,
                                                        ofi::Wish wish, std::string& why_not);
  // What the environment asks for.
  static ofi::Wish wish_by_environment();
  ~OfiTransport() override;

  std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) override {
    return create(rank, world, exchange, wish_);
  }
  std::vector<TransportCount> counts() const override;

 protected:
  void dispatch(int peer) override;
  bool send_at_once(int peer, const Outgoing& frame) override;
  bool progress(Lock& lock, Clock::duration limit) override;
  bool looks_quickly() const override;
  void interrupt() override;
  void withdraw() override;
  void hear_endpoint(int peer, std::string_view text) override;
  void see_off(Lock& lock) override;

 private:
  // Follows the bytes of a message, if there are any.
  struct Tail {
    FrameHeader header;
    std::uint64_t key = 0;
    std::uint32_t from = 0;
    // The number of the message with the bytes, or 0: they are here. Of a credit: of the bytes that the
    // sender has read.
    std::uint32_t bulk = 0;
  };
  // What the provider is doing for us.
  struct Operation {
    enum class Kind : std::uint8_t { slot, bulk, send, offer };  // an offer is the peer's to read

    void* context[8] = {};  // the provider's
    Kind kind{};
    bool busy = false;
    int peer = -1;
    // Receives a small frame, has the copy of one that is sent, or receives bulk in the place of memory that
    // is not registered.
    Buffer* buffer = nullptr;
    std::optional<Outgoing> frame;  // that is on the wire after this
    ofi::Regions::User region;
    // Of bulk that is received, or read if it has a number.
    std::size_t rail = 0;
    FrameHeader header{};
    Landing landing{};
    std::uint64_t tag = 0;
    std::uint32_t number = 0;
    ofi::RemotePlace place;
    std::byte* place_here() const { return buffer ? buffer->data : landing.at; }  // where bulk arrives
    bool uses_callers_memory() const {
      return kind == Kind::bulk ? !landing.buffer : frame && !buffer && frame->is_lent();
    }
    ofi::Span span(void* at, std::size_t bytes) const {
      return {at, bytes, region ? region->memory->description : nullptr};
    }
  };
  struct Waiting {
    Outgoing frame;
    std::uint32_t bulk = 0;  // see Tail; of a message: its header has been sent
  };
  struct Peer {
    bool greeted = false;                  // knows our endpoint
    bool heard = false;                    // over the fabric
    std::vector<std::uint64_t> addresses;  // by rail; none before it has said where it is
    bool is_known() const { return !addresses.empty(); }
    std::uint64_t key = 0, key_there = 0;  // of what it sends, and of what we send
    std::uint32_t bulk = 0;                // messages sent so far
    std::map<std::uint32_t, Operation*> offers;
    std::deque<Waiting> waiting;
    std::string trouble;  // that the fabric has with it
    Clock::time_point since;
  };

  struct Rail {
    std::unique_ptr<ofi::Device> device;
    std::unique_ptr<ofi::Regions> regions;
  };
  using Rails = std::vector<Rail>;

  OfiTransport(int rank, int world, Settings settings, const ofi::Wish& wish, Rails rails);
  static std::string opened(const ofi::Wish& wish, Rails& rails);
  static std::string disagreement(std::vector<std::string> all, Rails& rails);
  static std::unique_ptr<OfiTransport> create_with(Rails rails, int rank, int world, const Exchange& exchange,
                                                   const ofi::Wish& wish);

  void open_slots();
  void greet_neighbours();

  // sending
  void greet(int peer);
  void queue_up(int peer);
  void push(int peer);
  bool send_next(int peer, Waiting& next);
  bool send_whole(int peer, std::span<const std::byte> data, const Tail& tail,
                  const std::optional<Outgoing>& frame);
  Tail tail_of(int peer, const FrameHeader& header, std::uint32_t bulk) const;
  void trouble_with(int peer, const std::string& what);
  void look_at_troubles();

  // receiving and completing
  Operation& begin(Operation::Kind kind, int peer);
  void end(Operation& operation);
  bool describe(Operation& operation, const Buffer& buffer);
  void receive(Operation& operation);
  bool begin_receive(Operation& operation);
  bool look();
  bool look_at(ofi::Device& device);
  void look_at_failures(ofi::Device& device);
  bool may_sleep() const;
  void try_again();
  void finish(Operation& operation, std::size_t bytes);
  void failed(Operation& operation, const std::string& why);
  static bool arrived_intact(const Tail& tail, const void* data, std::size_t bytes);
  Buffer* frame_came(Buffer* buffer, std::size_t bytes);

  // large messages
  std::size_t rail_of(std::uint32_t bulk) const { return bulk % rails_.size(); }
  ofi::Regions::User region_of(Outgoing& frame, ofi::Regions& regions);
  bool send_bulk(int peer, Waiting& next);
  void bulk_comes(int peer, const Tail& tail, std::span<const std::byte> place);
  bool post_bulk(Operation& operation);
  void drop(Operation& operation);
  void bulk_came(Operation& operation);
  void offer_was_read(int peer, std::uint32_t number);
  void drop_offers(int peer);

  bool look_a_while(Lock& lock, Clock::duration limit);

  // ending
  void drop_waiting(int peer);
  void let_go_of_lent();
  bool uses_callers_memory() const;
  bool is_amid_bulk() const;
  void end_bulk();
  void abandon(Operation& operation);
  std::size_t unsent() const;
  bool all_have_left() const;
  void shut();

  const ofi::Wish wish_;
  const std::size_t slot_bytes_;  // of the longest frame that goes with its header
  std::vector<Peer> peers_;
  Buffer* arena_ = nullptr;  // with the slots, if they must be registered
  std::vector<Buffer> in_arena_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Operation*> spare_;
  std::vector<Operation*> late_;
  bool some_wait_ = false;  // frames that the provider did not take
  bool in_trouble_ = false;
  int damaged_from_ =
      -1;  // the rank whose frame was damaged, until that is reported, which closes the device
  unsigned looks_ = 0;
  std::atomic<bool> interrupted_{false};
  struct {
    Count sent, received, read, copied_to_send, copied_on_receipt;  // bytes of messages
    std::uint64_t registrations = 0;
  } counted_;
  Rails rails_;  // they use the operations; none once it is over
  // The first rail's; null once it is over.
  ofi::Device* device_;
  ofi::Regions* regions_;
  ofi::Regions::User of_arena_;
};

}  // namespace ringreduce
