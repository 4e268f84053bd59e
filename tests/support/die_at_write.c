/* Kills the process instead of its n-th call that changes files, once it has called `die_at(n)`.
 *
 * To be preloaded. It counts the calls of all threads and libraries together.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long calls_left;

void die_at(long call)
{
    calls_left = call;
}

static void count(void)
{
    if (atomic_load(&calls_left) > 0 && atomic_fetch_sub(&calls_left, 1) == 1)
        kill(getpid(), SIGKILL);
}

static void count_if_file(int descriptor)
{
    struct stat state;

    if (fstat(descriptor, &state) == 0 && S_ISREG(state.st_mode))
        count();
}

#define WRAP(result, name, parameters, arguments, counting)    \
    result name parameters                                     \
    {                                                          \
        static result(*next) parameters;                       \
        if (!next)                                             \
            next = (result(*) parameters)dlsym(RTLD_NEXT, #name); \
        counting;                                              \
        return next arguments;                                 \
    }

WRAP(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), count_if_file(fd))
WRAP(int, fsync, (int fd), (fd), count())
WRAP(int, fdatasync, (int fd), (fd), count())
WRAP(int, ftruncate, (int fd, off_t size), (fd, size), count())
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size), count())
WRAP(int, truncate, (const char *path, off_t size), (path, size), count())
WRAP(int, truncate64, (const char *path, off64_t size), (path, size), count())
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), count())
WRAP(int, rename, (const char *old, const char *new), (old, new), count())
WRAP(int, link, (const char *old, const char *new), (old, new), count())
WRAP(int, linkat, (int a, const char *old, int b, const char *new, int flags),
     (a, old, b, new, flags), count())
WRAP(int, unlink, (const char *path), (path), count())
WRAP(int, rmdir, (const char *path), (path), count())

#define WRAP_OPEN(name)                                                \
    int name(const char *path, int flags, ...)                         \
    {                                                                  \
        static int (*next)(const char *, int, ...);                    \
        va_list more;                                                  \
        mode_t mode;                                                   \
                                                                       \
        if (!next)                                                     \
            next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name); \
        va_start(more, flags);                                         \
        mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;             \
        va_end(more);                                                  \
        if (flags & O_CREAT)                                           \
            count();                                                   \
        return next(path, flags, mode);                                \
    }

WRAP_OPEN(open)
WRAP_OPEN(open64)
