// A long wire: delay_relay LINKS MICROSECONDS ONE_IN makes TAP interfaces hold0, port0, hold1, port1 and so
// on, and prints "ready". It writes packets that are sent to a hold to the port with the same number, after a
// delay of that many microseconds. It loses one of ONE_IN frames, always the same ones (0: none).
//
// Packets keep the kernel's header, which says what remains to be done (checksums, cutting into frames), so
// that large packets pass as a whole, as they do between the kernel's own virtual interfaces. A large packet
// is lost as a whole, as often as one of its frames would be.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LINKS = 256, MAX_PACKET = 65536 + 64, READS = 64, FRAME = 1448 };

typedef struct packet {
  struct packet* next;
  int64_t due;
  size_t bytes;
  char data[];
} packet;

typedef struct {
  int hold, port;
  packet* first;  // in order of arrival, which is the order of `due`
  packet** end;
} wire;

static wire wires[MAX_LINKS];
static struct pollfd polled[MAX_LINKS];
static int64_t one_in;      // 0: no frame is lost
static int64_t until_lost;  // frames that pass before the next one is lost
static uint64_t state = 88172645463325252;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static int open_tap(const char* kind, int index) {
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) fail("/dev/net/tun");
  struct ifreq request = {0};
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  snprintf(request.ifr_name, sizeof request.ifr_name, "%s%d", kind, index);
  if (ioctl(fd, TUNSETIFF, &request) != 0) fail(request.ifr_name);
  if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN) != 0) fail("offload");
  return fd;
}

// The number of frames up to the next loss, uniform, with a mean of one_in (xorshift64, Marsaglia 2003).
static int64_t draw_loss(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return 1 + (int64_t)(state % (uint64_t)(2 * one_in - 1));
}

static int is_lost(size_t bytes) {
  if (one_in == 0) return 0;
  until_lost -= (int64_t)(bytes / FRAME) + 1;
  if (until_lost > 0) return 0;
  until_lost = draw_loss();
  return 1;
}

// Reads up to READS packets, so that a busy link does not delay the packets of the others.
static void take(wire* w, int64_t delay) {
  static char buffer[MAX_PACKET];
  for (int i = 0; i < READS; ++i) {
    const ssize_t got = read(w->hold, buffer, sizeof buffer);
    if (got <= 0) return;
    if (is_lost((size_t)got)) continue;
    packet* p = malloc(sizeof *p + (size_t)got);
    if (p == NULL) return;  // lost, as on any wire
    p->next = NULL;
    p->due = now_ns() + delay;
    p->bytes = (size_t)got;
    memcpy(p->data, buffer, (size_t)got);
    *w->end = p;
    w->end = &p->next;
  }
}

static void deliver(wire* w, int64_t now) {
  while (w->first != NULL && w->first->due <= now) {
    packet* p = w->first;
    if (write(w->port, p->data, p->bytes) < 0 && errno == EBADF) fail("write");
    w->first = p->next;
    if (w->first == NULL) w->end = &w->first;
    free(p);
  }
}

static int64_t next_due(int links) {
  int64_t due = INT64_MAX;
  for (int i = 0; i < links; ++i) {
    if (wires[i].first != NULL && wires[i].first->due < due) due = wires[i].first->due;
  }
  return due;
}

static void run(int links, int64_t delay) {
  for (;;) {
    const int64_t due = next_due(links), now = now_ns(), wait = due > now ? due - now : 0;
    const struct timespec timeout = {.tv_sec = wait / 1000000000, .tv_nsec = wait % 1000000000};
    if (ppoll(polled, (nfds_t)links, due == INT64_MAX ? NULL : &timeout, NULL) < 0 && errno != EINTR) {
      fail("poll");
    }
    for (int i = 0; i < links; ++i) {
      if (polled[i].revents != 0) take(&wires[i], delay);
      deliver(&wires[i], now_ns());
    }
  }
}

int main(int argc, char** argv) {
  const int links = argc == 4 ? atoi(argv[1]) : 0;
  const int64_t delay = argc == 4 ? atoll(argv[2]) * 1000 : 0;
  one_in = argc == 4 ? atoll(argv[3]) : 0;
  if (links < 1 || links > MAX_LINKS || delay < 0 || one_in < 0) {
    fprintf(stderr, "usage: delay_relay LINKS MICROSECONDS ONE_IN\n");
    return 2;
  }
  if (one_in > 0) until_lost = draw_loss();
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the process that started it may be killed
  prctl(PR_SET_TIMERSLACK, 1UL);
  // A wire does not wait for a core. If this is not permitted, packets are late when the cores are busy.
  sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
  for (int i = 0; i < links; ++i) {
    wires[i].hold = open_tap("hold", i);
    wires[i].port = open_tap("port", i);
    wires[i].end = &wires[i].first;
    polled[i] = (struct pollfd){.fd = wires[i].hold, .events = POLLIN};
  }
  puts("ready");
  fflush(stdout);
  run(links, delay);
}
