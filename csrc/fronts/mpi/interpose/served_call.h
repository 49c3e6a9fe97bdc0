// An MPI call as the engine runs it: one engine call, and the copies to make afterwards.
#pragma once

#include <mpi.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "engine/planning/call.h"
#include "fronts/mpi/interpose/programs_op.h"
#include "fronts/mpi/interpose/types.h"

namespace ringreduce::mpi {

class ServedCall : public Steps {
 public:
  ServedCall(const Call& call, MPI_Comm comm) : call(call), comm_(comm) {}
  ~ServedCall() override;
  ServedCall(const ServedCall&) = delete;
  ServedCall& operator=(const ServedCall&) = delete;

  Call call;

  // Of the input, or of the output: blocks of no elements, one for each rank. Their memory is that of an
  // earlier call of this thread's.
  Extents& extents(bool of_input, int ranks);
  // Copies elements of any datatype to a message.
  void pack(const void* from, MPI_Count count, MPI_Datatype type, std::byte* to) const;
  // Memory that belongs to the call.
  std::byte* room(std::size_t bytes);
  // Combines with an op of the program's, in elements of a predefined datatype.
  void combine_by(MPI_Op op, MPI_Datatype type) { call.user_op = &op_.emplace(op, type); }
  // When the call is complete, copies these elements from a message to the program's memory.
  void land(const std::byte* from, void* to, MPI_Count count, MPI_Datatype type) {
    landings_.push_back({from, to, count, type});
  }
  void finish() {
    for (const Landing& landing : landings_) put(landing);
  }

  // For a call that outlives the program's, whose datatypes may be freed before it has finished.
  void keep_types();

  bool next(Call& call) override;

 private:
  struct Landing {
    const std::byte* from;
    void* to;
    MPI_Count count;
    MPI_Datatype type;
  };
  void put(const Landing& landing) const;

  const MPI_Comm comm_;
  bool begun_ = false;
  std::array<Extents, 2> extents_;
  std::optional<ProgramsOp> op_;
  std::vector<std::unique_ptr<std::byte[]>> rooms_;
  std::vector<Landing> landings_;
  std::vector<MPI_Datatype> kept_;
};

}  // namespace ringreduce::mpi
