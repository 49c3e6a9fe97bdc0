// The functions as Fortran programs call them under Open MPI, whose Fortran bindings call PMPI_ functions and
// bypass those of C. (MPICH's call the C functions, and need nothing here.) Each converts handles and special
// addresses to those of C, and continues as if called from C.
#include "fronts/mpi/interpose/taken_over.h"

// In Fortran these constants are variables at special addresses; they are absent if the library has no
// Fortran. The names without an underscore belong to mpi_f08.
extern "C" {
[[gnu::weak]] extern MPI_Fint mpi_fortran_in_place_, mpi_fortran_in_place;
[[gnu::weak]] extern MPI_Fint mpi_fortran_bottom_, mpi_fortran_bottom;
}

namespace {

static_assert(sizeof(MPI_Fint) == sizeof(int), "counts of Fortran would have to be copied");

template <typename... Places>
bool is_one_of(const void* address, const Places*... places) {
  return address != nullptr && ((address == places) || ...);
}

// Fortran passes everything by address. Each of these is one, which calling conventions pass like a plain
// pointer.
struct Memory {
  operator void*() const {
    if (is_one_of(address, &mpi_fortran_in_place_, &mpi_fortran_in_place)) return MPI_IN_PLACE;
    if (is_one_of(address, &mpi_fortran_bottom_, &mpi_fortran_bottom)) return MPI_BOTTOM;
    return address;
  }
  void* address;
};

struct Number {
  operator int() const { return *address; }
  const MPI_Fint* address;
};

template <auto in_c>
struct Handle {
  operator auto() const { return in_c(*address); }
  const MPI_Fint* address;
};

struct PassedInFortran {
  using Source = Memory;
  using Buffer = Memory;
  using Count = Number;
  using Counts = const MPI_Fint*;
  using Offsets = const MPI_Fint*;
  using Type = Handle<PMPI_Type_f2c>;
  using Op = Handle<PMPI_Op_f2c>;
  using Root = Number;
};

}  // namespace

// MPI's name in C, after "MPI_", and its name in Fortran.
#define RINGREDUCE_FORTRAN_BLOCKING(Name, name) Name, name
#define RINGREDUCE_FORTRAN_NONBLOCKING(Name, name) I##name, i##name

// Each has a second name, which the module mpi_f08 uses.
#define RINGREDUCE_FOR_FORTRAN(...) RINGREDUCE_FOR_FORTRAN_OF(__VA_ARGS__)
#define RINGREDUCE_FOR_FORTRAN_OF(Name, name, function, Asked, parameters, arguments, ...) \
  extern "C" [[gnu::visibility("default")]] void mpi_##name##_(                            \
      RINGREDUCE_UNPACK parameters Handle<PMPI_Comm_f2c> comm,                             \
      __VA_OPT__(MPI_Fint* __VA_ARGS__, ) MPI_Fint* error) {                               \
    __VA_OPT__(MPI_Request started = MPI_REQUEST_NULL;)                                    \
    const int code = MPI_##Name(RINGREDUCE_UNPACK arguments comm __VA_OPT__(, &started));  \
    __VA_OPT__(if (code == MPI_SUCCESS) __VA_ARGS__[0] = PMPI_Request_c2f(started);)       \
    if (error) *error = code;                                                              \
  }                                                                                        \
  extern "C" [[gnu::visibility("default"), gnu::alias("mpi_" #name "_")]] void ompi_##name##_f(...);

RINGREDUCE_FUNCTIONS(RINGREDUCE_FOR_FORTRAN, RINGREDUCE_FORTRAN_BLOCKING, PassedInFortran)
RINGREDUCE_FUNCTIONS(RINGREDUCE_FOR_FORTRAN, RINGREDUCE_FORTRAN_NONBLOCKING, PassedInFortran, request)
RINGREDUCE_FOR_FORTRAN(Barrier, barrier, barrier, Barrier, (), ())
RINGREDUCE_FOR_FORTRAN(Ibarrier, ibarrier, barrier, Barrier, (), (), request)
