/* Faults pages six calls deep, once for each line that it reads. Built with and without frame
 * pointers. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
/* Code after a call keeps the compiler from replacing the call by a jump. */
#define AFTER __asm__ volatile("" ::: "memory")

static size_t page;

NOINLINE static long sixth(volatile char *memory, long pages) {
    long sum = 0;
    for (long at = 0; at < pages; at++) {
        memory[at * (long)page] = 1;
        sum += at;
    }
    AFTER;
    return sum;
}

NOINLINE static long fifth(volatile char *memory, long pages) {
    volatile char room[200];
    room[pages % 200] = 1;
    long sum = sixth(memory, pages) + room[pages % 200];
    AFTER;
    return sum;
}

NOINLINE static long fourth(volatile char *memory, long pages, long a, long b, long c) {
    long sum = fifth(memory, pages);
    AFTER;
    return sum * a + b * c;
}

NOINLINE static long third(volatile char *memory, long pages) {
    /* An array of a size that is only known at run time needs a register for the frame. */
    volatile char *room = __builtin_alloca((size_t)pages % 64 + 16);
    room[0] = 1;
    long sum = fourth(memory, pages, 1, 2, 3) + room[0];
    AFTER;
    return sum;
}

NOINLINE static long second(volatile char *memory, long pages) {
    long sum = third(memory, pages);
    AFTER;
    return sum + 1;
}

NOINLINE static long first(volatile char *memory, long pages) {
    long sum = second(memory, pages);
    AFTER;
    return sum + 2;
}

int main(int argc, char **argv) {
    long pages = argc > 1 ? atol(argv[1]) : 100;
    page = (size_t)sysconf(_SC_PAGESIZE);
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        size_t length = (size_t)pages * page;
        char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            return 1;
        }
        madvise(memory, length, MADV_NOHUGEPAGE);
        long sum = first(memory, pages);
        munmap(memory, length);
        printf("%ld\n", sum);
        fflush(stdout);
    }
    return 0;
}
