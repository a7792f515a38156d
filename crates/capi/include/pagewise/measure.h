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
 * Errors. A function that returns int returns 0; if it fails, it returns a number of <errno.h> and
 * changes nothing, and pw_error_message returns the message. An event that cannot be counted is not
 * an error: its value contains the reason.
 *
 * Threads. A probe measures the thread that opened it, and only that thread may use it: in other
 * threads calls return EPERM. Different probes are independent. A child of fork must not use a
 * probe of its parent, and need not close it.
 */
#ifndef PAGEWISE_MEASURE_H
#define PAGEWISE_MEASURE_H

#include <pagewise/base.h>

PW_BEGIN

/* Counters and a clock that are started and stopped together. */
typedef struct pw_probe pw_probe;

/* Flags of pw_probe_open, combined with |. */
#define PW_PROCESS 1u   /* All threads, by getrusage; counters include threads and children started since the opening. */
#define PW_IN_KERNEL 2u /* The CPU's events in the kernel too, the probe's own system calls included. */
#define PW_NO_USAGE 4u  /* No getrusage: two system calls less. */
#define PW_MEMORY 8u    /* Changes of Rss, Pss, Private_Dirty, Anonymous, AnonHugePages of the process: milliseconds if it is large. */
#define PW_SUBTRACT 16u /* Subtracts the cost of an empty region from every value, down to 0 at least. */

/* Unit of a value. */
enum pw_unit { PW_COUNT = 0, PW_NANOSECONDS = 1, PW_BYTES = 2 };

/* A value, or the reason why it is absent. */
typedef struct pw_value {
    double value;         /* Value for the whole region: scaled if counters were multiplexed. 0 if absent. */
    int64_t count;        /* Counted value, not scaled. Changes of memory may be below 0. */
    uint64_t enabled;     /* Nanoseconds for which a counter was enabled; 0 for values without a counter. */
    uint64_t running;     /* Nanoseconds for which it counted: less than enabled if counters were multiplexed. */
    const char *absent;   /* NULL if the value is present; else the reason of its absence. */
    int32_t unit;         /* A constant of enum pw_unit. */
    int32_t user_mode_only; /* 1 if events in the kernel are not counted. */
} pw_value;

PW_ASSERT(sizeof(pw_value) == 48);
PW_ASSERT(offsetof(pw_value, count) == 8);
PW_ASSERT(offsetof(pw_value, absent) == 32);
PW_ASSERT(offsetof(pw_value, user_mode_only) == 44);

/* Opens a probe of the calling thread, and measures some empty regions. This may take some
 * milliseconds.
 *
 * events  Names separated by commas, as `pagewise events` lists them:
 *         "page_faults,cycles,dtlb_read_misses". "" for no events. NULL for minor_faults,
 *         major_faults, context_switches, cycles and instructions. The string is copied.
 * flags   PW_* combined with |, or 0.
 * probe   Output: the probe, which the caller closes; NULL on failure. Not NULL.
 *
 * EINVAL: an event or a flag is unknown, events is not UTF-8, or probe is NULL. ENOMEM, EMFILE and
 * others from the kernel. */
int pw_probe_open(pw_probe **probe, const char *events, unsigned flags);

/* Begins a region. If a region was begun and not ended, discards it.
 *
 * EINVAL: probe is NULL. EPERM: another thread opened the probe. Others from the kernel. */
int pw_probe_start(pw_probe *probe);

/* Ends the region. The values of the last ended region, and their strings, become invalid.
 *
 * EINVAL: probe is NULL, or no region was begun. EPERM: another thread opened the probe. Others
 * from the kernel. */
int pw_probe_stop(pw_probe *probe);

/* Reads a value of the region that ended last.
 *
 * name   wall; without PW_NO_USAGE user, sys, minflt, majflt, inblock, oublock, nvcsw, nivcsw; the
 *        events that the probe was opened with; with PW_MEMORY the names at that flag. Not NULL.
 *        user and sys may be sums of scheduler ticks: for regions of less than some milliseconds,
 *        task_clock is more exact.
 * value  Output. `absent` in it stays valid until the probe is stopped again or closed. Not NULL.
 *
 * EINVAL: an argument is NULL, or no region has ended. ENOENT: the event was not requested. EPERM:
 * another thread opened the probe. */
int pw_probe_read(pw_probe *probe, const char *name, pw_value *value);

/* Reads the cost of an empty region, which was measured when the probe was opened. Has the
 * parameters and errors of pw_probe_read, but changes of memory are absent. `absent` is valid until
 * the probe is closed. */
int pw_probe_overhead(pw_probe *probe, const char *name, pw_value *value);

/* Returns the name of the value at an index, from 0 on; NULL if the index is beyond the last value
 * or if probe is NULL. The probe owns the string. */
const char *pw_probe_name(const pw_probe *probe, size_t index);

/* Closes a probe and frees its memory. Does nothing with NULL, and does nothing in a thread other
 * than the one that opened the probe. */
void pw_probe_close(pw_probe *probe);

PW_END

#endif
