// Communicators that come and go, and those that are none of ours.
#include "suite.h"

// As many calls as it takes for a communicator to be worth a group.
static void use(MPI_Comm comm) {
  int ranks, rank;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  for (int i = 0; i < 3; ++i) {
    int sum = rank + i;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, comm);
    CHECK(sum == ranks * (ranks - 1) / 2 + i * ranks);
  }
}

static void test_loops(MPI_Comm comm) {
  int rank, ranks;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &ranks);
  for (int i = 0; i < 8; ++i) {
    MPI_Comm copy, part, again;
    MPI_Comm_dup(comm, &copy);
    use(copy);
    MPI_Comm_split(copy, (rank + i) % 2, -rank, &part);
    use(part);
    MPI_Comm_dup(part, &again);
    MPI_Comm_free(&part);
    use(again);
    MPI_Comm_disconnect(&again);
    MPI_Comm_free(&copy);
  }
}

static void test_groups(MPI_Comm comm) {
  MPI_Group all, some;
  MPI_Comm made, here;
  int rank, ranks;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_group(comm, &all);
  const int left_out = 0;
  MPI_Group_excl(all, 1, &left_out, &some);
  MPI_Comm_create(comm, some, &made);
  CHECK((made == MPI_COMM_NULL) == (rank == 0));
  if (made != MPI_COMM_NULL) {
    use(made);
    MPI_Comm_free(&made);
  }
  if (rank != 0) {
    MPI_Comm_create_group(comm, some, 5, &made);
    use(made);
    MPI_Comm_free(&made);
  }
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  use(here);
  MPI_Comm_free(&here);
  use(MPI_COMM_SELF);
}

static void test_between_groups(MPI_Comm comm) {
  int rank, ranks, remote, value;
  MPI_Comm part, between, both;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &ranks);
  const int side = rank % 2;
  MPI_Comm_split(comm, side, rank, &part);
  MPI_Intercomm_create(part, 0, comm, 1 - side, 9, &between);
  MPI_Comm_remote_size(between, &remote);
  value = side + 1;
  int sum = 0;
  MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, between);
  CHECK(sum == remote * (2 - side));
  value = rank == 0 ? 42 : 0;
  MPI_Bcast(&value, 1, MPI_INT, side == 1 ? 0 : rank == 0 ? MPI_ROOT : MPI_PROC_NULL, between);
  CHECK(value == (side == 1 || rank == 0 ? 42 : 0));
  int sent[8], received[8] = {0};
  for (int i = 0; i < remote; ++i) sent[i] = rank * 10 + i;
  MPI_Alltoall(sent, 1, MPI_INT, received, 1, MPI_INT, between);
  for (int i = 0; i < remote; ++i) CHECK(received[i] == (2 * i + 1 - side) * 10 + rank / 2);
  MPI_Gather(sent, 1, MPI_INT, received, 1, MPI_INT,
             side == 1   ? 0
             : rank == 0 ? MPI_ROOT
                         : MPI_PROC_NULL,
             between);
  for (int i = 0; rank == 0 && i < remote; ++i) CHECK(received[i] == (2 * i + 1) * 10);
  MPI_Barrier(between);
  MPI_Intercomm_merge(between, side, &both);
  use(both);
  MPI_Comm_free(&both);
  MPI_Comm_free(&between);
  MPI_Comm_free(&part);
}

// A communicator that is freed while a call of it is under way, which Open MPI 5.0 by itself does not
// survive.
static void test_free_early(MPI_Comm comm) {
  int ranks, rank, sum;
  MPI_Comm copy;
  MPI_Request request;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  for (int i = 0; i < 4; ++i) {
    MPI_Comm_dup(comm, &copy);
    use(copy);
    sum = rank;
    MPI_Iallreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, copy, &request);
    MPI_Comm_free(&copy);
    if (rank == 0) MPI_Send(&i, 1, MPI_INT, 1, 3, comm);
    if (rank == 1) MPI_Recv(&i, 1, MPI_INT, 0, 3, comm, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(sum == ranks * (ranks - 1) / 2);
  }
}

void test_communicators(MPI_Comm comm) {
  test_loops(comm);
  test_groups(comm);
  test_between_groups(comm);
  if (suite_served && suite_threads) test_free_early(comm);
}

static int handled;

static void handle(MPI_Comm* comm, int* code, ...) {
  (void)comm;
  (void)code;
  ++handled;
}

// Wrong arguments are the library's to refuse; afterwards everything works as before. Only those that MPICH
// sees when it is built without checks.
void test_errors(MPI_Comm comm) {
  MPI_Comm copy;
  MPI_Errhandler own;
  int value = 1, out = 0;
  MPI_Comm_dup(comm, &copy);
  use(copy);
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  CHECK(MPI_Allreduce(&value, &out, 1, MPI_INT, MPI_OP_NULL, copy) != MPI_SUCCESS);
  CHECK(MPI_Bcast(&value, 1, MPI_INT, 99, copy) != MPI_SUCCESS);
  CHECK(MPI_Bcast(&value, 1, MPI_DATATYPE_NULL, 0, copy) != MPI_SUCCESS);
  CHECK(MPI_Reduce(&value, &out, 1, MPI_INT, MPI_SUM, -1, copy) != MPI_SUCCESS);
  CHECK(MPI_Allgather(&value, 1, MPI_INT, &out, -1, MPI_INT, copy) != MPI_SUCCESS);
  CHECK(MPI_Gather(&value, 1, MPI_INT, &out, 1, MPI_INT, 99, copy) != MPI_SUCCESS);
  CHECK(MPI_Scatter(&value, 1, MPI_INT, &out, 1, MPI_INT, -1, copy) != MPI_SUCCESS);
  MPI_Comm_create_errhandler(handle, &own);
  MPI_Comm_set_errhandler(copy, own);
  MPI_Bcast(&value, 1, MPI_INT, 99, copy);
  CHECK(handled == 1);
  use(copy);
  MPI_Errhandler_free(&own);
  MPI_Comm_free(&copy);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  CHECK(MPI_Barrier(MPI_COMM_NULL) != MPI_SUCCESS);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}
