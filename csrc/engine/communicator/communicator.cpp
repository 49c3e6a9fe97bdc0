#include "engine/communicator/communicator.h"

#include <algorithm>
#include <thread>

namespace ringreduce {

Communicator::Communicator(std::unique_ptr<Transport> transport, const Options& options)
    : calls_(std::move(transport), options),
      progress_(calls_),
      device_(Devices::found()
                  ? Devices::get().calls_of(
                        calls_, progress_, [this](const std::string& blob) { return exchange(blob); },
                        [this] { return split(0, rank()); })
                  : nullptr) {}

Communicator::~Communicator() {
  leave();
  if (calls_.ours()) return;
  // In a forked child, the group and the threads belong to the parent.
  calls_.transport->disown();
  for (const auto& transport : left_behind_) transport->disown();
  progress_.disown();
  if (device_) device_->disown();
}

DeviceCalls& Communicator::device() {
  if (!device_) Devices::get();  // throws
  return *device_;
}

bool Communicator::lacks_a_rank() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && calls_.transport->is_gone(peer)) return true;
  }
  return false;
}

int Communicator::transfer(const Transfer& transfer) {
  usable();
  int peer = transfer.peer;
  PointToPoint& messages = calls_.messages;
  calls_.guarded(
      [&] {
        calls_.transport->check();
        if (transfer.sends && messages.send_at_once(transfer)) return calls_.flush(transfer);
        const auto request = messages.enqueue(transfer);
        calls_.wait_for(*request);
        if (transfer.sends) calls_.flush(transfer);
        if (messages.fetching()) progress_.wake();
        if (request->problem) std::rethrow_exception(request->problem);
        peer = request->peer;
      },
      &transfer);
  return peer;
}

void Communicator::swap(const Transfer& send, const Transfer& receive) {
  usable();
  calls_.guarded([&] {
    const auto coming = calls_.messages.enqueue(receive);
    const auto going = calls_.messages.enqueue(send);
    for (const auto& request : {coming, going}) {
      calls_.wait_for(*request);
      if (request->problem) std::rethrow_exception(request->problem);
    }
    calls_.flush(send);
  });
}

int Communicator::add_schedule(const std::string& name, Schedule schedule, int heaviest_round, Order order) {
  const auto turn = calls_.take_turn(calls_.turn, "an algorithm's first call", {});
  return calls_.planner.add(name, std::move(schedule), heaviest_round, order);
}

void Communicator::close() {
  if (calls_.ours() && !closed()) {
    try {
      const auto deadline = Clock::now() + options().timeout;
      while (!calls_.is_over() && (!progress_.is_idle() || (!calls_.flushed() && Clock::now() < deadline))) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        calls_.poll();
      }
      if (device_) device_->finish();
    } catch (...) {
      leave();  // interrupted: others must not wait for this rank
      throw;
    }
  }
  leave();
}

void Communicator::leave() {
  if (!calls_.ours() || !calls_.transport->fate().close()) return;
  calls_.transport->wake();
  progress_.stop();
  if (device_) device_->leave();
  calls_.published.over(PublishedState::State::closed);
  const bool stays =
      std::find(left_behind_.begin(), left_behind_.end(), calls_.transport) != left_behind_.end();
  if (!stays) calls_.transport->close();
  left_behind_.clear();  // the last owner closes them
  calls_.messages.drop(std::make_exception_ptr(Closed("the communicator was closed")));
  calls_.say(rank() == 0 ? log::Level::info : log::Level::debug, "the group is closed");
}

}  // namespace ringreduce
