// The library as fronts outside of it see it, which are compiled later, elsewhere and by other compilers: a
// communicator behind an interface that does not depend on the C++ library's string ABI (torch had the old
// one until 2.6), whose failures are all of one type.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/planning/call.h"

namespace ringreduce {

class Communicator;

enum class Outcome : std::uint8_t {
  refused,  // an argument that cannot be served; the group stays usable
  failed,   // the group, by somebody's fault
  timeout,  // the same, because somebody did not come
  closed,
  interrupted,  // by the check of set_interrupt_check()
  other,
};

// What went wrong, and by which rank's fault (-1: nobody's in particular).
class Trouble : public std::exception {
 public:
  Trouble(Outcome outcome, int culprit, const char* text);
  const char* what() const noexcept override { return text_->data(); }

  Outcome outcome;
  int culprit;

 private:
  std::shared_ptr<const std::vector<char>> text_;
};

// How ranks find each other: every rank gives a blob and gets everybody's, in rank order.
class Meeting {
 public:
  using Blob = std::vector<char>;
  virtual ~Meeting() = default;
  virtual std::vector<Blob> exchange(const Blob& blob) = 0;
};

// Told once, in the thread that ends it, how something asynchronous ended. `problem`, if any, is a Trouble.
// `source` is the rank that a message came from, else -1. Must not throw.
using Completion = std::function<void(const std::exception_ptr& problem, int source)>;

// A rank's end of a group of processes. All of it may be used from several threads. Everything that fails
// throws Trouble.
class Group {
 public:
  using Duration = std::chrono::steady_clock::duration;
  struct Settings {
    Duration timeout{};
    std::optional<bool> reproducible;  // none: as RINGREDUCE_REPRODUCIBLE says
    // Called a few thousand times a second in threads that wait in run(), instead of the check for
    // interrupts: keeps something else of theirs going meanwhile. Must not throw.
    void (*poll)() = nullptr;
    bool shared_memory = false;  // or none: no other transport takes its place
  };
  Group(int rank, int world, Meeting& meeting, const Settings& settings);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void run(const Call& call);
  void run(Steps& steps);
  void submit(std::unique_ptr<Steps> steps, Completion completion);
  // A call of a GPU's arrays, launched on a stream of that GPU's: see Communicator::enqueue.
  void enqueue(const Call& call, void* stream);
  void submit(const Transfer& transfer, Completion completion);

  // Whether there are more ranks than cores; all ranks say the same.
  bool oversubscribed() const;

  // The rank that has begun the fewest collectives, if that is fewer than this rank has; else -1.
  int latest() const;

  // Waits for what is under way, then leaves.
  void close();
  // Leaves at once: what is under way ends here with `closed`, and elsewhere with `peer_lost`.
  void leave();

 private:
  const std::unique_ptr<Communicator> communicator_;
};

// Lines of the log, of level info: whether anybody reads them, and one of them.
bool says();
void say(int rank, const char* text);

// Memory that ranks of one host reach in place, so that collectives need no staging copy. 64-byte aligned,
// zeroed. Throws std::bad_alloc.
void* allocate_shared(std::size_t bytes);
void free_shared(void* memory);

// The same for programs that allocate and free often: from a cache, on a page boundary, not zeroed. Null
// where there is no more; false if it is not the start of a block.
void* allocate_block(std::size_t bytes);
bool free_block(void* memory);

// Called now and then during long waits, in the waiting thread; true breaks the wait off.
void set_interrupt_check(bool (*check)());

}  // namespace ringreduce
