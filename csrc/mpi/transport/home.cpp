#include "mpi/transport/home.h"

#include <sched.h>

#include <numeric>

#include "mpi/transport/library.h"
#include "mpi/transport/transport.h"

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

// MPI's collectives know no deadline, and their nonblocking forms do not need one.
bool ended_in_time(MPI_Request& request, Clock::time_point deadline) {
  for (int done = 0;;) {
    {
      bool held = false;
      const Turn turn(held);
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    }
    if (done) return true;
    if (Clock::now() > deadline) return false;
    sched_yield();
  }
}

}  // namespace

std::shared_ptr<Home> Home::of(MPI_Comm parent, Clock::duration timeout) {
  using Kept = std::shared_ptr<Home>;
  int between_groups = 0, rank = 0, size = 0, found = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  {
    bool held = false;
    const Turn turn(held);
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
    check(MPI_Comm_idup(parent, &comm, &request), "MPI_Comm_idup");
  }
  if (!ended_in_time(request, Clock::now() + timeout)) {
    throw Failure(Cause::timeout, -1, "timed out waiting for all ranks of the MPI communicator to join");
  }
  bool held = false;
  const Turn turn(held);
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
  const int tags = found ? *highest : 32767;  // which all libraries have
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
    throw Error("this MPI has tags for " + std::to_string(numbers_) + " communicators per rank, and no more");
  }
  return rank * numbers_ + next_++;
}

Tags Home::tags_of(int number) const {
  const int first = number * tags_each;
  return {first, first + 1, first + 2};
}

void Home::wait(MPI_Request& request, Clock::time_point deadline, const char* what) const {
  if (ended_in_time(request, deadline)) return;
  throw Failure(Cause::timeout, -1, std::string("timed out while ranks were connecting, in ") + what);
}

std::vector<std::string> Home::exchange(const std::string& blob) {
  const auto deadline = Clock::now() + timeout_;
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<int> sizes(ranks), offsets(ranks);
  const int own = static_cast<int>(blob.size());
  MPI_Request request = MPI_REQUEST_NULL;
  {
    bool held = false;
    const Turn turn(held);
    check(MPI_Iallgather(&own, 1, MPI_INT, sizes.data(), 1, MPI_INT, comm_, &request), "MPI_Iallgather");
  }
  wait(request, deadline, "MPI_Iallgather");
  std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), 0);
  std::string all(static_cast<std::size_t>(offsets.back() + sizes.back()) + 1, 0);
  {
    bool held = false;
    const Turn turn(held);
    check(MPI_Iallgatherv(blob.data(), own, MPI_BYTE, all.data(), sizes.data(), offsets.data(), MPI_BYTE,
                          comm_, &request),
          "MPI_Iallgatherv");
  }
  wait(request, deadline, "MPI_Iallgatherv");
  std::vector<std::string> blobs;
  for (std::size_t r = 0; r < ranks; ++r) {
    blobs.push_back(all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(sizes[r])));
  }
  return blobs;
}

std::unique_ptr<RemoteTransport> Home::connect(int rank, int world, const Exchange& exchange) {
  return MpiTransport::create(std::static_pointer_cast<Home>(shared_from_this()), rank, world, exchange);
}

}  // namespace ringreduce::mpi
