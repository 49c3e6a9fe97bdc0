/* A program written for NCCL, with each operation checked against what it should give. All values are small
 * integers, which every order of adding leaves exact.
 *
 *   program RANKS EACH SECONDS [HOSTS]
 *
 * RANKS: in all. EACH: in a process, where one thread calls for all of them. SECONDS: that a call may take.
 * HOSTS: a letter for each process, the same for those of one host.
 *
 * It prints a line for each check, and "all right". Otherwise it ends with another status than 0, and says on
 * stderr what is wrong, or which call was not over. To build it for a card; four ranks of a process, and two
 * processes:
 *
 *   L=$PWD/ringreduce
 *   cc -O1 tests/gpu/nccl_program/program.c -o program $L/libringreduce_{nccl,cuda}.so -Wl,-rpath,$L
 *   LD_PRELOAD=$L/libringreduce_nccl.so ./program 4 4 10
 *   LD_PRELOAD=$L/libringreduce_nccl.so ./program 2 1 10
 */
#define _DEFAULT_SOURCE
#include <sys/prctl.h>
#include <sys/wait.h>

#include "ranks.h"

static void reductions(ncclDataType_t type, ncclRedOp_t op) {
  const size_t bytes = count * size_of(type);
  const int root = world - 1;
  fill_all((size_t)world, type);
  TOGETHER(ncclAllReduce(r->input, r->output, count, type, op, r->comm, r->stream));
  foreach (r) COMPARE(r, r->output, type, expected_of_all(op, 0, type, 1));
  const size_t last = (size_t)(world - 1) * bytes;
  fill_all((size_t)world, type);
  TOGETHER(ncclAllReduce(r->output + last, r->output + last, count, type, op, r->comm, r->stream));
  foreach (r) COMPARE(r, r->output + last, type, expected_of_all(op, world - 1, type, 1));
  fill_all((size_t)world, type);
  TOGETHER(
      ncclReduce(r->input, r->rank == root ? r->output : NULL, count, type, op, root, r->comm, r->stream));
  foreach (r)
    if (r->rank == root) COMPARE(r, r->output, type, expected_of_all(op, 0, type, 1));
  TOGETHER(ncclReduceScatter(r->input, r->output, count, type, op, r->comm, r->stream));
  foreach (r) COMPARE(r, r->output, type, expected_of_all(op, r->rank, type, 1));
  char* own[MOST];
  foreach (r) own[r - all] = r->input + (size_t)r->rank * bytes;
  TOGETHER(ncclReduceScatter(r->input, own[r - all], count, type, op, r->comm, r->stream));
  foreach (r) COMPARE(r, own[r - all], type, expected_of_all(op, r->rank, type, 1));
}

static void factors(ncclDataType_t type, ncclScalarResidence_t residence) {
  ncclRedOp_t ops[MOST];
  void* scalars[MOST];
  char scalar[8];
  put(scalar, type, 3);
  foreach (r) {
    CUDA(ringreduce_cuda_choose_device(r->device));
    NCCL(ncclMemAlloc(&scalars[r - all], sizeof scalar));
    CUDA(ringreduce_cuda_move(scalars[r - all], scalar, sizeof scalar, r->stream));
    CUDA(ringreduce_cuda_synchronize(r->stream));
    void* from = residence == ncclScalarDevice ? scalars[r - all] : scalar;
    NCCL(ncclRedOpCreatePreMulSum(&ops[r - all], from, type, residence, r->comm));
  }
  fill_all(1, type);
  NCCL(ncclGroupStart());
  foreach (r) {
    NCCL(ncclAllReduce(r->input, r->output, count, type, ops[r - all], r->comm, r->stream));
    NCCL(ncclRedOpDestroy(ops[r - all], r->comm));
  }
  NCCL(ncclGroupEnd());
  foreach (r) {
    COMPARE(r, r->output, type, expected_of_all(ncclSum, 0, type, 3));
    NCCL(ncclMemFree(scalars[r - all]));
  }
}

static void moves(ncclDataType_t type) {
  const size_t bytes = count * size_of(type);
  const int root = world / 2;
  fill_all((size_t)world, type);
  TOGETHER(
      ncclBroadcast(r->rank == root ? r->input : NULL, r->output, count, type, root, r->comm, r->stream));
  foreach (r) COMPARE(r, r->output, type, expected_block(root, 0, type));
  TOGETHER(ncclBcast(r->input, count, type, root, r->comm, r->stream));
  foreach (r) COMPARE(r, r->input, type, expected_block(root, 0, type));
  fill_all((size_t)world, type);
  TOGETHER(ncclAllGather(r->input, r->output, count, type, r->comm, r->stream));
  foreach (r) {
    for (int b = 0; b < world; ++b)
      COMPARE(r, r->output + (size_t)b * bytes, type, expected_block(b, 0, type));
  }
  TOGETHER(ncclAllGather(r->input + (size_t)r->rank * bytes, r->input, count, type, r->comm, r->stream));
  foreach (r) {
    for (int b = 0; b < world; ++b)
      COMPARE(r, r->input + (size_t)b * bytes, type, expected_block(b, b, type));
  }
  fill_all((size_t)world, type);
  TOGETHER(ncclAlltoAll(r->input, r->output, count, type, r->comm, r->stream));
  foreach (r) {
    for (int b = 0; b < world; ++b) {
      COMPARE(r, r->output + (size_t)b * bytes, type, expected_block(b, r->rank, type));
    }
  }
  fill_all((size_t)world, type);
  TOGETHER(ncclGather(r->input, r->rank == root ? r->output : NULL, count, type, root, r->comm, r->stream));
  foreach (r) {
    for (int b = 0; b < world && r->rank == root; ++b) {
      COMPARE(r, r->output + (size_t)b * bytes, type, expected_block(b, 0, type));
    }
  }
  TOGETHER(ncclScatter(r->rank == root ? r->input : NULL, r->output, count, type, root, r->comm, r->stream));
  foreach (r) COMPARE(r, r->output, type, expected_block(root, r->rank, type));
}

/* Everybody to everybody, itself included, receives first; and one message to the next rank. */
static void messages(ncclDataType_t type) {
  const size_t bytes = count * size_of(type);
  fill_all((size_t)world, type);
  NCCL(ncclGroupStart());
  foreach (r) {
    NCCL(ncclGroupStart());
    for (int peer = 0; peer < world; ++peer) {
      NCCL(ncclRecv(r->output + (size_t)peer * bytes, count, type, peer, r->comm, r->stream));
      NCCL(ncclSend(r->input + (size_t)peer * bytes, count, type, peer, r->comm, r->stream));
    }
    NCCL(ncclGroupEnd());
  }
  NCCL(ncclGroupEnd());
  foreach (r) {
    for (int b = 0; b < world; ++b) {
      COMPARE(r, r->output + (size_t)b * bytes, type, expected_block(b, r->rank, type));
    }
  }
  if (world == 1) return;
  fill_all(1, type);
  foreach (r) NCCL(ncclSend(r->input, count, type, (r->rank + 1) % world, r->comm, r->stream));
  foreach (r) NCCL(ncclRecv(r->output, count, type, (r->rank + world - 1) % world, r->comm, r->stream));
  foreach (r) COMPARE(r, r->output, type, expected_block((r->rank + world - 1) % world, 0, type));
}

/* Ranks of the same parity; the last rank, too, but in no communicator. */
static void splits(void) {
  ncclComm_t parts[MOST];
  TOGETHER(ncclCommSplit(r->comm, r->rank == world - 1 ? -1 : r->rank % 2, -r->rank, &parts[r - all], NULL));
  fill_all(1, ncclInt32);
  NCCL(ncclGroupStart());
  foreach (r) {
    CHECK((r->rank == world - 1) == (parts[r - all] == NULL));
    if (parts[r - all]) {
      NCCL(ncclAllReduce(r->input, r->output, count, ncclInt32, ncclSum, parts[r - all], r->stream));
    }
  }
  NCCL(ncclGroupEnd());
  foreach (r) {
    if (!parts[r - all]) continue;
    int whole = 0, up_to_this = 0, size, rank;
    int32_t* sums = calloc(count, sizeof *sums);
    for (int other = r->rank % 2; other < world - 1; other += 2) {
      ++whole;
      up_to_this += other <= r->rank;
      for (size_t i = 0; i < count; ++i) sums[i] += (int32_t)value(other, 0, i);
    }
    NCCL(ncclCommCount(parts[r - all], &size));
    NCCL(ncclCommUserRank(parts[r - all], &rank));
    CHECK(size == whole && rank == whole - up_to_this); /* the keys turn the order round */
    COMPARE(r, r->output, ncclInt32, (char*)sums);
    free(sums);
    NCCL(ncclCommDestroy(parts[r - all]));
  }
}

/* The first process tells the others. */
static ncclUniqueId meet(const int* pipe_of_id) {
  ncclUniqueId id;
  if (first != 0) {
    CHECK(read(pipe_of_id[0], &id, sizeof id) == sizeof id);
    return id;
  }
  NCCL(ncclGetUniqueId(&id));
  for (int i = ranks; i < world; i += ranks) CHECK(write(pipe_of_id[1], &id, sizeof id) == sizeof id);
  return id;
}

static void create(const int* pipe_of_id) {
  int devices = 1, numbers[MOST];
  ncclComm_t comms[MOST];
  CUDA(ringreduce_cuda_count_devices(&devices));
  room = (size_t)world * count * 8;
  for (int i = 0; i < ranks; ++i) numbers[i] = (first + i) % devices;
  if (ranks == world) {
    NCCL(ncclCommInitAll(comms, world, numbers));
  } else {
    const ncclUniqueId id = meet(pipe_of_id);
    NCCL(ncclGroupStart());
    for (int i = 0; i < ranks; ++i) {
      CUDA(ringreduce_cuda_choose_device(numbers[i]));
      NCCL(ncclCommInitRank(&comms[i], world, id, first + i));
    }
    NCCL(ncclGroupEnd());
  }
  foreach (r) {
    const int i = (int)(r - all);
    int size, rank, device;
    *r = (struct Rank){first + i, numbers[i], comms[i], NULL, NULL, NULL};
    NCCL(ncclCommCount(r->comm, &size));
    NCCL(ncclCommUserRank(r->comm, &rank));
    NCCL(ncclCommCuDevice(r->comm, &device));
    CHECK(size == world && rank == r->rank && device == r->device);
    CUDA(ringreduce_cuda_choose_device(r->device));
    CUDA(ringreduce_cuda_create_stream(&r->stream));
    NCCL(ncclMemAlloc((void**)&r->input, room));
    NCCL(ncclMemAlloc((void**)&r->output, room));
  }
}

static void end(void) {
  foreach (r) {
    ncclResult_t error = ncclInvalidArgument;
    void* handle = NULL;
    NCCL(ncclCommRegister(r->comm, r->input, room, &handle));
    NCCL(ncclCommDeregister(r->comm, handle));
    NCCL(ncclCommGetAsyncError(r->comm, &error));
    CHECK(error == ncclSuccess);
  }
  TOGETHER(ncclCommFinalize(r->comm));
  foreach (r) {
    NCCL(ncclCommDestroy(r->comm));
    NCCL(ncclMemFree(r->input));
    NCCL(ncclMemFree(r->output));
    CHECK(ncclAllReduce(r->input, r->output, 1, ncclInt32, ncclSum, r->comm, r->stream) ==
          ncclInvalidArgument);
    CHECK(strstr(ncclGetLastError(NULL), "destroyed"));
  }
}

static const char* name_of(ncclDataType_t type) {
  const char* names[] = {[ncclInt32] = "int32",
                         [ncclInt64] = "int64",
                         [ncclFloat32] = "float32",
                         [ncclFloat64] = "float64",
                         [ncclBfloat16] = "bfloat16"};
  return names[type];
}

static void run(const int* pipe_of_id) {
  int version = 0;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* as for ranks of local_group() */
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  signal(SIGALRM, hangs);
  check("%d ranks meet", world);
  NCCL(ncclGetVersion(&version));
  CHECK(version >= 21800);
  create(pipe_of_id);
  const ncclDataType_t types[] = {ncclInt32, ncclInt64, ncclFloat32, ncclFloat64, ncclBfloat16};
  const char* ops[] = {"sums", "products", "maxima", "minima"};
  for (int i = 0; i < 5; ++i) {
    for (ncclRedOp_t op = ncclSum; op <= ncclMin; ++op) {
      check("%s of %s", ops[op], name_of(types[i]));
      reductions(types[i], op);
    }
    check("moves of %s", name_of(types[i]));
    moves(types[i]);
    if (types[i] < ncclFloat32) continue;
    check("factors of %s", name_of(types[i]));
    factors(types[i], ncclScalarHostImmediate);
    factors(types[i], ncclScalarDevice);
  }
  check("averages");
  if ((world & (world - 1)) == 0) reductions(ncclFloat32, ncclAvg);
  check("messages");
  messages(ncclFloat32);
  messages(ncclInt64);
  check("splits");
  splits();
  check("the end");
  end();
  checked();
}

/* Processes that begin before anything is CUDA's. What they have said is on stderr. */
static int start(int processes, const char* hosts) {
  int pipe_of_id[2], status, worst = 0;
  CHECK(pipe(pipe_of_id) == 0);
  for (int i = 0; i < processes; ++i) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    first = i * ranks;
    is_first = i == 0;
    const char host[] = {hosts[i % strlen(hosts)], 0};
    if (hosts[1]) setenv("RINGREDUCE_HOST", host, 1);
    if (first != 0) close(pipe_of_id[1]);
    run(pipe_of_id);
    exit(0);
  }
  while (wait(&status) > 0) {
    if (status != 0) worst = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return worst;
}

int main(int argc, char** argv) {
  CHECK(argc >= 4);
  world = atoi(argv[1]);
  ranks = atoi(argv[2]);
  patience = (unsigned)atoi(argv[3]);
  CHECK(ranks > 0 && ranks <= MOST && world % ranks == 0 && patience > 0);
  is_first = ranks == world;
  if (ranks < world) {
    const int status = start(world / ranks, argc > 4 ? argv[4] : "a");
    if (status != 0) return status;
  } else {
    run(NULL);
  }
  puts("all right");
  return 0;
}
