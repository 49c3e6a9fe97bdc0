// The transport between ranks that share no memory: everything but the wire, which TcpTransport (sockets),
// OfiTransport (a fabric beside them) and MpiTransport (a user's MPI) add.
#pragma once

#include "transport/remote/frames.h"

namespace ringreduce {

class RemoteTransport : public Transport, protected Wire {
 public:
  RemoteTransport(const char* name, int rank, int world, bool oversubscribed)
      : Transport(rank, world,
                  {.name = name,
                   .oversubscribed = oversubscribed,
                   .capacity = Messages::window_bytes,
                   .queues = true}),
        frames_(*this, *this) {}

  std::size_t footprint() const override {
    const Lock lock(mutex_);
    return sizeof *this + pool_.bytes();
  }

  bool send(int lane, Peers peers, const void* data, std::size_t bytes, std::uint64_t contract) override {
    return locked(frames_.messages)->send(lane, peers, data, bytes, contract);
  }
  std::byte* reserve(int lane, Peers peers, std::size_t bytes) override {
    return locked(frames_.messages)->reserve(lane, peers, bytes);
  }
  void post(int lane, Peers peers, const std::byte*, std::size_t bytes, std::uint64_t contract) override {
    locked(frames_.messages)->post(lane, peers, bytes, contract);
  }
  int in_the_way(int lane, Peers peers) override { return locked(frames_.messages)->in_the_way(lane, peers); }
  bool has_room(int lane, Peers peers, std::size_t bytes) {
    return locked(frames_.messages)->has_room(lane, peers, bytes);
  }
  // All memory can be sent in place. Lent bytes are read until consumed(), which here means that they are on
  // the wire. Nothing is granted.
  bool reachable(const void*, std::size_t) override { return true; }
  bool reachable_by(Peers) const override { return true; }
  bool lend(int lane, Peers peers, const std::byte* data, std::size_t bytes, std::uint64_t contract,
            std::byte*) override {
    return locked(frames_.messages)->lend(lane, peers, data, bytes, contract);
  }
  // No rank sees what another one has lent.
  void begin_access() override {}
  void end_access() override {}
  std::uint32_t sent(int lane, int peer) const override { return locked(frames_.messages)->sent(lane, peer); }
  bool consumed(int lane, int peer, std::uint32_t sent) override {
    return locked(frames_.messages)->consumed(lane, peer, sent);
  }
  bool flushed(int lane) override { return frames_.messages.flushed(lane); }
  bool poll(int lane, int peer, Message& message) override;
  void place(int lane, int peer, std::byte* where, std::size_t bytes, std::uint64_t contract) override {
    locked(frames_.messages)->place(lane, peer, where, bytes, contract);
  }
  void release(int lane, int peer) override { locked(frames_.messages)->release(lane, peer); }

  bool pause(Backoff& backoff, int waiting_for) override;
  // Moves what can move without waiting, for callers that wait for something else.
  bool pump();
  void wake() override;
  void say_whom_we_wait_for(int peer) { control_.say_whom_we_wait_for(peer); }

  bool closed(int peer) const override { return locked(control_)->closed(peer); }
  void abort(const Failure& failure) override;
  void record(const Record& record) override { locked(control_)->record(record); }
  std::vector<Record> records(int of_rank) override;
  std::vector<Record> known_records(int of_rank) override { return locked(control_)->records(of_rank); }
  std::optional<int> waits_for(int of_rank, Clock::duration lately) const override {
    return locked(control_)->waits_for(of_rank, lately);
  }
  void show(const Board& board) override { locked(control_)->show(board); }
  Board board(int of_rank) override { return locked(control_)->board(of_rank); }
  bool is_gone(int peer) override { return locked(control_)->is_gone(peer); }
  bool has_ended(int peer) override { return locked(control_)->has_ended(peer); }
  // For a dead rank's control messages, which a rank that has received them passes on.
  Clock::duration last_message_takes() const override { return std::chrono::milliseconds(300); }
  void await_boards(int waiting_for) override;

 protected:
  // Lets this thread, or another one on behalf of all, serve the wire.
  void sleep(Lock& lock, Clock::duration limit);

  mutable BriefLock mutex_;
  // Under the lock.
  Frames frames_;
  ControlMessages& control_ = frames_.control;
  Pool& pool_ = frames_.outbox.pool;

 private:
  // A part, locked until the expression ends.
  template <typename Part>
  struct Locked {
    const Lock lock;
    Part& part;
    Part* operator->() { return &part; }
  };
  template <typename Part>
  Locked<Part> locked(Part& part) const {
    return {Lock(mutex_), part};
  }
  void answer_questions(Lock& lock);
  void let_others_look();

  bool driving_ = false;  // a thread is in progress() without the lock
  int followers_ = 0;     // threads that wait for that one
  std::atomic<std::uint32_t> moved_{0};
};

}  // namespace ringreduce
