// Checks that the program's MPI is the one that this library was built for. Handles of another one would end
// the program somewhere in the middle, without a message; and a program that has our functions already cannot
// do without them.
#include <dlfcn.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>

namespace ringreduce::mpi {
namespace {

constexpr const char* known_to_all = "PMPI_Get_library_version";

const char* file_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 ? info.dli_fname : nullptr;
}

// The program's libraries are searched first, then ours; those of the same name are loaded once. Programs
// that load their MPI later are not noticed here, nor are those without MPI: a shell, mpirun.
[[gnu::constructor]] void require_own_library() {
  void* const self =
      dlopen(file_of(reinterpret_cast<const void*>(&require_own_library)), RTLD_LAZY | RTLD_NOLOAD);
  if (!self) return;
  const void* const own = dlsym(self, known_to_all);
  const void* const used = dlsym(RTLD_DEFAULT, known_to_all);
  const char* const own_file = file_of(own);
  const char* const used_file = file_of(used);
  dlclose(self);
  if (own == used || !own_file || !used_file) return;
  std::fprintf(
      stderr,
      "ringreduce: this libringreduce_mpi.so is built for the MPI in %s, but the program uses the one in %s: "
      "load the library that `ringreduce mpi-preload --mpicc` prints for the program's mpicc\n",
      own_file, used_file);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace
}  // namespace ringreduce::mpi
