/* Loaded before libc (LD_PRELOAD): what files under a folder are asked for takes long, and the wall
 * clock jumps, as a control file says: "milliseconds seconds". It is read anew at each call. A slow
 * disk holds nothing in memory: reads that may not wait for one (RWF_NOWAIT) are told so.
 *
 *     cc -shared -fPIC -O2 -o faulty_calls.so fuzz/faulty_calls.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void control(long *milliseconds, long *seconds) {
  const char *path = getenv("FAULTY_CONTROL");
  char text[64] = {0};
  *milliseconds = *seconds = 0;
  int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY) : -1;
  if (file < 0) return;
  if (syscall(SYS_read, file, text, sizeof text - 1) > 0)
    sscanf(text, "%ld %ld", milliseconds, seconds);
  syscall(SYS_close, file);
}

/* How long a call for this file takes, in milliseconds. */
static long slowness(int file) {
  const char *folder = getenv("FAULTY_FOLDER");
  char link[64], path[PATH_MAX] = {0};
  long milliseconds, seconds;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  if (!folder || readlink(link, path, sizeof path - 1) < 0) return 0;
  if (strncmp(path, folder, strlen(folder))) return 0;
  control(&milliseconds, &seconds);
  return milliseconds;
}

static void delay(int file) {
  long milliseconds = slowness(file);
  struct timespec wait = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  if (milliseconds) nanosleep(&wait, NULL);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define SLOW(type, name, parameters, arguments, file) \
  type name parameters {                              \
    delay(file);                                      \
    return REAL(name) arguments;                      \
  }

SLOW(ssize_t, pread64, (int f, void *b, size_t n, off64_t o), (f, b, n, o), f)
SLOW(ssize_t, pwrite64, (int f, const void *b, size_t n, off64_t o), (f, b, n, o), f)
SLOW(ssize_t, pread, (int f, void *b, size_t n, off_t o), (f, b, n, o), f)
SLOW(ssize_t, pwrite, (int f, const void *b, size_t n, off_t o), (f, b, n, o), f)
SLOW(ssize_t, preadv, (int f, const struct iovec *v, int n, off_t o), (f, v, n, o), f)
SLOW(ssize_t, preadv64, (int f, const struct iovec *v, int n, off64_t o), (f, v, n, o), f)
SLOW(ssize_t, pwritev, (int f, const struct iovec *v, int n, off_t o), (f, v, n, o), f)
SLOW(ssize_t, pwritev64, (int f, const struct iovec *v, int n, off64_t o), (f, v, n, o), f)
SLOW(ssize_t, pwritev64v2, (int f, const struct iovec *v, int n, off64_t o, int m), (f, v, n, o, m), f)
SLOW(int, fdatasync, (int f), (f), f)
SLOW(int, fsync, (int f), (f), f)

ssize_t preadv64v2(int f, const struct iovec *v, int n, off64_t o, int m) {
  if (m & RWF_NOWAIT && slowness(f)) {
    errno = EAGAIN;
    return -1;
  }
  delay(f);
  return REAL(preadv64v2)(f, v, n, o, m);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  long milliseconds, seconds = 0;
  int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME) {
    control(&milliseconds, &seconds);
    now->tv_sec += seconds;
  }
  return failed;
}
