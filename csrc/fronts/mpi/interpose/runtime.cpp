#include "fronts/mpi/interpose/runtime.h"

#include <atomic>
#include <mutex>
#include <vector>

#include "fronts/mpi/interpose/background.h"
#include "fronts/mpi/interpose/counts.h"
#include "fronts/mpi/interpose/presence.h"
#include "fronts/mpi/interpose/settings.h"

namespace ringreduce::mpi {
namespace {

enum class Phase : std::uint8_t { before, running, over };

struct Runtime {
  std::mutex mutex;  // guards what follows, except the atomics
  std::atomic<Phase> phase{Phase::before};
  std::atomic<unsigned long> gone{1};
  int keyval = MPI_KEYVAL_INVALID;
  int end_keyval = MPI_KEYVAL_INVALID;
  bool threads = false;
  int world_rank = 0;
  std::vector<Seat*> seats;
  std::vector<Seat*> retired;  // of communicators that are gone, with calls still running

  std::mutex progress_mutex;
  MPI_Request never = MPI_REQUEST_NULL;  // a request that completes only at the end
};

// Never destroyed, because other libraries may still call MPI when the process ends.
Runtime& runtime() {
  static Runtime& one = *new Runtime;
  return one;
}

void remove_seat(Seat* seat) {
  seat->close();
  delete seat;
}

// The communicator is being freed, perhaps with nonblocking calls running, and must not wait for them.
int seat_is_gone(MPI_Comm, int, void* value, void*) {
  Runtime& all = runtime();
  auto* seat = static_cast<Seat*>(value);
  all.gone.fetch_add(1);
  std::lock_guard lock(all.mutex);
  std::erase(all.seats, seat);
  std::erase_if(all.retired, [](Seat* old) {
    if (old->busy()) return false;
    remove_seat(old);
    return true;
  });
  if (seat->busy()) {
    all.retired.push_back(seat);
  } else {
    remove_seat(seat);
  }
  return MPI_SUCCESS;
}

void stop_driving_progress(Runtime& all) {
  std::lock_guard lock(all.progress_mutex);
  if (all.never != MPI_REQUEST_NULL) drop_request(&all.never);
}

// MPI_Finalize deletes the attributes of MPI_COMM_SELF first, while all of MPI still works.
int mpi_ends(MPI_Comm, int, void*, void*) {
  Runtime& all = runtime();
  std::lock_guard lock(all.mutex);
  all.phase = Phase::over;
  all.gone.fetch_add(1);
  for (Seat* seat : all.seats) seat->close();  // those of communicators that still exist
  for (Seat* seat : all.retired) remove_seat(seat);
  all.retired.clear();
  stop_driving_progress(all);
  report_counts(all.world_rank);
  return MPI_SUCCESS;
}

// Only in a process that has called MPI_Init, because others have no MPI_COMM_SELF.
void begin(Runtime& all) {
  std::lock_guard lock(all.mutex);
  int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE;
  PMPI_Initialized(&initialized);
  PMPI_Finalized(&finalized);
  if (all.phase != Phase::before || !initialized || finalized) return;
  PMPI_Query_thread(&level);
  all.threads = level == MPI_THREAD_MULTIPLE;
  PMPI_Comm_rank(MPI_COMM_WORLD, &all.world_rank);
  if (mode() != Mode::off) show_presence(all.world_rank);
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, seat_is_gone, &all.keyval, nullptr);
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, mpi_ends, &all.end_keyval, nullptr);
  PMPI_Comm_set_attr(MPI_COMM_SELF, all.end_keyval, nullptr);
  start_request(nullptr, &all.never);
  all.phase = Phase::running;
}

// Whether calls may be served: MPI runs, and the interposer is not switched off. The first call also
// initialises it.
bool running(Runtime& all) {
  if (all.phase == Phase::before) begin(all);
  return all.phase == Phase::running && mode() != Mode::off;
}

// Creates it if there is none.
Seat* attached_seat(Runtime& all, MPI_Comm comm) {
  Seat* seat = nullptr;
  int found = 0;
  if (PMPI_Comm_get_attr(comm, all.keyval, static_cast<void*>(&seat), &found) != MPI_SUCCESS) return nullptr;
  if (found) return seat;
  seat = new Seat(comm);
  if (PMPI_Comm_set_attr(comm, all.keyval, seat) != MPI_SUCCESS) {
    delete seat;
    return nullptr;
  }
  std::lock_guard lock(all.mutex);
  all.seats.push_back(seat);
  return seat;
}

}  // namespace

// A thread usually uses the same communicator again.
Seat* seat_of(MPI_Comm comm) {
  struct Memo {
    MPI_Comm comm{};
    unsigned long gone = 0;  // a thread's memo is valid while no seat has gone since
    Seat* seat = nullptr;
  };
  // Loaded with the program, so that its address is known.
  [[gnu::tls_model("initial-exec")]] thread_local Memo memo;
  Runtime& all = runtime();
  const unsigned long gone = all.gone.load(std::memory_order_acquire);
  if (memo.seat && memo.comm == comm && memo.gone == gone) return memo.seat;
  if (comm == MPI_COMM_NULL || !running(all)) return nullptr;
  memo = {comm, gone, attached_seat(all, comm)};
  return memo.seat;
}

bool threads_allowed() {
  return runtime().threads;
}

// Testing an incomplete request makes both Open MPI and MPICH move all their operations on. If another thread
// is doing so, that is enough.
void drive_progress() {
  Runtime& all = runtime();
  std::unique_lock lock(all.progress_mutex, std::try_to_lock);
  if (!lock.owns_lock() || all.never == MPI_REQUEST_NULL) return;
  int over = 0;
  PMPI_Test(&all.never, &over, MPI_STATUS_IGNORE);
}

}  // namespace ringreduce::mpi
