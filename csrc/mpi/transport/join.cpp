// What the engine calls: the only name that this library has for others.
#include "mpi/transport/home.h"
#include "mpi/transport/library.h"

namespace ringreduce::mpi {
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

std::shared_ptr<MpiJob> join(const MpiRequest& request) {
  const std::string version = library_version();
  if (!request.library.empty() &&
      request.library.substr(0, version.size()) != version.substr(0, request.library.size())) {
    throw InvalidArgument("store is a communicator of another MPI library (" + first_line(request.library) +
                          ") than the mpicc on the PATH belongs to (" + first_line(version) + ")");
  }
  start();
  if (!may_call()) throw InvalidArgument("MPI may only be called from the thread that initialised it");
  const auto* parent = static_cast<const MPI_Comm*>(request.communicator);
  return Home::of(parent ? *parent : MPI_COMM_WORLD, request.timeout);
}

}  // namespace
}  // namespace ringreduce::mpi

extern "C" {
__attribute__((visibility("default"))) extern ringreduce::JoinMpi* const ringreduce_join_mpi;
ringreduce::JoinMpi* const ringreduce_join_mpi = ringreduce::mpi::join;
}
