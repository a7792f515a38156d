/* Makes a function at run time, records it in /tmp/perf-<pid>.map, and has it fault pages, once
 * for each line that it reads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void (*touch)(char *);

__attribute__((noinline)) static long calls(touch made, char *memory, long pages, long page) {
    for (long at = 0; at < pages; at++) {
        made(memory + at * page);
    }
    __asm__ volatile("" ::: "memory");
    return pages;
}

int main(int argc, char **argv) {
    /* push %rbp; mov %rsp,%rbp; movb $1,(%rdi); pop %rbp; ret */
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xc6, 0x07, 0x01, 0x5d, 0xc3};
    long pages = argc > 1 ? atol(argv[1]) : 100, page = sysconf(_SC_PAGESIZE);
    char *made = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE | PROT_EXEC,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) {
        return 1;
    }
    memcpy(made, code, sizeof code);
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "w");
    if (!map) {
        return 1;
    }
    fprintf(map, "%lx %zx made by a compiler\n", (unsigned long)made, sizeof code);
    fclose(map);
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        size_t length = (size_t)(pages * page);
        char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            return 1;
        }
        madvise(memory, length, MADV_NOHUGEPAGE);
        printf("%ld\n", calls((touch)made, memory, pages, page));
        fflush(stdout);
        munmap(memory, length);
    }
    unlink(path);
    return 0;
}
