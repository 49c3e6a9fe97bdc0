/* Checks with names and times. What is wrong, or takes too long, is said on stderr, and ends the process. */
#pragma once

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int is_first;      /* of the processes: it prints the names of checks */
static unsigned patience; /* seconds for a call */
static char checking[100] = "the start";
static struct timespec began;
static const char* volatile calling = "";
static volatile int calling_line;

#define WATCHED(call) (calling = call, calling_line = __LINE__, alarm(patience))
#define FAIL(...)                                         \
  do {                                                    \
    fprintf(stderr, "%s: line %d: ", checking, __LINE__); \
    fprintf(stderr, __VA_ARGS__);                         \
    fputs("\n", stderr);                                  \
    exit(1);                                              \
  } while (0)
#define CHECK(condition)                              \
  do {                                                \
    if (!(condition)) FAIL("not so: %s", #condition); \
  } while (0)

static void hangs(int number) {
  char text[500];
  (void)number;
  const int length = snprintf(text, sizeof text, "%s: line %d: not over after %u s: %s\n", checking,
                              calling_line, patience, calling);
  if (write(STDERR_FILENO, text, (size_t)length) < 0) _exit(4);
  _exit(3);
}

static void checked(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const double seconds = (double)(now.tv_sec - began.tv_sec) + 1e-9 * (double)(now.tv_nsec - began.tv_nsec);
  if (is_first) printf("%s: %.3f s\n", checking, seconds);
  fflush(stdout);
}

/* Ends the check before, and begins one. */
static void check(const char* name, ...) {
  if (began.tv_sec != 0) checked();
  va_list arguments;
  va_start(arguments, name);
  vsnprintf(checking, sizeof checking, name, arguments);
  va_end(arguments);
  clock_gettime(CLOCK_MONOTONIC, &began);
}
