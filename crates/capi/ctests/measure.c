/* pagewise/measure.h from C: known costs, absences, every error. Exits with 0, or prints the failed
 * check. With an argument, costs may be higher than expected: a checker that observes this program
 * has costs of its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <pagewise/measure.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGES 200

#define CHECK(fact)                                                                              \
    do {                                                                                         \
        if (!(fact)) {                                                                           \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #fact, pw_error_message()); \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

static int watched;

static char *fresh(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && madvise(memory, bytes, MADV_NOHUGEPAGE) == 0);
    return memory;
}

static void touch(char *memory, size_t pages)
{
    for (size_t page = 0; page < pages; page++)
        memory[page * (size_t)sysconf(_SC_PAGESIZE)] = 1;
}

static void costs_are_known(void)
{
    size_t bytes = PAGES * (size_t)sysconf(_SC_PAGESIZE);
    pw_probe *probe;
    pw_value value;
    CHECK(pw_probe_open(&probe, "page_faults,minor_faults,task_clock", PW_MEMORY) == 0);
    for (int round = 0; round < 3; round++) {
        char *memory = fresh(bytes);
        CHECK(pw_probe_start(probe) == 0);
        touch(memory, PAGES);
        CHECK(pw_probe_stop(probe) == 0);
        static const char *const faults[] = {"page_faults", "minor_faults", "minflt"};
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
            CHECK(pw_probe_read(probe, faults[i], &value) == 0);
            CHECK(value.absent == NULL && value.value == (double)value.count);
            CHECK(value.count == PAGES || (watched && value.count > PAGES));
            CHECK(value.unit == PW_COUNT);
        }
        CHECK(pw_probe_read(probe, "Rss", &value) == 0 && value.absent == NULL);
        CHECK(value.unit == PW_BYTES && value.count >= (int64_t)bytes);
        CHECK(pw_probe_read(probe, "task_clock", &value) == 0 && value.running > 0);
        CHECK(pw_probe_read(probe, "wall", &value) == 0 && value.count > 0);
        CHECK(value.unit == PW_NANOSECONDS && value.enabled == 0);
        CHECK(pw_probe_start(probe) == 0 && munmap(memory, bytes) == 0 && pw_probe_stop(probe) == 0);
        CHECK(pw_probe_read(probe, "Rss", &value) == 0 && value.count <= -(int64_t)bytes / 2);
    }
    CHECK(pw_probe_overhead(probe, "page_faults", &value) == 0 && value.count == 0);
    CHECK(pw_probe_overhead(probe, "Rss", &value) == 0 && value.absent != NULL);
    pw_probe_close(probe);
}

static void what_cannot_be_counted_says_why(void)
{
    pw_probe *probe;
    pw_value value;
    CHECK(pw_probe_open(&probe, "r1ffffffffff,cycles", PW_NO_USAGE | PW_SUBTRACT) == 0);
    CHECK(pw_probe_start(probe) == 0 && pw_probe_stop(probe) == 0);
    CHECK(pw_probe_read(probe, "r1ffffffffff", &value) == 0);
    CHECK(value.absent != NULL && *value.absent != '\0' && value.value == 0);
    CHECK(pw_probe_read(probe, "cycles", &value) == 0);
    CHECK(value.absent == NULL ? value.enabled > 0 : *value.absent != '\0');
    CHECK(pw_probe_read(probe, "minflt", &value) == ENOENT);
    pw_probe_close(probe);
}

static void names_are_listed_in_order(void)
{
    static const char *const expected[] = {"wall", "page_faults", "Rss", "Pss", "Private_Dirty", "Anonymous", "AnonHugePages"};
    size_t n = sizeof expected / sizeof *expected;
    pw_probe *probe;
    CHECK(pw_probe_open(&probe, "page_faults", PW_NO_USAGE | PW_MEMORY | PW_PROCESS) == 0);
    for (size_t i = 0; i < n; i++)
        CHECK(pw_probe_name(probe, i) != NULL && strcmp(pw_probe_name(probe, i), expected[i]) == 0);
    CHECK(pw_probe_name(probe, n) == NULL && pw_probe_name(NULL, 0) == NULL);
    pw_probe_close(probe);
    CHECK(pw_probe_open(&probe, NULL, 0) == 0 && pw_probe_name(probe, 13) != NULL);
    pw_probe_close(probe);
}

static void mistakes_are_errors(void)
{
    pw_probe *probe = NULL;
    pw_value value;
    CHECK(strcmp(pw_error_message(), "") == 0 || *pw_error_message() != '\0');
    CHECK(pw_probe_open(NULL, "", 0) == EINVAL);
    CHECK(pw_probe_open(&probe, "cycless", 0) == EINVAL && probe == NULL);
    CHECK(strstr(pw_error_message(), "cycless") != NULL);
    CHECK(pw_probe_open(&probe, "\xff", 0) == EINVAL && probe == NULL);
    CHECK(pw_probe_open(&probe, "", 1u << 31) == EINVAL && probe == NULL);
    CHECK(pw_probe_open(&probe, "", 0) == 0 && probe != NULL);
    CHECK(pw_probe_stop(probe) == EINVAL);
    CHECK(pw_probe_read(probe, "wall", &value) == EINVAL);
    CHECK(pw_probe_start(probe) == 0 && pw_probe_start(probe) == 0 && pw_probe_stop(probe) == 0);
    CHECK(pw_probe_stop(probe) == EINVAL);
    CHECK(pw_probe_read(probe, "wall", &value) == 0);
    CHECK(pw_probe_read(probe, "nothing", &value) == ENOENT && pw_probe_read(probe, NULL, &value) == EINVAL);
    CHECK(pw_probe_read(probe, "wall", NULL) == EINVAL && pw_probe_overhead(probe, NULL, NULL) == EINVAL);
    CHECK(pw_probe_start(NULL) == EINVAL && pw_probe_stop(NULL) == EINVAL);
    CHECK(pw_probe_read(NULL, "wall", &value) == EINVAL);
    pw_probe_close(probe);
    pw_probe_close(NULL);
}

static void *as_another_thread(void *probe)
{
    pw_value value;
    CHECK(strcmp(pw_error_message(), "") == 0);
    CHECK(pw_probe_start(probe) == EPERM && pw_probe_stop(probe) == EPERM);
    CHECK(pw_probe_read(probe, "wall", &value) == EPERM);
    CHECK(strstr(pw_error_message(), "thread") != NULL);
    pw_probe_close(probe);
    return NULL;
}

static void a_probe_belongs_to_its_thread(void)
{
    pw_probe *probe;
    pthread_t thread;
    CHECK(pw_probe_open(&probe, "page_faults", 0) == 0);
    CHECK(pthread_create(&thread, NULL, as_another_thread, probe) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(pw_probe_start(probe) == 0 && pw_probe_stop(probe) == 0);
    pw_probe_close(probe);
}

int main(int argc, char **argv)
{
    (void)argv;
    watched = argc > 1;
    alarm(300);
    costs_are_known();
    what_cannot_be_counted_says_why();
    names_are_listed_in_order();
    mistakes_are_errors();
    a_probe_belongs_to_its_thread();
    return 0;
}
