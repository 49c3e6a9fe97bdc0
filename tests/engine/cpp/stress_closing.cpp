// What a wait makes of peers that have closed, and what becomes of messages in pieces.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "schedule/catalogue.h"
#include "stress.h"
#include "transport/interface/wait.h"
#include "transport/memory/local.h"
#include "transport/remote/remote.h"

namespace stress {
namespace {

// A wire on which frames lie until they are called for, in whatever order.
class SlowWire : public RemoteTransport {
 public:
  explicit SlowWire(int rank) : RemoteTransport("slow wire", rank, 2, true) {}
  ~SlowWire() override {
    for (const Outgoing& frame : under_way_) frames_.written(1 - rank, frame);
    frames_.messages.forget();
  }

  std::unique_ptr<Transport> among(int, int, const Exchange&) override { return nullptr; }
  void close() override {
    const Lock lock(mutex_);
    control_.say_bye();
  }
  bool has_frames() const { return !under_way_.empty(); }
  void hand_over_the_latest(SlowWire& to) {
    const Outgoing frame = under_way_.back();
    under_way_.pop_back();
    const Landing landing = to.frames_.land(rank, frame.header);
    if (frame.header.bytes > 0) std::memcpy(landing.at, frame.data, frame.header.bytes);
    to.frames_.landed(rank, frame.header, landing);
    frames_.written(to.rank, frame);
  }

 private:
  void dispatch(int peer) override {
    constexpr std::size_t piece = 1000;  // bytes
    for (Outgoing frame; frames_.outbox.take(peer, frame, piece);) under_way_.push_back(frame);
  }
  bool progress(Lock&, Clock::duration) override { return false; }
  void interrupt() override {}
  void look_after(int) override {}
  void withdraw() override {}
  bool connected(int) const override { return true; }

  std::vector<Outgoing> under_way_;
};

// Who fails and closes is not taken for one that just closed, whatever gets to a peer first.
void bye_before_abort() {
  SlowWire failing(0), waiting(1);
  failing.abort(Failure(Cause::peer_lost, 1, "the cause"));
  failing.close();
  failing.hand_over_the_latest(waiting);
  require(waiting.closed(0), "that a rank has closed");
  try {
    waiting.check();
  } catch (const Failure& failure) {
    require(failure.what() == std::string("the cause"), "why a rank has failed");
    return;
  }
  require(false, "that a rank which closed had failed");
}

// Pieces travel on several streams, and the first may be the last to come.
void pieces_in_any_order() {
  SlowWire sending(0), receiving(1);
  const std::array<int, 1> to{1};
  const Floats sent = filled(0, 0, 1200);
  const std::size_t bytes = sent.size() * sizeof(float);
  const auto* data = reinterpret_cast<const std::byte*>(sent.data());
  Message message;
  const auto hand_over_all = [&] {
    for (; sending.has_frames(); sending.hand_over_the_latest(receiving)) {
      require(!receiving.poll(0, 0, message), "that a message has come when all of its pieces have");
      require(!sending.flushed(0), "that a message is written when all of its pieces are");
    }
    require(sending.flushed(0), "that all is written");
    require(receiving.poll(0, 0, message) && message.bytes == bytes, "that a message has come");
  };
  require(sending.send(0, to, data, bytes, 7), "that there is room");
  hand_over_all();
  require(std::memcmp(message.data, data, bytes) == 0, "the bytes of a message in pieces");
  receiving.release(0, 0);
  Floats placed(sent.size());
  receiving.place(0, 0, reinterpret_cast<std::byte*>(placed.data()), bytes, 7);
  require(sending.lend(0, to, data, bytes, 7, nullptr), "that there is room");
  hand_over_all();
  require(message.delivered && placed == sent, "the bytes of a message in pieces, in their place");
}

// The caller takes its memory back while pieces are on their way.
void pieces_after_a_failure() {
  SlowWire sending(0), receiving(1);
  const std::array<int, 1> to{1};
  const Floats sent = filled(0, 0, 1200);
  Floats placed(sent.size());
  const std::size_t bytes = sent.size() * sizeof(float);
  receiving.place(0, 0, reinterpret_cast<std::byte*>(placed.data()), bytes, 7);
  require(sending.lend(0, to, reinterpret_cast<const std::byte*>(sent.data()), bytes, 7, nullptr), "room");
  sending.hand_over_the_latest(receiving);
  receiving.abort(Failure(Cause::peer_lost, 0, "the cause"));
  const Floats then = placed;
  while (sending.has_frames()) sending.hand_over_the_latest(receiving);
  require(placed == then && placed != sent, "that a failed call leaves the caller's memory alone");
}

// A call of one rank's, made ready.
struct Ready {
  Ready(const char* algorithm, int rank, int world, int root, float* data, std::size_t count)
      : program(lower(make_schedule(Collective::reduce, algorithm, {world, rank, root}), 1)) {
    plan.program = &program;
    plan.geometry = make_geometry(program, sizeof(float), count, ~std::size_t{0} >> 8, std::size_t{1} << 20);
    plan.last_slice.resolve(program, plan.geometry, 0);
    plan.combine = plan.last = combine_for(DType::float32, Op::sum);
    task.plan = &plan;
    task.input = task.output = reinterpret_cast<std::byte*>(data);
    task.bytes = count * sizeof(float);
    task.input_reachable = task.output_reachable = true;
    task.contract = 1;
  }

  const Program program;
  Plan plan;
  Task task;
};

// A rank lends its values, is interrupted, and changes them before its peer has read them.
void lent_by_who_is_interrupted() {
  constexpr int lender = 0, reader = 1;
  const auto ranks = LocalTransport::group(2);
  Floats theirs(10'000, 1), own(10'000, 2);
  Ready sends("tree", lender, 2, reader, theirs.data(), theirs.size());
  Ready reads("tree", reader, 2, reader, own.data(), own.size());
  Executor sending(*ranks[lender]), reading(*ranks[reader]);
  reading.start(reads.task);
  reading.advance();
  sending.start(sends.task);
  sending.advance();
  require(!sending.done(), "that values are lent until they have been read");
  ranks[lender]->abort(Failure(Cause::peer_lost, lender, "interrupted"));
  std::fill(theirs.begin(), theirs.end(), -1.0f);
  try {
    while (!reading.done()) reading.advance();
  } catch (const Failure& failure) {
    return require(failure.culprit == lender, "who was interrupted");
  }
  require(false, "that what was read from an interrupted rank is no result");
}

// Values that their owner gives back to the system, so that whoever reads them afterwards is killed.
class Mapping {
 public:
  explicit Mapping(std::size_t count) : bytes_(count * sizeof(float)) {
    memory_ =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    require(memory_ != MAP_FAILED, "memory");
  }
  ~Mapping() { munmap(memory_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  float* data() const { return static_cast<float*>(memory_); }

 private:
  const std::size_t bytes_;
  void* memory_;
};

// A rank is interrupted while its peer reads what it has lent.
void lent_to_who_is_reading() {
  constexpr int lender = 0, reader = 1;
  constexpr std::size_t count = 250'000;
  Floats own(count, 2);
  Ready reads("tree", reader, 2, reader, own.data(), count);
  for (int repeat = 0; repeat < 100; ++repeat) {
    const auto ranks = LocalTransport::group(2);
    auto lent = std::make_unique<Mapping>(count);
    Ready sends("tree", lender, 2, reader, lent->data(), count);
    Executor sending(*ranks[lender]), reading(*ranks[reader]);
    sending.start(sends.task);
    sending.advance();
    reading.start(reads.task);
    std::atomic<bool> begins{false};
    std::thread other([&] {
      begins = true;
      try {
        while (!reading.done()) reading.advance();
      } catch (const Failure& failure) {
        require(failure.culprit == lender, "who was interrupted");
      }
    });
    while (!begins) relax();
    for (int i = 0; i < 20 * repeat; ++i) relax();
    ranks[lender]->abort(Failure(Cause::peer_lost, lender, "interrupted"));
    lent.reset();
    other.join();
  }
}

// A rank waits for room that somebody else takes up who has closed.
void room_taken_by_who_has_closed() {
  const auto ranks = LocalTransport::group(3);
  const std::vector<std::byte> message(std::size_t{300} << 10);
  const std::array<int, 1> closed{1}, alive{2};
  while (ranks[0]->send(0, closed, message.data(), message.size(), 1)) {
  }
  require(!ranks[0]->send(0, alive, message.data(), message.size(), 1), "that a lane's memory is one ring");
  require(ranks[0]->in_the_way(0, alive) == 1, "who has not read what takes up the room");
}

}  // namespace

// Each peer that has closed is looked at twice, for it may have sent before. That another had closed, too,
// says nothing of it.
void closing() {
  bye_before_abort();
  pieces_in_any_order();
  pieces_after_a_failure();
  lent_by_who_is_interrupted();
  lent_to_who_is_reading();
  room_taken_by_who_has_closed();
  const auto ranks = LocalTransport::group(3);
  for (const int peer : {1, 2}) ranks[peer]->close();
  Backoff backoff;
  for (const int peer : {1, 2}) {
    while (backoff.closed_peer != peer) ranks[0]->pause(backoff, peer);
  }
  try {
    while (true) ranks[0]->pause(backoff, 2);
  } catch (const Failure& failure) {
    require(failure.cause == Cause::peer_lost && failure.culprit == 2, "who is waited for and has closed");
  }
}

}  // namespace stress
