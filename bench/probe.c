// What an exchange between two cores costs now: two pinned processes pass a flag to and fro. Machines have
// been seen to switch by themselves between two modes, "near" (0.03 to 0.07 us one way) and "far" (0.21 to
// 0.28 us), and only figures of one mode compare. Prints one JSON line.
#define _GNU_SOURCE
#include <sys/wait.h>

#include "peers/world.h"

#define CHUNKS 41
#define TRIPS 1000
#define FAR_NS 110.0  // the geometric middle of the two modes

typedef struct {
  int ping;
  char pad0[124];
  int pong;
  char pad1[124];
} flags;

// Without the yield at the end a core shared with somebody else would cost a scheduler tick per trip.
static void await(const int* flag, int value) {
  for (int spins = 0; __atomic_load_n(flag, __ATOMIC_ACQUIRE) != value; ++spins) {
    if (spins > 100000) sched_yield();
  }
}

static int pin_to_allowed(int index) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) <= index) return 0;
  int core = 0;
  while (!CPU_ISSET(core, &allowed) || index-- > 0) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

static void answer(flags* shared) {
  for (int trip = 1; trip <= CHUNKS * TRIPS; ++trip) {
    await(&shared->ping, trip);
    __atomic_store_n(&shared->pong, trip, __ATOMIC_RELEASE);
  }
}

// The median over chunks, because an interruption spoils one chunk only.
static double one_way_ns(flags* shared) {
  double seconds[CHUNKS];
  int trip = 0;
  for (int chunk = 0; chunk < CHUNKS; ++chunk) {
    const double start = pr_now();
    for (int i = 0; i < TRIPS; ++i) {
      __atomic_store_n(&shared->ping, ++trip, __ATOMIC_RELEASE);
      await(&shared->pong, trip);
    }
    seconds[chunk] = pr_now() - start;
  }
  qsort(seconds, CHUNKS, sizeof seconds[0], pr_compare);
  return 1e9 * pr_quantile(seconds, CHUNKS, 0.5) / TRIPS / 2;
}

int main(void) {
  flags* shared =
      (flags*)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  if (pr_cores() < 2) {
    puts("{\"probe\": \"ping-pong\", \"one_way_ns\": null, \"mode\": \"one core\"}");
    return 0;
  }
  const pid_t child = fork();
  if (child < 0) return 1;
  if (!pin_to_allowed(child == 0)) fprintf(stderr, "probe: not pinned, the figure may mislead\n");
  if (child == 0) {
    answer(shared);
    _exit(0);
  }
  const double ns = one_way_ns(shared);
  waitpid(child, NULL, 0);
  printf("{\"probe\": \"ping-pong\", \"one_way_ns\": %.1f, \"mode\": \"%s\"}\n", ns,
         ns < FAR_NS ? "near" : "far");
  return 0;
}
