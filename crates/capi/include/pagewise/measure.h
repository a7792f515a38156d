/* pagewise/measure.h: what a region of code costs: time, page faults, counters of the CPU and of the kernel, memory.
 *
 *     pw_probe *probe;
 *     pw_value faults;
 *     if (pw_probe_open(&probe, "page_faults,cycles", 0) != 0)
 *         errx(1, "%s", pw_error_message());
 *     pw_probe_start(probe);
 *     for (size_t i = 0; i < n; i++) work(i);
 *     pw_probe_stop(probe);
 *     pw_probe_read(probe, "page_faults", &faults);
 *     pw_probe_close(probe);
 *
 * C11 and C++20; link with `pkg-config --cflags --libs pagewise`. Linux only.
 *
 * Errors. Functions that return int return 0, or a number of <errno.h> and change nothing; pw_error_message says it in
 * words. What cannot be counted is no error: its value says why it is absent.
 *
 * Threads. A probe measures the thread that opened it and only that thread may use it: others get EPERM. Different
 * probes are independent. A child of fork must not use, and need not close, a probe of its parent.
 */
#ifndef PAGEWISE_MEASURE_H
#define PAGEWISE_MEASURE_H

#include <pagewise/base.h>

PW_BEGIN

/* Counters and a clock that are started and stopped together. */
typedef struct pw_probe pw_probe;

/* For pw_probe_open, added with |. */
#define PW_PROCESS 1u   /* All threads, by getrusage; counters know the threads and children started since it was opened. */
#define PW_IN_KERNEL 2u /* The CPU's events in the kernel too, the probe's own system calls included. */
#define PW_NO_USAGE 4u  /* No getrusage: two system calls less. */
#define PW_MEMORY 8u    /* Changes of Rss, Pss, Private_Dirty, Anonymous, AnonHugePages of the process: milliseconds if it is large. */
#define PW_SUBTRACT 16u /* Takes what an empty region has off every value, never to less than 0. */

/* What a number is of. */
enum pw_unit { PW_COUNT = 0, PW_NANOSECONDS = 1, PW_BYTES = 2 };

/* A number, or why there is none. */
typedef struct pw_value {
    double value;         /* For the whole region: scaled where counters took turns. 0 where absent. */
    int64_t count;        /* As it was counted. Changes of memory may be below 0. */
    uint64_t enabled;     /* Nanoseconds for which a counter was wanted; 0 for what is always counted. */
    uint64_t running;     /* Nanoseconds for which it counted: less than enabled where counters took turns. */
    const char *absent;   /* NULL where there is a number; else why there is none. */
    int32_t unit;         /* Of enum pw_unit. */
    int32_t user_mode_only; /* 1 where the kernel's share is not counted. */
} pw_value;

PW_ASSERT(sizeof(pw_value) == 48);
PW_ASSERT(offsetof(pw_value, count) == 8);
PW_ASSERT(offsetof(pw_value, absent) == 32);
PW_ASSERT(offsetof(pw_value, user_mode_only) == 44);

/* Opens a probe of the calling thread and measures some empty regions, which may take some milliseconds.
 *
 * events  Names with commas between, as `pagewise events` lists them: "page_faults,cycles,dtlb_read_misses". "" is none.
 *         NULL is minor_faults, major_faults, context_switches, cycles and instructions. Copied.
 * flags   PW_* added with |, or 0.
 * probe   Gets the probe, which the caller closes; NULL where it fails. Not NULL.
 *
 * EINVAL: no such event, no such flag, not UTF-8, probe is NULL. ENOMEM, EMFILE and others as the kernel gives them. */
int pw_probe_open(pw_probe **probe, const char *events, unsigned flags);

/* Begins a region. One that had begun and was not stopped is forgotten.
 * EINVAL: probe is NULL. EPERM: another thread's probe. Others as the kernel gives them. */
int pw_probe_start(pw_probe *probe);

/* Ends the region. Values of the one before, and the reasons in them, are gone.
 * EINVAL: probe is NULL, or no region was begun. EPERM: another thread's probe. Others as the kernel gives them. */
int pw_probe_stop(pw_probe *probe);

/* Reads a value of the region that ended last.
 *
 * name   wall; unless PW_NO_USAGE user, sys, minflt, majflt, inblock, oublock, nvcsw, nivcsw; the events that the probe
 *        was opened with; with PW_MEMORY the lines named there. Not NULL. user and sys may be sums of scheduler ticks:
 *        for regions of less than some milliseconds task_clock says more.
 * value  Is written. `absent` in it stays valid until the probe is stopped again or closed. Not NULL.
 *
 * EINVAL: an argument is NULL, or no region has ended. ENOENT: nobody asked for that name. EPERM: another thread's probe. */
int pw_probe_read(pw_probe *probe, const char *name, pw_value *value);

/* Reads what an empty region costs, measured when the probe was opened: as pw_probe_read, but for changes of memory, which
 * are absent. `absent` stays valid until the probe is closed. */
int pw_probe_overhead(pw_probe *probe, const char *name, pw_value *value);

/* The name of the value at an index from 0, or NULL from their number on and where probe is NULL. The probe owns it. */
const char *pw_probe_name(const pw_probe *probe, size_t index);

/* Closes a probe and frees what it holds. NULL is allowed, and is nothing. By the thread that opened it, which alone may
 * still use it; another's stays open. */
void pw_probe_close(pw_probe *probe);

PW_END

#endif
