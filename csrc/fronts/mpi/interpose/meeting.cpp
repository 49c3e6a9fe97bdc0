#include "fronts/mpi/interpose/meeting.h"

#include <algorithm>
#include <numeric>

namespace ringreduce::mpi {
namespace {

constexpr int given_up = -1;  // instead of the size of a blob

void check(int code) {
  if (code != MPI_SUCCESS) throw NoMeeting();
}

}  // namespace

std::vector<int> CommMeeting::exchange_sizes(int size) {
  std::vector<int> sizes(size_);
  check(PMPI_Allgather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, comm_));
  if (std::find(sizes.begin(), sizes.end(), given_up) != sizes.end()) throw NoMeeting();
  return sizes;
}

std::vector<Meeting::Blob> CommMeeting::exchange(const Blob& blob) {
  const int size = static_cast<int>(blob.size());
  const std::vector<int> sizes = exchange_sizes(size);
  std::vector<int> offsets(size_);
  std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), 0);
  Blob all(static_cast<std::size_t>(offsets.back() + sizes.back()) + 1);
  check(PMPI_Allgatherv(blob.data(), size, MPI_BYTE, all.data(), sizes.data(), offsets.data(), MPI_BYTE,
                        comm_));
  std::vector<Blob> blobs;
  for (int rank = 0; rank < size_; ++rank) {
    const char* begin = all.data() + offsets[rank];
    blobs.emplace_back(begin, begin + sizes[rank]);
  }
  return blobs;
}

bool CommMeeting::all(bool holds) {
  const std::vector<Blob> blobs = exchange({holds});
  return std::all_of(blobs.begin(), blobs.end(), [](const Blob& blob) { return blob.front(); });
}

void CommMeeting::give_up() {
  exchange_sizes(given_up);
  throw NoMeeting();
}

std::vector<int> world_ranks(MPI_Comm comm, int size) {
  std::vector<int> ranks(size), in_world(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  MPI_Group members = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  check(PMPI_Comm_group(comm, &members));
  check(PMPI_Comm_group(MPI_COMM_WORLD, &world));
  check(PMPI_Group_translate_ranks(members, size, ranks.data(), world, in_world.data()));
  check(PMPI_Group_free(&members));
  check(PMPI_Group_free(&world));
  return in_world;
}

}  // namespace ringreduce::mpi
