#include "mpi/interpose/served_call.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "front/group.h"

namespace ringreduce::mpi {
namespace {

// What fits into an int, of elements and of bytes. An element is no longer: see most_moved in asked.h.
constexpr MPI_Count most_counted = INT_MAX;

void require(bool good) {
  if (!good) throw Trouble(Outcome::other, -1, "MPI cannot pack or unpack this datatype");
}

// Calls work(place in memory, place among the packed bytes, elements) for parts that MPI can count.
template <typename Work>
void in_parts(void* memory, MPI_Count count, MPI_Datatype type, Work work) {
  const Shape shape = shape_of(type);
  require(shape.size > 0);
  const MPI_Count part = std::max<MPI_Count>(most_counted / shape.size, 1);
  for (MPI_Count done = 0; done < count; done += part) {
    const auto at =
        reinterpret_cast<std::uintptr_t>(memory) + static_cast<std::uintptr_t>(done * shape.extent);
    const MPI_Count elements = std::min(part, count - done);
    work(reinterpret_cast<void*>(at), static_cast<std::size_t>(done * shape.size), static_cast<int>(elements),
         static_cast<int>(elements * shape.size));
  }
}

}  // namespace

ServedCall::~ServedCall() {
  for (MPI_Datatype type : kept_) PMPI_Type_free(&type);
}

std::byte* ServedCall::room(std::size_t bytes) {
  return rooms_.emplace_back(new std::byte[bytes]).get();
}

// All ranks of a communicator of ours share a host, where MPI packs without a header and without converting.
const std::byte* ServedCall::packed(const void* from, MPI_Count count, MPI_Datatype type, std::size_t bytes,
                                    MPI_Comm comm) {
  std::byte* to = room(bytes);
  in_parts(const_cast<void*>(from), count, type, [&](void* memory, std::size_t at, int elements, int size) {
    int position = 0;
    const int code = PMPI_Pack(memory, elements, type, to + at, size, &position, comm);
    require(code == MPI_SUCCESS && position == size);
  });
  return to;
}

void ServedCall::land(const std::byte* from, std::size_t bytes, void* to) {
  landings_.push_back({from, bytes, to, 0, MPI_DATATYPE_NULL, MPI_COMM_NULL});
}

void ServedCall::land(const std::byte* from, std::size_t bytes, void* to, MPI_Count count, MPI_Datatype type,
                      MPI_Comm comm) {
  landings_.push_back({from, bytes, to, count, type, comm});
}

void ServedCall::finish() {
  for (const Landing& landing : landings_) {
    if (landing.type == MPI_DATATYPE_NULL) {
      std::memcpy(landing.to, landing.from, landing.bytes);
      continue;
    }
    in_parts(landing.to, landing.count, landing.type,
             [&](void* memory, std::size_t at, int elements, int size) {
               int position = 0;
               require(PMPI_Unpack(landing.from + at, size, &position, memory, elements, landing.type,
                                   landing.comm) == MPI_SUCCESS);
             });
  }
}

void ServedCall::keep_types() {
  for (Landing& landing : landings_) {
    if (landing.type == MPI_DATATYPE_NULL) continue;
    require(PMPI_Type_dup(landing.type, &landing.type) == MPI_SUCCESS);
    kept_.push_back(landing.type);
  }
}

bool ServedCall::next(Call& next_call) {
  if (begun_) {
    finish();
    return false;
  }
  begun_ = true;
  next_call = call;
  return true;
}

}  // namespace ringreduce::mpi
