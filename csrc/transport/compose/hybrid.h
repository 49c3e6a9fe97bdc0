// The transport between the ranks of several hosts: shared memory for those of this host, and another
// transport (tcp or mpi) for the rest. Each message takes the one that its peer needs; what concerns all
// ranks takes both.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "transport/memory/mapped.h"
#include "transport/remote/remote.h"

namespace ringreduce {

class HybridTransport : public Transport {
 public:
  // `inside` connects the ranks of this host, in their order; `across` all ranks. `hosts` numbers the host of
  // every rank. `connect` makes a transport for some of the ranks, as among() must, and makes `exchanges`
  // exchanges.
  using Connect = std::function<std::unique_ptr<Transport>(int rank, int world, const Exchange& exchange)>;
  HybridTransport(std::unique_ptr<MappedTransport> inside, std::unique_ptr<RemoteTransport> across,
                  std::vector<int> hosts, Connect connect, int exchanges);

  std::vector<TransportCount> counts() const override { return across_->counts(); }
  std::size_t footprint() const override { return inside_->footprint() + across_->footprint(); }

  bool send(int lane, Peers peers, const void* data, std::size_t bytes, std::uint64_t contract) override;
  std::byte* reserve(int lane, Peers peers, std::size_t bytes) override;
  void post(int lane, Peers peers, const std::byte* reserved, std::size_t bytes,
            std::uint64_t contract) override;
  void expect_to_send(int lane, std::size_t bytes) override { inside_->expect_to_send(lane, bytes); }
  int in_the_way(int lane, Peers peers) override;
  bool reachable(const void* data, std::size_t bytes) override { return inside_->reachable(data, bytes); }
  bool reachable_by(Peers peers) const override;
  bool lend(int lane, Peers peers, const std::byte* data, std::size_t bytes, std::uint64_t contract,
            std::byte* grant) override;
  void begin_access() override { inside_->begin_access(); }
  void end_access() override { inside_->end_access(); }
  bool flushed(int lane) override { return across_->flushed(lane); }
  std::uint32_t sent(int lane, int peer) const override { return way_to(peer).sent(lane, places_[peer]); }
  bool consumed(int lane, int peer, std::uint32_t sent) override {
    return way_to(peer).consumed(lane, places_[peer], sent);
  }
  bool poll(int lane, int peer, Message& message) override {
    return way_to(peer).poll(lane, places_[peer], message);
  }
  void release(int lane, int peer) override { way_to(peer).release(lane, places_[peer]); }
  void place(int lane, int peer, std::byte* where, std::size_t bytes, std::uint64_t contract) override {
    way_to(peer).place(lane, places_[peer], where, bytes, contract);
  }

  void begin_call(int lane, Traffic traffic) override { inside_->begin_call(lane, traffic); }
  void begin_slice(int lane) override { inside_->begin_slice(lane); }
  bool shares_core(int peer) const override { return is_inside(peer) && inside_->shares_core(places_[peer]); }
  bool pause(Backoff& backoff, int waiting_for) override;
  void wake() override {
    inside_->wake();
    across_->wake();
  }
  bool closed(int peer) const override { return way_to(peer).closed(places_[peer]); }
  void check() override {
    inside_->check();
    across_->check();
  }
  void check_background() override { across_->check_background(); }
  void abort(const Failure& failure) override {
    inside_->abort(failure);
    across_->abort(failure);
  }
  void record(const Record& record) override {
    inside_->record(record);
    across_->record(record);
  }
  std::vector<Record> records(int of_rank) override { return way_to(of_rank).records(places_[of_rank]); }
  std::vector<Record> known_records(int of_rank) override {
    return way_to(of_rank).known_records(places_[of_rank]);
  }
  std::optional<int> waits_for(int of_rank, Clock::duration lately) const override {
    return way_to(of_rank).waits_for(places_[of_rank], lately);
  }

  void show(const Board& board) override { across_->show(board); }
  Board board(int of_rank) override { return across_->board(of_rank); }
  bool is_gone(int peer) override {
    return across_->is_gone(peer) || (is_inside(peer) && inside_->is_gone(places_[peer]));
  }
  bool has_ended(int peer) override {
    return across_->has_ended(peer) || (is_inside(peer) && inside_->is_gone(places_[peer]));
  }
  Clock::duration last_message_takes() const override { return across_->last_message_takes(); }
  void await_boards(int waiting_for) override {
    inside_->say_whom_we_wait_for(waiting_for, Clock::now());
    across_->await_boards(waiting_for);
  }
  std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) override {
    return connect_(rank, world, exchange);
  }
  std::string way() const override { return across_->way(); }
  void close() override {
    across_->close();
    inside_->close();
  }
  void disown() override {
    across_->disown();
    inside_->disown();
  }

 private:
  // A message's peers: those on this host, by their places there, and the others.
  struct Split {
    std::vector<int> inside, across;
  };

  bool is_inside(int peer) const { return facts_.hosts[peer] == facts_.hosts[rank]; }
  Transport& way_to(int peer) const { return is_inside(peer) ? static_cast<Transport&>(*inside_) : *across_; }
  Split& split(int lane, Peers peers);

  const std::unique_ptr<MappedTransport> inside_;
  const std::unique_ptr<RemoteTransport> across_;
  std::vector<int> places_;  // by rank: its name in the transport that leads to it
  std::vector<int> here_;    // the ranks of this host, by place
  const Connect connect_;
  Split splits_[lanes];  // for the current message; one thread at a time uses a lane
  std::byte* reserved_across_[lanes] = {};
};

}  // namespace ringreduce
