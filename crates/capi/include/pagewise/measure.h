/* pagewise/measure.h: cost of a region of code: time, page faults, counters of the CPU and of the
 * kernel, memory.
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
 * Errors. Functions that return int return 0, or a number of <errno.h> and change nothing;
 * pw_error_message has the message. An event that cannot be counted is not an error: its value has
 * the reason.
 *
 * Threads. A probe measures the thread that opened it and only that thread may use it: others get
 * EPERM. Different probes are independent. A child of fork must not use, and need not close, a
 * probe of its parent.
 */
#ifndef PAGEWISE_MEASURE_H
#define PAGEWISE_MEASURE_H

#include <pagewise/base.h>

PW_BEGIN

/* Counters and a clock that are started and stopped together. */
typedef struct pw_probe pw_probe;

/* For pw_probe_open, added with |. */
#define PW_PROCESS 1u   /* All threads, by getrusage; counters include threads and children started since the opening. */
#define PW_IN_KERNEL 2u /* The CPU's events in the kernel too, the probe's own system calls included. */
#define PW_NO_USAGE 4u  /* No getrusage: two system calls less. */
#define PW_MEMORY 8u    /* Changes of Rss, Pss, Private_Dirty, Anonymous, AnonHugePages of the process: milliseconds if it is large. */
#define PW_SUBTRACT 16u /* Subtracts the cost of an empty region from every value, down to 0 at least. */

/* Unit of a number. */
enum pw_unit { PW_COUNT = 0, PW_NANOSECONDS = 1, PW_BYTES = 2 };

/* A number, or the reason of its absence. */
typedef struct pw_value {
    double value;         /* For the whole region: scaled if counters were multiplexed. 0 if absent. */
    int64_t count;        /* As it was counted. Changes of memory may be below 0. */
    uint64_t enabled;     /* Nanoseconds for which a counter was enabled; 0 for values without a counter. */
    uint64_t running;     /* Nanoseconds for which it counted: less than enabled if counters were multiplexed. */
    const char *absent;   /* NULL if there is a number; else the reason of its absence. */
    int32_t unit;         /* Of enum pw_unit. */
    int32_t user_mode_only; /* 1 if events in the kernel are not counted. */
} pw_value;

PW_ASSERT(sizeof(pw_value) == 48);
PW_ASSERT(offsetof(pw_value, count) == 8);
PW_ASSERT(offsetof(pw_value, absent) == 32);
PW_ASSERT(offsetof(pw_value, user_mode_only) == 44);

/* Opens a probe of the calling thread and measures some empty regions, which may take some
 * milliseconds.
 *
 * events  Names separated by commas, as `pagewise events` lists them:
 *         "page_faults,cycles,dtlb_read_misses". "" for no events. NULL for minor_faults,
 *         major_faults, context_switches, cycles and instructions. Copied.
 * flags   PW_* combined with |, or 0.
 * probe   Output: the probe, which the caller closes; NULL on failure. Not NULL.
 *
 * EINVAL: unknown event, unknown flag, not UTF-8, or probe is NULL. ENOMEM, EMFILE and others from
 * the kernel. */
int pw_probe_open(pw_probe **probe, const char *events, unsigned flags);

/* Begins a region. A region that was not stopped is discarded.
 *
 * EINVAL: probe is NULL. EPERM: another thread's probe. Others from the kernel. */
int pw_probe_start(pw_probe *probe);

/* Ends the region. The values of the region before, and the strings in them, become invalid.
 *
 * EINVAL: probe is NULL, or no region was begun. EPERM: another thread's probe. Others from the
 * kernel. */
int pw_probe_stop(pw_probe *probe);

/* Reads a value of the region that ended last.
 *
 * name   wall; without PW_NO_USAGE user, sys, minflt, majflt, inblock, oublock, nvcsw, nivcsw; the
 *        events that the probe was opened with; with PW_MEMORY the lines named there. Not NULL.
 *        user and sys may be sums of scheduler ticks: for regions of less than some milliseconds,
 *        task_clock is more exact.
 * value  Output. `absent` in it stays valid until the probe is stopped again or closed. Not NULL.
 *
 * EINVAL: an argument is NULL, or no region has ended. ENOENT: the event was not requested. EPERM:
 * another thread's probe. */
int pw_probe_read(pw_probe *probe, const char *name, pw_value *value);

/* Reads the cost of an empty region, measured when the probe was opened: like pw_probe_read, except
 * that changes of memory are absent. `absent` stays valid until the probe is closed. */
int pw_probe_overhead(pw_probe *probe, const char *name, pw_value *value);

/* The name of the value at an index from 0; NULL for an index beyond the last value, and if probe
 * is NULL. The probe owns the string. */
const char *pw_probe_name(const pw_probe *probe, size_t index);

/* Closes a probe and frees its memory. Does nothing with NULL, and in another thread than the one
 * that opened the probe, which alone may use it. */
void pw_probe_close(pw_probe *probe);

PW_END

#endif
