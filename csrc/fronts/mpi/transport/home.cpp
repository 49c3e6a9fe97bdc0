#include "fronts/mpi/transport/home.h"

#include <sched.h>

#include <numeric>

#include "fronts/mpi/transport/library.h"
#include "fronts/mpi/transport/transport.h"

namespace ringreduce::mpi {
namespace {

constexpr int tags_each = 3;

int delete_home(MPI_Comm, int, void* home, void*) {
  delete static_cast<std::shared_ptr<Home>*>(home);
  return MPI_SUCCESS;
}

int keyval_of_homes() {
  static const int keyval = [] {
    int made = MPI_KEYVAL_INVALID;
    check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, delete_home, &made, nullptr),
          "MPI_Comm_create_keyval");
    return made;
  }();
  return keyval;
}

// MPI's collectives have no deadline, but waiting for their nonblocking forms can have one.
template <typename Begin>
bool ends_in_time(Clock::time_point deadline, const char* name, Begin begin) {
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const Turn turn;
    check(begin(&request), name);
  }
  for (int done = 0; true; sched_yield()) {
    {
      const Turn turn;
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    }
    if (done || Clock::now() > deadline) return done;
  }
}

}  // namespace

std::shared_ptr<Home> Home::of(MPI_Comm parent, Clock::duration timeout) {
  using Kept = std::shared_ptr<Home>;
  int between_groups = 0, rank = 0, size = 0, found = 0;
  MPI_Comm comm = MPI_COMM_NULL;
  {
    const Turn turn;
    check(MPI_Comm_test_inter(parent, &between_groups), "MPI_Comm_test_inter");
    if (between_groups) throw InvalidArgument("store must be an intracommunicator");
    Kept* kept = nullptr;
    check(MPI_Comm_get_attr(parent, keyval_of_homes(), &kept, &found), "MPI_Comm_get_attr");
    if (found) {
      (*kept)->timeout_ = timeout;
      return *kept;
    }
    check(MPI_Comm_rank(parent, &rank), "MPI_Comm_rank");
    check(MPI_Comm_size(parent, &size), "MPI_Comm_size");
  }
  const auto duplicate = [&](MPI_Request* request) { return MPI_Comm_idup(parent, &comm, request); };
  if (!ends_in_time(Clock::now() + timeout, "MPI_Comm_idup", duplicate)) {
    throw Failure(Cause::timeout, -1, "timed out waiting for all ranks of the MPI communicator to join");
  }
  const Turn turn;
  check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  auto home = std::make_shared<Home>(comm, rank, size, timeout);
  check(MPI_Comm_set_attr(parent, keyval_of_homes(), new Kept(home)), "MPI_Comm_set_attr");
  return home;
}

Home::Home(MPI_Comm comm, int rank, int size, Clock::duration timeout)
    : MpiJob(rank, size), comm_(comm), timeout_(timeout) {
  int* highest = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &highest, &found);
  const int tags = found ? *highest : 32767;  // which every library has
  numbers_ = tags / tags_each / size;
}

Home::~Home() {
  if (over() || kept_) return;
  MPI_Comm comm = comm_;
  MPI_Comm_free(&comm);
}

int Home::new_number() {
  const std::lock_guard lock(mutex_);
  if (next_ == numbers_) {
    throw Error("this MPI has tags for only " + std::to_string(numbers_) + " communicators per rank");
  }
  return rank * numbers_ + next_++;
}

Tags Home::tags_of(int number) const {
  const int first = number * tags_each;
  return {first, first + 1, first + 2};
}

std::vector<std::string> Home::exchange(const std::string& blob) {
  const auto deadline = Clock::now() + timeout_;
  const auto run = [&](const char* name, auto begin) {
    if (ends_in_time(deadline, name, begin)) return;
    throw Failure(Cause::timeout, -1, std::string("timed out while ranks were connecting, in ") + name);
  };
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<int> sizes(ranks), offsets(ranks);
  const int own = static_cast<int>(blob.size());
  run("MPI_Iallgather", [&](MPI_Request* request) {
    return MPI_Iallgather(&own, 1, MPI_INT, sizes.data(), 1, MPI_INT, comm_, request);
  });
  std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), 0);
  std::string all(static_cast<std::size_t>(offsets.back() + sizes.back()) + 1, 0);
  run("MPI_Iallgatherv", [&](MPI_Request* request) {
    return MPI_Iallgatherv(blob.data(), own, MPI_BYTE, all.data(), sizes.data(), offsets.data(), MPI_BYTE,
                           comm_, request);
  });
  std::vector<std::string> blobs;
  for (std::size_t r = 0; r < ranks; ++r) {
    blobs.push_back(all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(sizes[r])));
  }
  return blobs;
}

std::unique_ptr<RemoteTransport> Home::connect(int rank, int world, const Exchange& exchange) {
  return MpiTransport::create(std::static_pointer_cast<Home>(shared_from_this()), rank, world, exchange);
}

namespace {

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  return {text, static_cast<std::size_t>(length)};
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::shared_ptr<MpiJob> join(const void* communicator, const std::string& library, Clock::duration timeout) {
  const std::string version = library_version();
  if (!library.empty() && library.substr(0, version.size()) != version.substr(0, library.size())) {
    throw InvalidArgument("store is a communicator of another MPI library (" + first_line(library) +
                          ") than that of the mpicc on the PATH (" + first_line(version) + ")");
  }
  start();
  if (!may_call()) throw InvalidArgument("MPI may only be called from the thread that initialised it");
  const auto* parent = static_cast<const MPI_Comm*>(communicator);
  return Home::of(parent ? *parent : MPI_COMM_WORLD, timeout);
}

}  // namespace
}  // namespace ringreduce::mpi

// The only symbol that this library exports, for the engine.
extern "C" {
__attribute__((visibility("default"))) extern ringreduce::JoinMpi* const ringreduce_join_mpi;
ringreduce::JoinMpi* const ringreduce_join_mpi = ringreduce::mpi::join;
}
