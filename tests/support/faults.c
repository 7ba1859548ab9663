// Preloaded into a program: makes reading *.gguf files at a position go wrong, as the environment says.
//
//   FAULT_WHEN=PATH   only while this file exists
//   FAULT_LOG=PATH    a line for each kind of fault that happened
//   FAULT_ERRNO=N     reads fail with this errno ...
//   FAULT_AT=N        ... only the nth
//   FAULT_FROM=N      ... the nth and all after it
//   FAULT_EINTR=N     every nth read is interrupted
//   FAULT_SHORT=N     every other read returns at most N bytes
//   FAULT_END=N       the file ends at this offset for reads
//   FAULT_SLOW=N      every read takes N microseconds more
//   FAULT_DIRECT=N    reads past the page cache fail with this errno
//   FAULT_OPEN_DIRECT=N, FAULT_OPEN=N   opening for such reads, or at all, once more, fails with this errno
//   FAULT_MMAP=N      anonymous memory of more than N bytes is refused

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long n_reads;

static long setting(const char * name) {
    const char * text = getenv(name);
    return text ? atol(text) : 0;
}

static int is_on(void) {
    const char * when = getenv("FAULT_WHEN");
    return !when || access(when, F_OK) == 0;
}

static void tell(const char * kind) {
    const char * path = getenv("FAULT_LOG");
    if (path) {
        const int fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0600);
        dprintf(fd, "%s\n", kind);
        close(fd);
    }
}

static int is_model(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof(path) - 1);
    return n > 5 && strncmp(path + n - 5, ".gguf", 5) == 0;
}

static ssize_t faulty_read(int fd, void * buf, size_t size, off_t offs) {
    const int saved = errno;
    if (!is_model(fd) || !is_on()) {
        errno = saved;
        return syscall(SYS_pread64, fd, buf, size, offs);
    }
    const long number = ++n_reads;
    if (setting("FAULT_SLOW")) {
        usleep(setting("FAULT_SLOW"));
        tell("slow");
    }
    if (setting("FAULT_DIRECT") && (fcntl(fd, F_GETFL) & O_DIRECT)) {
        tell("direct");
        errno = setting("FAULT_DIRECT");
        return -1;
    }
    if (setting("FAULT_ERRNO") && (!setting("FAULT_AT") || setting("FAULT_AT") == number) && number >= setting("FAULT_FROM")) {
        tell("errno");
        errno = setting("FAULT_ERRNO");
        return -1;
    }
    if (setting("FAULT_EINTR") && number % setting("FAULT_EINTR") == 0) {
        tell("eintr");
        errno = EINTR;
        return -1;
    }
    if (setting("FAULT_END")) {
        const off_t end = setting("FAULT_END");
        if (offs >= end) {
            tell("end");
            return 0;
        }
        if (offs + (off_t) size > end) {
            tell("end");
            size = end - offs;
            const ssize_t n = syscall(SYS_pread64, fd, buf, (size + 4095) & ~(size_t) 4095, offs);
            return n < (ssize_t) size ? n : (ssize_t) size;
        }
    }
    const ssize_t n = syscall(SYS_pread64, fd, buf, size, offs);
    const long most = setting("FAULT_SHORT");
    if (most && n > most && number % 2 == 0) {
        tell("short");
        memset((char *) buf + most, 0xa5, n - most);
        return most;
    }
    return n;
}

ssize_t pread(int fd, void * buf, size_t size, off_t offs) {
    return faulty_read(fd, buf, size, offs);
}

ssize_t pread64(int fd, void * buf, size_t size, off_t offs) {
    return faulty_read(fd, buf, size, offs);
}

// the engine opens the loader's file once more by its descriptor
static int refuses(const char * path, int flags) {
    long code = 0;
    if (strncmp(path, "/proc/self/fd/", 14) == 0 && is_model(atoi(path + 14)) && is_on()) {
        code = setting("FAULT_OPEN");
        if (!code && (flags & O_DIRECT)) {
            code = setting("FAULT_OPEN_DIRECT");
        }
    }
    if (code) {
        tell("open");
        errno = code;
    }
    return code != 0;
}

static int real_open(const char * path, int flags, mode_t mode) {
    return refuses(path, flags) ? -1 : syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

#define MODE(flags, mode)                                  \
    mode_t mode = 0;                                       \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list args;                                      \
        va_start(args, flags);                             \
        mode = va_arg(args, int);                          \
        va_end(args);                                      \
    }

int open(const char * path, int flags, ...) {
    MODE(flags, mode)
    return real_open(path, flags, mode);
}

int open64(const char * path, int flags, ...) {
    MODE(flags, mode)
    return real_open(path, flags | O_LARGEFILE, mode);
}

int openat(int dir, const char * path, int flags, ...) {
    MODE(flags, mode)
    return refuses(path, flags) ? -1 : syscall(SYS_openat, dir, path, flags, mode);
}

static void * faulty_mmap(const char * name, void * addr, size_t size, int prot, int flags, int fd, off_t offs) {
    const long most = setting("FAULT_MMAP");
    if (most && (flags & MAP_ANONYMOUS) && (flags & MAP_NORESERVE) && size > (size_t) most && is_on()) {
        tell("mmap");
        errno = ENOMEM;
        return MAP_FAILED;
    }
    void * (*real)(void *, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, name);
    return real(addr, size, prot, flags, fd, offs);
}

void * mmap(void * addr, size_t size, int prot, int flags, int fd, off_t offs) {
    return faulty_mmap("mmap", addr, size, prot, flags, fd, offs);
}

void * mmap64(void * addr, size_t size, int prot, int flags, int fd, off_t offs) {
    return faulty_mmap("mmap64", addr, size, prot, flags, fd, offs);
}
