// The transport between ranks that can read each other's memory. Subclasses add how to obtain a segment, how
// to name a lent buffer to a peer, and how to learn that a peer is dead: LocalTransport (threads of one
// process) and ShmTransport (processes of one host).
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/interface/orders.h"
#include "transport/interface/transport.h"
#include "transport/memory/channel.h"

namespace ringreduce {

class MappedTransport : public Transport {
 public:
  // `name`: of the transport; `segments`: by rank, including this rank's own; `cores`: the number of cores
  // that the ranks share; `names`: the ranks' names in errors, if they belong to a larger group.
  MappedTransport(const char* name, int rank, int world, std::vector<Segment> segments, int cores,
                  std::vector<int> names = {});

  static std::size_t capacity_for(int world);

  std::size_t footprint() const override { return layout_.bytes; }

  bool send(int lane, Peers peers, const void* data, std::size_t bytes, std::uint64_t contract) override;
  std::byte* reserve(int lane, Peers peers, std::size_t bytes) override;
  void post(int lane, Peers peers, const std::byte* reserved, std::size_t bytes,
            std::uint64_t contract) override;
  void expect_to_send(int lane, std::size_t bytes) override;
  int in_the_way(int lane, Peers peers) override;
  bool lend(int lane, Peers peers, const std::byte* data, std::size_t bytes, std::uint64_t contract,
            std::byte* grant) override;
  void begin_access() override;
  void end_access() override { header(rank).accesses.fetch_sub(1, order::access_ended); }
  std::uint32_t sent(int lane, int peer) const override { return out(lane, peer).sent; }
  bool consumed(int lane, int peer, std::uint32_t sent) override;
  bool poll(int lane, int peer, Message& message) override;
  void release(int lane, int peer) override;

  void fill_broadcast_slot(const void* data, std::size_t bytes, std::uint64_t contract) override;
  bool read_broadcast_slot(int peer, Message& message) override;
  int read_broadcast_slots(Peers peers, int first, std::size_t bytes, std::uint64_t contract,
                           const void** places) override;

  void begin_call(int lane, Traffic traffic) override {
    Arena& arena = arenas_[lane];
    arena.begun = arena.head;
    arena.traffic = traffic;
    begin_slice(lane);
  }
  void begin_slice(int lane) override { arenas_[lane].kept = nothing; }

  bool shares_core(int peer) const override {
    return spins_ == 0 && doorbell(peer).core.load(order::relaxed) == core_.load(order::relaxed);
  }
  bool pause(Backoff& backoff, int waiting_for) override;
  void wake() override { ring(rank); }
  bool closed(int peer) const override { return header(peer).closed.load(order::closed_seen) != 0; }
  void check() override;
  void abort(const Failure& failure) override;
  void record(const Record& record) override;
  std::vector<Record> records(int of_rank) override;

  // `name`: as in errors. This rank may wait for one outside this group.
  void say_whom_we_wait_for(int name, Clock::time_point now);
  std::optional<int> waits_for(int of_rank, Clock::duration lately) const override;

  void show(const Board& board) override;
  Board board(int of_rank) override;
  bool is_gone(int peer) override { return !alive(peer) || closed(peer); }
  void await_boards(int waiting_for) override;
  void close() override;

 protected:
  virtual std::optional<Location> locate(const void* data, std::size_t bytes) = 0;
  virtual std::byte* resolve(int peer, Location place) = 0;
  // Whether peers can write what they are lent, with the values that it has.
  virtual bool can_be_taken() const = 0;
  virtual bool alive(int peer) = 0;
  // How long a rank that fails waits for a peer's access to end. A stopped process does not end it.
  virtual Clock::duration longest_access() const { return std::chrono::milliseconds(100); }
  int name_of(int peer) const { return names_.empty() ? peer : names_[peer]; }
  std::string in_words(int peer) const { return "rank " + std::to_string(name_of(peer)); }

 private:
  static constexpr std::uint64_t nothing = ~std::uint64_t{0};
  static constexpr std::size_t longest_part = 1 << 20;  // of an arena, for the longest payloads

  // The sending end towards one peer on one lane.
  struct Out {
    Slot* slots = nullptr;
    std::uint32_t mask = 0;                              // the number of slots - 1
    std::atomic<std::uint32_t>* acknowledged = nullptr;  // in the peer's segment
    std::uint32_t sent = 0;
    std::uint32_t known = 0;                                    // the last value read of *acknowledged
    std::uint64_t arena_start[SegmentLayout::most_slots] = {};  // of each slot's payload, or `nothing`
    Rewriting rewriting;             // of what this lane has lent to this peer alone
    std::uint32_t sample_asked = 0;  // the message with which the peer reads the sample; 0: none
  };
  struct In {
    Slot* slots = nullptr;
    std::uint32_t mask = 0;
    std::atomic<std::uint32_t>* acknowledge = nullptr;
    std::byte* arena = nullptr;
    std::uint32_t received = 0;
    std::size_t populated = 0;        // bytes of the arena that are mapped
    std::uint64_t granted = nothing;  // the place in the arena that the latest grant allows to write
  };
  // A lane's ring of staged payloads. Positions only grow; the place is position % capacity.
  struct Arena {
    std::byte* base = nullptr;
    std::size_t capacity = 0;
    std::uint64_t head = 0;
    std::uint64_t tail = 0;   // all before it has been consumed
    std::uint64_t begun = 0;  // the head when the latest call began
    Traffic traffic = Traffic::any;
    std::uint64_t kept = nothing;  // the first payload of the slice that a peer may answer in its place
    std::size_t populated = 0;     // as in In
    std::uint64_t expected = 0;    // the head when the next message was last expected
    alignas(cache_line) std::byte small[cache_line];
  };

  Out& out(int lane, int peer) { return outs_[lane * world + peer]; }
  const Out& out(int lane, int peer) const { return outs_[lane * world + peer]; }
  In& in(int lane, int peer) { return ins_[lane * world + peer]; }
  Header& header(int of_rank) const { return layout_.header(segments_[of_rank].get()); }
  Doorbell& doorbell(int of_rank) const { return layout_.doorbell_of(segments_[0].get(), of_rank); }
  bool has_slot(Out& o);
  bool has_slots(int lane, Peers peers);
  int reader_of(int lane, std::uint64_t payload) const;
  std::size_t part_for(int lane, std::size_t bytes, bool at_first) const;
  std::size_t round_for(const Arena& arena, std::size_t bytes) const;
  std::uint64_t oldest_payload(int lane);
  void map_payload(In& from, int lane, const Slot& slot);
  bool samples_rewriting(int lane, int peer);
  template <typename Fill>
  void publish(int lane, Peers peers, SlotKind kind, std::size_t bytes, std::uint64_t contract,
               std::uint64_t arena_start, Fill fill);
  void ring(int peer);
  bool a_peer_is_late() const;
  bool runs_elsewhere(int peer) const;
  std::atomic<std::int64_t>& leave_core(Clock::time_point now);
  void back_on_core(Clock::time_point now);
  Clock::duration give_way();
  void crowded(Clock::time_point now);
  void sleep(Backoff& backoff);
  void check_peers(Backoff& backoff, int waiting_for);
  void check_agreement();
  void hear_abort(std::uint64_t word);
  void await_accesses();

  SegmentLayout layout_;
  std::vector<Segment> segments_;
  std::vector<Out> outs_;
  std::vector<In> ins_;
  std::vector<Arena> arenas_;
  const bool fetches_;   // a copy fetches the lines that it overwrites
  std::uint32_t spins_;  // before the first yield; none where ranks outnumber cores
  int patience_;         // factor of the time before a yielding thread sleeps, for ranks that share a core
  // Observations of this rank's threads while they wait, shared by all of them.
  std::atomic<std::int32_t> core_{0};
  std::atomic<Clock::time_point> resumed_{};  // the end of the last yield
  std::atomic<bool> crowded_{false};          // others want the cores, until a time of Clock
  std::atomic<Clock::time_point> crowded_until_{};
  std::atomic<Clock::duration> crowded_span_{};
  std::atomic<int> absences_{0};
  std::uint32_t told_ = 0;  // the number of times that all ranks have told
  const std::vector<int> names_;
};

}  // namespace ringreduce
