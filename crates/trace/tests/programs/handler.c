/* Faults pages in the handler of a SIGSEGV that the first instruction of a function causes, once
 * for each line that it reads. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile char *forbidden;
static long pages, page;

NOINLINE static void handles(int signal) {
    size_t length = (size_t)(pages * page);
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        _exit(signal);
    }
    madvise(memory, length, MADV_NOHUGEPAGE);
    for (long at = 0; at < pages; at++) {
        *(volatile char *)(memory + at * page) = 1;
    }
    munmap(memory, length);
    mprotect((void *)forbidden, (size_t)page, PROT_READ | PROT_WRITE);
}

/* The address before the first instruction belongs to another function, so an unwinder must not
 * subtract 1 from it. */
NOINLINE static void interrupted(volatile char *at) {
    *at = 1;
}

NOINLINE static long calls(void) {
    interrupted(forbidden);
    __asm__ volatile("" ::: "memory");
    return pages;
}

int main(int argc, char **argv) {
    char line[16];
    pages = argc > 1 ? atol(argv[1]) : 100;
    page = sysconf(_SC_PAGESIZE);
    signal(SIGSEGV, handles);
    forbidden = mmap(NULL, (size_t)page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    while (fgets(line, sizeof line, stdin)) {
        mprotect((void *)forbidden, (size_t)page, PROT_NONE);
        printf("%ld\n", calls());
        fflush(stdout);
    }
    return 0;
}
