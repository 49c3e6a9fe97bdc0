// A call of MPI's as the engine runs it: one call of ours, and what has to be put in its place afterwards.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "engine/planning/call.h"
#include "mpi/interpose/types.h"

namespace ringreduce::mpi {

class ServedCall : public Steps {
 public:
  explicit ServedCall(const Call& call) : call(call) {}
  ~ServedCall() override;
  ServedCall(const ServedCall&) = delete;
  ServedCall& operator=(const ServedCall&) = delete;

  Call call;
  Extents extents;  // where the call has some

  // Elements of any datatype as the bytes that they have in a message.
  const std::byte* packed(const void* from, MPI_Count count, MPI_Datatype type, std::size_t bytes,
                          MPI_Comm comm);
  // Memory of the job's own.
  std::byte* room(std::size_t bytes);
  // When the call is complete, these bytes go to where the program wants them.
  void land(const std::byte* from, std::size_t bytes, void* to);
  void land(const std::byte* from, std::size_t bytes, void* to, MPI_Count count, MPI_Datatype type,
            MPI_Comm comm);
  bool lands() const { return !landings_.empty(); }
  void finish();

  // For a call that outlives the program's: its datatypes may be freed before it is over.
  void keep_types();

  bool next(Call& call) override;

 private:
  struct Landing {
    const std::byte* from;
    std::size_t bytes;
    void* to;
    MPI_Count count;
    MPI_Datatype type;  // MPI_DATATYPE_NULL: bytes as they are
    MPI_Comm comm;
  };

  bool begun_ = false;
  std::vector<std::unique_ptr<std::byte[]>> rooms_;
  std::vector<Landing> landings_;
  std::vector<MPI_Datatype> kept_;
};

}  // namespace ringreduce::mpi
