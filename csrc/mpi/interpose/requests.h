// What the functions behind generalized requests have in common.
#pragma once

#include <mpi.h>

namespace ringreduce::mpi {

// As of a collective.
inline void empty_status(MPI_Status* status) {
  PMPI_Status_set_elements(status, MPI_BYTE, 0);
  PMPI_Status_set_cancelled(status, 0);
  status->MPI_SOURCE = MPI_UNDEFINED;
  status->MPI_TAG = MPI_UNDEFINED;
}

// Collectives cannot be cancelled.
inline int cancel_nothing(void*, int) {
  return MPI_SUCCESS;
}

}  // namespace ringreduce::mpi
