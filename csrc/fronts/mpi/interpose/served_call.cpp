#include "fronts/mpi/interpose/served_call.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace ringreduce::mpi {
namespace {

// The most elements and bytes that fit into an int.
constexpr MPI_Count most_counted = INT_MAX;

void require(bool good) {
  if (!good) throw std::runtime_error("MPI cannot pack or unpack this datatype");
}

[[gnu::tls_model("initial-exec")]] thread_local std::array<Extents, 2> spare_extents;

// Calls work(address in memory, address in the packed bytes, elements) for parts that MPI can count.
template <typename Work>
void in_parts(void* memory, MPI_Count count, MPI_Datatype type, Work work) {
  const Shape shape = shape_of(type);
  require(shape.size > 0 && shape.size <= most_counted);
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
  if (call.input_extents) std::swap(spare_extents, extents_);
}

Extents& ServedCall::extents(bool of_input, int ranks) {
  Extents& own = extents_[of_input];
  std::swap(own, spare_extents[of_input]);
  own.offset.assign(static_cast<std::size_t>(ranks), 0);
  own.count.assign(static_cast<std::size_t>(ranks), 0);
  return own;
}

std::byte* ServedCall::room(std::size_t bytes) {
  return rooms_.emplace_back(new std::byte[bytes]).get();
}

// All ranks of a served communicator share a host, where MPI packs without a header and without conversion.
void ServedCall::pack(const void* from, MPI_Count count, MPI_Datatype type, std::byte* to) const {
  if (const Shape shape = shape_of(type); shape.plain) {
    std::memcpy(to, from, static_cast<std::size_t>(count * shape.size));
    return;
  }
  in_parts(const_cast<void*>(from), count, type, [&](void* memory, std::size_t at, int elements, int size) {
    int position = 0;
    const int code = PMPI_Pack(memory, elements, type, to + at, size, &position, comm_);
    require(code == MPI_SUCCESS && position == size);
  });
}

void ServedCall::put(const Landing& landing) const {
  const auto& [from, to, count, type] = landing;
  if (const Shape shape = shape_of(type); shape.plain) {
    std::memcpy(to, from, static_cast<std::size_t>(count * shape.size));
    return;
  }
  in_parts(to, count, type, [&](void* memory, std::size_t at, int elements, int size) {
    int position = 0;
    require(PMPI_Unpack(from + at, size, &position, memory, elements, type, comm_) == MPI_SUCCESS);
  });
}

void ServedCall::keep_types() {
  for (Landing& landing : landings_) {
    if (predefined(landing.type)) continue;
    require(PMPI_Type_dup(landing.type, &landing.type) == MPI_SUCCESS);
    kept_.push_back(landing.type);
  }
}

bool ServedCall::next(Call& next_call) {
  if (std::exchange(begun_, true)) {
    finish();
    return false;
  }
  next_call = call;
  return true;
}

}  // namespace ringreduce::mpi
