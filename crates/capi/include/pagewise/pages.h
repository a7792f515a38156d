/* pagewise/pages.h: runs of pages, for any thread: memory for other pools, and for programs that
 * need whole pages.
 *
 *     pw_pages *pages;
 *     if (pw_pages_create(&pages, NULL) != 0) errx(1, "%s", pw_error_message());
 *     char *run = pw_pages_alloc(pages, 1 << 20);
 *     pw_pages_free_part(pages, run + (1 << 19), 1 << 19);
 *     pw_pages_free_part(pages, run, 1 << 19);
 *     pw_tlsf *pool = pw_tlsf_create_on(pages);
 *     pw_tlsf_destroy(pool);
 *     pw_pages_destroy(pages);
 *
 * Nothing is written into a run or before it, so that an untouched run needs no memory. Free
 * resident memory is returned to the system if it exceeds the limit of pw_pages_keep.
 *
 * C11 and C++20; link with `pkg-config --cflags --libs pagewise`. Linux only. The same is
 * pagewise_alloc::Pages in Rust.
 *
 * Errors. Functions that return int return 0, or a number of <errno.h>, and pw_error_message has
 * the message. Others return NULL without memory, and change nothing. Detected misuse prints a
 * message and aborts: an address that is not a run of this pool.
 *
 * Alignment. Runs are aligned to their pages of 4 KiB; to more by pw_pages_aligned_alloc.
 *
 * Threads. A pool is for all threads at once; any thread may free runs of another. Each thread
 * caches some runs. Not for signal handlers.
 *
 * Checkers. Under valgrind, and in programs with AddressSanitizer, pages that are free may not be
 * touched.
 */
#ifndef PAGEWISE_PAGES_H
#define PAGEWISE_PAGES_H

#include <pagewise/base.h>

PW_BEGIN

/* A pool of pages. */
typedef struct pw_pages pw_pages;

/* For pw_pages_options, added with |. */
#define PW_PAGES_HUGE 1u      /* Transparent huge pages, where the kernel has some: madvise. Idle ones stay resident. */
#define PW_PAGES_POPULATED 2u /* Mapped from the start, so that no first touch is a page fault. Stays resident. */
#define PW_PAGES_LOCKED 4u    /* Never swapped: mlock, as much as RLIMIT_MEMLOCK allows. Stays resident. */
#define PW_PAGES_GUARDED 8u   /* An extra page behind each run, and freed pages are filled: misuse prints a message and aborts. */

/* Kind of memory. A field of 0 has its default. */
typedef struct pw_pages_options {
    const char *folder;  /* Memory of a file without a name in this folder, which the kernel can write out. Excludes other kinds. */
    uint64_t nodes;      /* Only of these NUMA nodes, a bit each: mbind. */
    unsigned flags;      /* PW_PAGES_* added with |. */
    unsigned huge_power; /* Reserved huge pages (/proc/sys/vm/nr_hugepages) with a size of this power of two: 21 is 2 MiB. */
} pw_pages_options;

/* Memory of a pool, in bytes. */
typedef struct pw_pages_usage {
    size_t live; /* Allocated. */
    size_t idle; /* Free, and maybe backed by memory. */
    size_t held; /* Addresses from the system or the buffer, resident or not. */
} pw_pages_usage;

PW_ASSERT(sizeof(pw_pages_options) == 24 && offsetof(pw_pages_options, nodes) == 8);
PW_ASSERT(offsetof(pw_pages_options, flags) == 16 && offsetof(pw_pages_options, huge_power) == 20);
PW_ASSERT(sizeof(pw_pages_usage) == 24 && offsetof(pw_pages_usage, held) == 16);

/* Creates a pool, and checks that the system has memory of the kind.
 *
 * pages    Output: the pool, which the caller destroys; NULL on failure. Not NULL.
 * options  NULL is anonymous memory.
 *
 * EINVAL: flags has other bits, kinds that exclude each other, no such NUMA node or size of huge
 * pages. ENOSYS: the kernel has no NUMA. ENOMEM, EPERM, ENOENT and others as the system gives them.
 */
int pw_pages_create(pw_pages **pages, const pw_pages_options *options);

/* Creates a pool in a buffer, without memory of the system; NULL if the buffer is too small. The
 * caller owns the buffer, and uses it for nothing else until the pool is destroyed. The library
 * uses about 30 KiB of it, and 24 bytes for each page. */
pw_pages *pw_pages_create_in(void *buffer, size_t size);

/* Ends a pool and releases its memory: no thread may use its runs. Does nothing with NULL. */
void pw_pages_destroy(pw_pages *pages);

/* Length of a run for a size in bytes: whole pages, at most a sixteenth longer. 0 if no run is this
 * long. */
size_t pw_pages_size(size_t size);

/* A run of pw_pages_size(size) bytes; NULL without memory. A size of 0 is a page. */
PW_MALLOC void *pw_pages_alloc(pw_pages *pages, size_t size);

/* As pw_pages_alloc, with `size` bytes that are 0. Unbacked pages stay unbacked. */
PW_MALLOC void *pw_pages_zalloc(pw_pages *pages, size_t size);

/* As pw_pages_alloc, aligned to a power of two. */
PW_MALLOC void *pw_pages_aligned_alloc(pw_pages *pages, size_t align, size_t size);

/* Frees a run that was allocated, or last reallocated, with this size. Does nothing with NULL. */
void pw_pages_free(pw_pages *pages, void *run, size_t size);

/* Frees any whole pages of a run, as many as `size` bytes need. The rest of the run, pw_pages_size
 * bytes in total, is freed in the same way. */
void pw_pages_free_part(pw_pages *pages, void *start, size_t size);

/* Extends a run of `old` bytes in place. Returns 1, or 0 if the pages after it are not free. */
int pw_pages_extend(pw_pages *pages, void *run, size_t old, size_t size);

/* Resizes a run of `old` bytes, in place if possible, else elsewhere, with its contents. NULL
 * without memory; then the run is unchanged. A run of NULL is a new one.
 */
PW_MUST_USE void *pw_pages_realloc(pw_pages *pages, void *run, size_t old, size_t size);

/* Sets the limit of idle memory, in percent of the allocated memory, never less than 2 MiB. The
 * default is 6: then at most a tenth more is resident than allocated. With more, runs that are
 * written again cause fewer page faults. */
void pw_pages_keep(pw_pages *pages, unsigned percent);

/* Returns all unused memory to the system, except for the caches of other threads. */
void pw_pages_trim(pw_pages *pages);

/* Memory of the pool. */
pw_pages_usage pw_pages_get_usage(pw_pages *pages);

/* Names the pool for `pagewise pools`; the first 32 bytes of UTF-8 count. Copied. Not NULL. */
void pw_pages_set_name(pw_pages *pages, const char *name);

/* Checks all internal invariants, and aborts if one is violated. */
void pw_pages_check(pw_pages *pages);

/* Memory that pools without a pool of pages have released is kept for other pools of the process.
 * Memory in use and kept memory together are at most 1.2 times the high-water mark of the last
 * 16,384 to 32,768 blocks that pools took or released, or 2 MiB more than that mark. Any thread may
 * call these functions. pw_system_trim returns the kept memory to the kernel, except that in caches
 * of other threads; pw_system_keep sets another percentage than 20. */
void pw_system_trim(void);
void pw_system_keep(unsigned percent);

PW_END

#endif
