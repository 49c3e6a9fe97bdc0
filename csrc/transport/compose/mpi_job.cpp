#include "transport/compose/mpi_job.h"

#include <dlfcn.h>

namespace ringreduce {

// It stays loaded: MPI calls back into it when it ends.
std::shared_ptr<MpiJob> join_mpi(const std::string& plugin, const MpiRequest& request) {
  void* library = dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) throw Error("the mpi transport cannot be loaded: " + std::string(dlerror()));
  void* found = dlsym(library, "ringreduce_join_mpi");
  if (!found) throw Error("the mpi transport cannot be loaded: " + std::string(dlerror()));
  return (*reinterpret_cast<JoinMpi**>(found))(request);
}

}  // namespace ringreduce
