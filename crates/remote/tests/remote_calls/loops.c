/* Threads that detect changes of their state by a tracer: each thread repeats one kind of work in a
 * loop and checks the result.
 *
 * Prints `ready`, the address of 4 MiB of memory, and the ids of its threads. When its standard
 * input closes, the program waits for another iteration of each loop, prints the number of
 * iterations of each loop, and exits. The exit status is 0 if all checks succeeded. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 7, SIZE = 4 << 20 };

static atomic_ulong rounds[THREADS];
static atomic_int tids[THREADS], done;
static int pipes[2];

#define CHECK(fact) do { if (!(fact)) { fprintf(stderr, "%s: %s is not so (%s)\n", __func__, #fact, strerror(errno)); _exit(9); } } while (0)

/* Integer and vector registers. */
static void compute(void) {
    double sum = 0;
    unsigned long hash = 1;
    for (int i = 1; i <= 1000; i++) {
        sum += i * 0.5;
        hash = hash * 6364136223846793005ul + (unsigned long)i;
    }
    static double first_sum;
    static unsigned long first_hash;
    if (!first_hash) first_hash = hash, first_sum = sum;
    CHECK(hash == first_hash && sum == first_sum);
}

static void sleeping(void) {
    struct timespec time = { 0, 3000000 };
    CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, &time, 0) == 0);
}

static void polling(void) { CHECK(poll(0, 0, 3) == 0); }

static void reading(void) {
    char byte = 0;
    CHECK(read(pipes[0], &byte, 1) == 1 && byte == 'x');
}

static void writing(void) {
    CHECK(write(pipes[1], "x", 1) == 1);
    usleep(500);
}

static void waiting(void) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 2000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&mutex);
    CHECK(pthread_cond_timedwait(&never, &mutex, &until) == ETIMEDOUT);
    pthread_mutex_unlock(&mutex);
}

/* Receives a timer signal, which only this thread unblocks, and only while it waits. */
static volatile sig_atomic_t alarms;
static void on_alarm(int signal) { (void)signal; alarms++; }
static void suspending(void) {
    sigset_t open;
    sigfillset(&open);
    sigdelset(&open, SIGALRM);
    sig_atomic_t before = alarms;
    CHECK(sigsuspend(&open) == -1 && errno == EINTR);
    CHECK(alarms > before);
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, 0, &blocked);
    CHECK(sigismember(&blocked, SIGALRM) && sigismember(&blocked, SIGUSR1));
}

static void (*const LOOPS[THREADS])(void) = { compute, sleeping, polling, reading, writing, waiting, suspending };

static void *loop(void *argument) {
    size_t i = (size_t)argument;
    tids[i] = (int)syscall(SYS_gettid);
    while (!done) {
        LOOPS[i]();
        rounds[i]++;
    }
    return 0;
}

int main(void) {
    alarm(0);
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    signal(SIGALRM, on_alarm);
    struct itimerval timer = { { 0, 1000 }, { 0, 1000 } };
    setitimer(ITIMER_REAL, &timer, 0);
    CHECK(pipe(pipes) == 0);
    char *memory = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 7, SIZE);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], 0, loop, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) while (!rounds[i]) usleep(100);
    printf("ready %lu %d", (unsigned long)memory, getpid());
    for (int i = 0; i < THREADS; i++) printf(" %d", tids[i]);
    puts("");
    fflush(stdout);
    /* Upper bound of the program's run time, even if the test is killed. */
    struct pollfd input = { 0, POLLIN, 0 };
    CHECK(poll(&input, 1, 300000) >= 0);
    unsigned long before[THREADS];
    for (int i = 0; i < THREADS; i++) before[i] = rounds[i];
    /* Waits until each thread has completed one more iteration, which takes long on a busy CPU. */
    for (int i = 0; i < THREADS; i++)
        for (int waited = 0; rounds[i] == before[i]; waited++) CHECK(waited < 30000 && usleep(1000) == 0);
    for (int i = 0; i < THREADS; i++) printf("%lu ", (unsigned long)rounds[i]);
    puts("");
    fflush(stdout);
    _exit(0);
}
