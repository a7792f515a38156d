/* The program under trace: maps 16 MiB, touches half of it, and runs the function act_ACT.
 *
 *     acts ACT [ARGUMENT..]
 *
 * Exit status 99 means that the function itself failed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1 << 20)
#define CHECK(fact) do { if (!(fact)) { perror(#fact); _exit(99); } } while (0)

static char **arguments;

static int number(int i) { return atoi(arguments[i]); }

/* Maps 16 MiB between guard pages, so that the kernel merges it with no neighbor; touches 8 MiB. */
static void touch(void) {
    char *guarded = mmap(0, 18 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(guarded != MAP_FAILED);
    CHECK(mprotect(guarded + MIB, 16 * MIB, PROT_READ | PROT_WRITE) == 0);
    madvise(guarded + MIB, 16 * MIB, MADV_NOHUGEPAGE);
    memset(guarded + MIB, 1, 8 * MIB);
}

static int tracer(void) {
    char line[256];
    int pid = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status)) sscanf(line, "TracerPid: %d", &pid);
    fclose(status);
    return pid;
}

static void *sleep_on(void *unused) { for (;;) pause(); return unused; }

static pthread_t thread(void *(*run)(void *), void *argument) {
    pthread_t made;
    CHECK(pthread_create(&made, 0, run, argument) == 0);
    return made;
}

/* ---- ends ---- */

static int act_exit(void) { return number(0); }
static int act_exit_raw(void) { syscall(SYS_exit, number(0)); return 99; }
static int act_abort(void) { abort(); }
static int act_fault(void) { *(volatile int *)8 = 1; return 99; }
static int act_raise(void) { raise(number(0)); return 99; }
static int act_pause(void) { for (;;) pause(); return 99; }

static void *exit_all(void *status) { exit((int)(long)status); }
static int act_exit_in_thread(void) {
    for (int i = 0; i < 8; i++) thread(sleep_on, 0);
    thread(exit_all, (void *)(long)number(0));
    for (;;) pause();
    return 99;
}

static void *outlive(void *leader) {
    pthread_join(*(pthread_t *)leader, 0);
    usleep(20000);
    return 0;
}
static int act_outlive_main(void) {
    static pthread_t leader;
    leader = pthread_self();
    thread(outlive, &leader);
    pthread_exit(0);
}

/* ---- threads ---- */

static void *nothing(void *unused) { return unused; }
static int act_churn(void) {
    for (int round = 0; round < number(0); round++) {
        pthread_t made[50];
        for (int i = 0; i < 50; i++) made[i] = thread(nothing, 0);
        for (int i = 0; i < 50; i++) CHECK(pthread_join(made[i], 0) == 0);
    }
    return 0;
}

static void *exec_exit(void *unused) {
    execl("/proc/self/exe", "acts", "exit", arguments[0], (char *)0);
    CHECK(!"executed");
    return unused;
}
static int act_exec_in_thread(void) {
    for (int i = 0; i < 8; i++) thread(sleep_on, 0);
    thread(exec_exit, 0);
    for (;;) pause();
    return 99;
}

/* Each thread counts in its own word of the file named by argument 1. */
static volatile unsigned long *counters;
static void *count(void *slot) { for (;;) counters[(long)slot]++; return 0; }
static int act_count(void) {
    int file = open(arguments[1], O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0 && ftruncate(file, 4096) == 0);
    counters = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(counters != MAP_FAILED);
    for (long i = 1; i < number(0); i++) thread(count, (void *)i);
    count(0);
    return 99;
}

/* ---- children: each exits with 1 if it is traced ---- */

static int act_fork(void) {
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        int status;
        CHECK(child >= 0);
        if (!child) _exit(tracer() != 0);
        CHECK(waitpid(child, &status, 0) == child);
        if (status) return 1;
    }
    return 0;
}

static int act_posix_spawn(void) {
    char *words[] = { "sh", "-c", "grep -q 'TracerPid:\t0' /proc/self/status", 0 };
    pid_t child;
    int status;
    CHECK(posix_spawn(&child, "/bin/sh", 0, 0, words, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    return status || system("true") ? 1 : 0;
}

static int act_vfork(void) {
    pid_t child = vfork();
    int status;
    if (!child) { usleep(number(0) * 1000); _exit(3); }
    CHECK(waitpid(child, &status, 0) == child);
    return WEXITSTATUS(status);
}

/* A process without an exit signal: its end sends no SIGCHLD. */
static int report_tracer(void *unused) { (void)unused; _exit(tracer() != 0); }
static int act_clone(void) {
    static char stack[MIB];
    int status;
    pid_t child = clone(report_tracer, stack + sizeof stack, 0, 0);
    CHECK(child >= 0 && waitpid(child, &status, __WALL) == child);
    return WEXITSTATUS(status);
}

/* ---- signals ---- */

static volatile int seen[65];
static void handler(int signal) { seen[signal]++; }

/* Forks as many children as argument 0 says. Each child sends ten SIGRTMIN, which queue, and one
 * SIGUSR1, for which the parent waits before the next fork. */
static int act_signals(void) {
    int rounds = number(0);
    sigset_t usr1, none;
    sigemptyset(&none);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, 0);
    signal(SIGUSR1, handler);
    signal(SIGRTMIN, handler);
    signal(SIGCHLD, handler);
    signal(SIGTRAP, handler);
    pid_t parent = getpid();
    for (int i = 0; i < rounds; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            for (int n = 0; n < 10; n++) sigqueue(parent, SIGRTMIN, (union sigval){ .sival_int = n });
            kill(parent, SIGUSR1);
            _exit(0);
        }
        while (seen[SIGUSR1] <= i) sigsuspend(&none);
        while (waitpid(child, 0, 0) != child) {}
        raise(SIGTRAP);
    }
    FILE *out = fopen(arguments[1], "w");
    CHECK(out);
    fprintf(out, "usr1 %d rt %d chld %d trap %d\n", seen[SIGUSR1], seen[SIGRTMIN], seen[SIGCHLD], seen[SIGTRAP]);
    fclose(out);
    return 0;
}

/* Prints the signals that are ignored and blocked at the start, and the open descriptors. */
static int act_inherited(void) {
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "SigIgn", 6) || !strncmp(line, "SigBlk", 6) || !strncmp(line, "SigCgt", 6)) fputs(line, stdout);
    fclose(status);
    for (int fd = 0; fd < 64; fd++) if (fcntl(fd, F_GETFD) >= 0) printf("fd %d\n", fd);
    return 0;
}

static int act_ids(void) { printf("euid %d egid %d tracer %d\n", geteuid(), getegid(), tracer() != 0); return 0; }

static const struct { const char *name; int (*play)(void); } ACTS[] = {
    { "exit", act_exit }, { "exit_raw", act_exit_raw }, { "abort", act_abort }, { "fault", act_fault },
    { "raise", act_raise }, { "pause", act_pause }, { "exit_in_thread", act_exit_in_thread },
    { "outlive_main", act_outlive_main }, { "churn", act_churn }, { "exec_in_thread", act_exec_in_thread },
    { "count", act_count }, { "fork", act_fork }, { "posix_spawn", act_posix_spawn }, { "vfork", act_vfork },
    { "clone", act_clone }, { "signals", act_signals }, { "inherited", act_inherited }, { "ids", act_ids },
};

int main(int argc, char **argv) {
    CHECK(argc > 1);
    arguments = argv + 2;
    alarm(100); /* no process is left over if a test hangs */
    touch();
    for (size_t i = 0; i < sizeof ACTS / sizeof *ACTS; i++)
        if (!strcmp(argv[1], ACTS[i].name)) return ACTS[i].play();
    return 99;
}
