#include "fronts/mpi/transport/library.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>

namespace ringreduce::mpi {
namespace {

struct State {
  std::mutex mutex;  // guards the users
  std::set<Transport*> users;
  pid_t process = 0;  // that joined
  std::atomic<bool> deserted{false};
};

// Never destroyed, because threads may still be waiting when the process ends.
State& state() {
  static State& one = *new State;
  return one;
}

// MPI_Finalize deletes the attributes of MPI_COMM_SELF first, while all of MPI still works.
int mpi_ends(MPI_Comm, int, void*, void*) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (Transport* user : s.users) user->close();
  access.over = true;
  return MPI_SUCCESS;
}

// In a forked child, MPI belongs to the parent. With a dead rank, MPI_Finalize would wait forever.
void finish() {
  State& s = state();
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized || s.deserted || s.process != getpid()) return;
  MPI_Finalize();
}

void watch_the_end() {
  State& s = state();
  if (s.process != 0) return;
  s.process = getpid();
  int keyval = MPI_KEYVAL_INVALID;
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, mpi_ends, &keyval, nullptr);
  MPI_Comm_set_attr(MPI_COMM_SELF, keyval, nullptr);
}

}  // namespace

void start() {
  State& s = state();
  int initialized = 0, finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) throw Error("MPI has been finalised: it can no longer send anything");
  MPI_Initialized(&initialized);
  if (!initialized) {
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &access.level) != MPI_SUCCESS) {
      throw Error("MPI cannot be initialised");
    }
    std::atexit(finish);
  }
  MPI_Query_thread(&access.level);
  watch_the_end();
}

void end_without_others() {
  state().deserted = true;
}

void enter(Transport* user) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.users.insert(user);
}

void leave(Transport* user) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.users.erase(user);
}

bool this_thread_may_call() {
  int main = 0;
  return MPI_Is_thread_main(&main) == MPI_SUCCESS && main;
}

void refuse() {
  const char* level = access.level == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED";
  throw InvalidArgument(std::string("MPI was initialised with ") + level +
                        ": the mpi transport needs MPI_THREAD_SERIALIZED for asynchronous calls, and for "
                        "calls from threads other than the one that initialised it");
}

// Open MPI yields in every test of a request if ranks outnumber cores or the user asks for it, and has a
// variable that says so. Other libraries have no such variable.
bool gives_core_away() {
  static const bool does = [] {
    int level = 0, index = 0, count = 0;
    MPI_T_cvar_handle handle = nullptr;
    char value[sizeof(std::uint64_t)] = "";  // a bool
    if (MPI_T_init_thread(MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) return false;
    if (MPI_T_cvar_get_index("mpi_yield_when_idle", &index) == MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
      if (count == 1) MPI_T_cvar_read(handle, value);
      MPI_T_cvar_handle_free(&handle);
    }
    MPI_T_finalize();
    return value[0] != 0;
  }();
  return does;
}

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

void check(int code, const char* function) {
  if (code != MPI_SUCCESS) throw Error(std::string(function) + ": " + error_text(code));
}

}  // namespace ringreduce::mpi
