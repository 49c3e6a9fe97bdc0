#include "fronts/mpi/interpose/presence.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <string>

#include "fronts/mpi/interpose/settings.h"

namespace ringreduce::mpi {
namespace {

int shown = -1;  // the socket with this rank's name
bool is_own = false;

std::string variable(const char* name) {
  const char* set = std::getenv(name);
  return set ? std::string(set) + "/" : "/";
}

// Hydra and Slurm do not tell ranks the job's name, but they give them a socket to the process that started
// them.
pid_t starter() {
  ucred creator{};
  socklen_t length = sizeof creator;
  const char* file = std::getenv("PMI_FD");
  if (!file || ::getsockopt(std::atoi(file), SOL_SOCKET, SO_PEERCRED, &creator, &length) != 0) return 0;
  return creator.pid;
}

// Equal on the ranks of a job on one host, and different from other jobs, except for worlds that MPICH has
// spawned in one job.
const std::string& job() {
  static const std::string named =
      variable("PMIX_NAMESPACE") + variable("PMI_PORT") + variable("PMI_SPAWNED") + variable("SLURM_JOB_ID") +
      variable("SLURM_STEP_ID") + std::to_string(starter()) + "/" + std::to_string(getuid());
  return named;
}

// The name of a datagram socket in the abstract namespace, which has no file.
struct Name {
  explicit Name(int world_rank) {
    const std::size_t hash = std::hash<std::string>()(job());
    const std::string text = "ringreduce/mpi/" + std::to_string(hash) + "/" +
                             std::to_string(static_cast<int>(mode())) + "/" + std::to_string(world_rank);
    address.sun_family = AF_UNIX;
    std::copy(text.begin(), text.end(), address.sun_path + 1);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* at() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t length;
};

}  // namespace

void show_presence(int world_rank) {
  const Name name(world_rank);
  const int made = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  shown =
      fcntl(made, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);  // the program may have been started without stderr
  ::close(made);
  is_own = ::bind(shown, name.at(), name.length) == 0;
}

bool has_own_name() {
  return is_own;
}

// A socket that exists but is connected to another one cannot be connected to.
bool shows_presence(int world_rank) {
  const Name name(world_rank);
  return ::connect(shown, name.at(), name.length) == 0 || errno == EPERM;
}

bool on_one_host() {
  const auto equal = [](const char* here, const char* in_all) {
    const std::string number = variable(here);
    return number != "/" && number == variable(in_all);
  };
  return equal("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE") || equal("MPI_LOCALNRANKS", "PMI_SIZE");
}

}  // namespace ringreduce::mpi
