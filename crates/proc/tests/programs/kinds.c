/* One mapping of every kind of page that /proc/<pid>/pagemap distinguishes, for tests/pages.rs.
 *
 * Prints "ready", or "ready, no guards" before Linux 6.13, and waits to be killed. A child shares
 * half of what it inherits, so that pages are mapped once, twice and not at all. Files are made in
 * the folder given as argument. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

enum { PAGES = 64, HUGE_SIZE = 2 << 20 };

static size_t page;

static char *map(size_t size, int protection, int flags, int fd) {
    char *start = mmap(NULL, size, protection, flags, fd, 0);
    if (start == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return start;
}

/* Anonymous memory that neighbors nothing, so that it stays a mapping of its own. */
static char *fenced(size_t size) {
    char *start = map(size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1) + page;
    mprotect(start, size, PROT_READ | PROT_WRITE);
    return start;
}

static void write_every(char *start, size_t pages, size_t step) {
    for (size_t i = 0; i < pages; i += step)
        ((volatile char *)start)[i * page] = 1;
}

static void read_every(const char *start, size_t pages, size_t step) {
    for (size_t i = 0; i < pages; i += step)
        (void)((const volatile char *)start)[i * page];
}

static int filled_file(const char *folder) {
    char name[4096], block[1 << 16];
    snprintf(name, sizeof name, "%s/pagewise-kinds-XXXXXX", folder);
    int fd = mkstemp(name);
    if (fd < 0) {
        perror(name);
        exit(1);
    }
    unlink(name);
    memset(block, 7, sizeof block);
    for (size_t left = PAGES * page; left > 0; left -= sizeof block < left ? sizeof block : left)
        if (write(fd, block, sizeof block) < 0)
            exit(1);
    return fd;
}

static char *huge_aligned(size_t size) {
    uintptr_t start = (uintptr_t)fenced(size + HUGE_SIZE);
    char *aligned = (char *)((start + HUGE_SIZE - 1) / HUGE_SIZE * HUGE_SIZE);
    madvise(aligned, size, MADV_HUGEPAGE);
    return aligned;
}

int main(int argc, char **argv) {
    const int rw = PROT_READ | PROT_WRITE;
    page = (size_t)sysconf(_SC_PAGESIZE);
    alarm(300);
    int fd = filled_file(argc > 1 ? argv[1] : ".");

    char *touched = fenced(PAGES * page);
    write_every(touched, PAGES, 1);
    char *zero = fenced(PAGES * page);
    read_every(zero, PAGES, 1);
    char *mixed = fenced(PAGES * page);
    read_every(mixed, PAGES, 2);
    write_every(mixed, PAGES, 3);
    int has_guards = madvise(mixed + 48 * page, 8 * page, MADV_GUARD_INSTALL) == 0;
    char *copied = map(PAGES * page, rw, MAP_PRIVATE, fd);
    read_every(copied, PAGES, 1);
    write_every(copied, PAGES, 2);
    char *file = map(PAGES * page, rw, MAP_SHARED, fd);
    write_every(file, PAGES / 2, 1);
    char *shared = map(PAGES * page, rw, MAP_SHARED | MAP_ANONYMOUS, -1);
    write_every(shared, PAGES / 2, 1);
    int memory = memfd_create("kinds", 0);
    if (ftruncate(memory, PAGES * page))
        return 1;
    char *memfd = map(PAGES * page, rw, MAP_SHARED, memory);
    write_every(memfd, PAGES, 4);
    char *memfd_copied = map(PAGES * page, rw, MAP_PRIVATE, memory);
    read_every(memfd_copied, PAGES, 2);
    write_every(memfd_copied, PAGES, 3);
    char *none = fenced(PAGES * page);
    write_every(none, PAGES, 1);
    mprotect(none, PAGES * page, PROT_NONE);
    char *huge = huge_aligned(3 * HUGE_SIZE);
    huge[0] = huge[HUGE_SIZE] = 1;
    read_every(huge + 2 * HUGE_SIZE, 1, 1);
    char *huge_shared = huge_aligned(2 * HUGE_SIZE);
    huge_shared[0] = huge_shared[HUGE_SIZE] = 1;
    char *small = huge_aligned(HUGE_SIZE);
    madvise(small, HUGE_SIZE, MADV_NOHUGEPAGE);
    write_every(small, HUGE_SIZE / page, 1);
    const size_t tera = (size_t)1 << 40;
    char *reserve = mmap(NULL, 16 * tera, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserve != MAP_FAILED) {
        madvise(reserve, 16 * tera, MADV_NOHUGEPAGE);
        reserve[5 * tera + 3 * page] = 1;
        read_every(reserve + 11 * tera, 2, 1);
        madvise(reserve + 12 * tera, 2 * page, MADV_GUARD_INSTALL);
        reserve[16 * tera - 1] = 1;
    }

    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        write_every(touched, PAGES / 2, 1);
        write_every(copied, PAGES / 2, 1);
        read_every(shared, PAGES, 1);
        read_every(file, PAGES, 1);
        huge_shared[0] = 2;
        munmap(mixed, PAGES / 4 * page);
        puts(has_guards ? "ready" : "ready, no guards");
        fflush(stdout);
    }
    for (;;)
        pause();
}
