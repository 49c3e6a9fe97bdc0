// To be loaded after libtsan: the waits that GCC 12's ThreadSanitizer does not know become those that it
// knows. It would not see that they take a lock. CPython's locks and std::timed_mutex wait in this way.
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

static struct timespec in_real_time(clockid_t clock, const struct timespec* until) {
  struct timespec now, real;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  const long long left =
      (until->tv_sec - now.tv_sec) * 1000000000LL + until->tv_nsec - now.tv_nsec + real.tv_nsec;
  real.tv_sec += left / 1000000000;
  real.tv_nsec = left % 1000000000;
  if (real.tv_nsec < 0) --real.tv_sec, real.tv_nsec += 1000000000;
  return real;
}

int sem_clockwait(sem_t* semaphore, clockid_t clock, const struct timespec* until) {
  const struct timespec real = in_real_time(clock, until);
  return sem_timedwait(semaphore, &real);
}

int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  const struct timespec real = in_real_time(clock, until);
  return pthread_mutex_timedlock(mutex, &real);
}
