/* The only program of a small virtual machine: it fragments the machine's memory, maps more, and
 * prints the changes of the kernel's counters. Parameters (fragmented=1 and so on) are in its
 * environment.
 *
 *   before:     almost all memory, touched in order of address
 *               |####|####|####|####|....|      # allocated, . free
 *   fragmented: one page of each pair released
 *               |#.#.|.#.#|#..#|.##.|....|      half is free, in pieces of at most two pages
 *                                               the last area (SPARED) stays whole
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define HUGE (2 * MIB)
/* Binary logarithm of the 512 base pages of a huge page. */
#define HUGE_ORDER 9
/* Number of bytes that stay unfragmented: pages for the kernel, and some huge pages. */
#define SPARED (48 * MIB)

static const char *counters[] = {"thp_fault_alloc", "thp_fault_fallback", "compact_stall", "compact_success",
                                 "pgmigrate_success"};
#define COUNTERS (sizeof counters / sizeof *counters)

static void fail(const char *why) {
    perror(why);
    exit(1);
}

static void set(const char *path, const char *value) {
    int file = open(path, O_WRONLY);
    if (file < 0 || write(file, value, strlen(value)) < 0)
        fail(path);
    close(file);
}

/* Free blocks that can be huge pages as they are: "Node 0, zone DMA32 25 13 .." counts blocks of 1,
 * 2, 4 .. pages. */
static unsigned long whole_huge_pages(void) {
    char line[512];
    unsigned long huge = 0;
    int at;
    FILE *file = fopen("/proc/buddyinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        at = 0;
        sscanf(line, "Node %*u, zone %*s %n", &at);
        char *next = line + at;
        for (int order = 0; *next && *next != '\n'; order++) {
            unsigned long blocks = strtoul(next, &next, 10);
            next += strspn(next, " ");
            if (order >= HUGE_ORDER)
                huge += blocks << (order - HUGE_ORDER);
        }
    }
    if (file)
        fclose(file);
    return huge;
}

static void count(unsigned long *into) {
    char name[64];
    unsigned long number;
    FILE *file = fopen("/proc/vmstat", "r");
    while (file && fscanf(file, "%63s %lu", name, &number) == 2)
        for (size_t i = 0; i < COUNTERS; i++)
            if (!strcmp(name, counters[i]))
                into[i] = number;
    if (file)
        fclose(file);
}

static char *map(size_t length, int advice) {
    char *memory = mmap(NULL, length + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    /* Start at the first boundary of a huge page. */
    memory += -(uintptr_t)memory % HUGE;
    if (madvise(memory, length, advice))
        fail("madvise");
    return memory;
}

/* A pseudorandom bit (xorshift): the same sequence in each run. */
static unsigned chance(void) {
    static uint32_t state = 1;
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state & 1;
}

/* Releases one page of each pair, the first or the second at random: the kernel searches for free
 * pages in strides of a power of two, and would otherwise find all of them or none. */
static void fragment(size_t page) {
    struct sysinfo machine;
    sysinfo(&machine);
    size_t length = (machine.freeram - SPARED) / HUGE * HUGE;
    char *held = map(length, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < length; at += page)
        held[at] = 1;
    for (size_t at = 0; at < length; at += 2 * page)
        madvise(held + at + chance() * page, page, MADV_DONTNEED);
}

static int is_set(const char *name) {
    const char *value = getenv(name);
    return value && *value == '1';
}

/* Every virtual machine of pagewise has this kernel option; no host has it. */
static int is_guest(void) {
    char line[4096] = "";
    FILE *file = fopen("/proc/cmdline", "r");
    if (file && !fgets(line, sizeof line, file))
        line[0] = 0;
    return strstr(line, "pagewise.guest=1") != NULL;
}

int main(void) {
    unsigned long before[COUNTERS] = {0}, after[COUNTERS] = {0};
    struct timespec begin, done;
    size_t wanted = getenv("wanted") ? strtoul(getenv("wanted"), NULL, 10) * MIB : 0;

    /* The program changes settings, so it runs only in a virtual machine of pagewise. */
    if (!is_guest())
        return 1;

    set("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
    set("/sys/kernel/mm/transparent_hugepage/defrag", is_set("compact") ? "madvise" : "never");
    /* Only the faults of this program create huge pages. */
    set("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "3600000");

    /* No thread of the kernel compacts memory meanwhile. */
    set("/proc/sys/vm/compaction_proactiveness", "0");

    if (is_set("fragmented"))
        fragment(sysconf(_SC_PAGESIZE));
    printf("predicted %lu\n", whole_huge_pages());
    char *memory = map(wanted, is_set("huge") ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    count(before);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    memset(memory, 1, wanted);
    clock_gettime(CLOCK_MONOTONIC, &done);
    count(after);
    for (size_t i = 0; i < COUNTERS; i++)
        printf("%s %lu\n", counters[i], after[i] - before[i]);
    /* The clock of this machine counts a nanosecond for each instruction. */
    printf("work %lld\n", (done.tv_sec - begin.tv_sec) * 1000000000LL + done.tv_nsec - begin.tv_nsec);
}
