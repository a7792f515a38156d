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
 * C11 and C++20; link with `pkg-config --cflags --libs pagewise`. Linux only. The type in Rust is
 * pagewise_alloc::Pages.
 *
 * Errors. A function that returns int returns 0; if it fails, it returns a number of <errno.h>, and
 * pw_error_message returns the message. Other functions return NULL and change nothing if memory is
 * exhausted. Detected misuse, such as an address that is not that of a run of this pool, prints a
 * message and aborts.
 *
 * Alignment. Runs are aligned to pages of 4 KiB, or to more if pw_pages_aligned_alloc allocates
 * them.
 *
 * Threads. All threads may use a pool at the same time, and a thread may free runs of another
 * thread. Each thread caches some freed runs. Signal handlers must not use a pool.
 *
 * Checkers. Valgrind and AddressSanitizer report accesses to free pages.
 */
#ifndef PAGEWISE_PAGES_H
#define PAGEWISE_PAGES_H

#include <pagewise/base.h>

PW_BEGIN

/* A pool of pages. */
typedef struct pw_pages pw_pages;

/* Flags of pw_pages_options, combined with |. */
#define PW_PAGES_HUGE 1u      /* Transparent huge pages, where the kernel has some: madvise. Idle ones stay resident. */
#define PW_PAGES_POPULATED 2u /* Mapped from the start, so that no first touch is a page fault. Stays resident. */
#define PW_PAGES_LOCKED 4u    /* Never swapped: mlock, as much as RLIMIT_MEMLOCK allows. Stays resident. */
#define PW_PAGES_GUARDED 8u   /* An extra page behind each run, and freed pages are filled: misuse prints a message and aborts. */

/* Options of a pool, which select its kind of memory. A field of 0 has its default. */
typedef struct pw_pages_options {
    const char *folder;  /* Memory of a file without a name in this folder, which the kernel can write out. Excludes other kinds. */
    uint64_t nodes;      /* Memory only of these NUMA nodes, a bit for each: mbind. */
    unsigned flags;      /* PW_PAGES_* added with |. */
    unsigned huge_power; /* Reserved huge pages (/proc/sys/vm/nr_hugepages) with a size of this power of two: 21 is 2 MiB. */
} pw_pages_options;

/* Numbers of bytes of a pool. */
typedef struct pw_pages_usage {
    size_t live; /* Bytes of allocated runs. */
    size_t idle; /* Bytes of free pages that may be backed by memory. */
    size_t held; /* Bytes taken from the system or the buffer, resident or not. */
} pw_pages_usage;

PW_ASSERT(sizeof(pw_pages_options) == 24 && offsetof(pw_pages_options, nodes) == 8);
PW_ASSERT(offsetof(pw_pages_options, flags) == 16 && offsetof(pw_pages_options, huge_power) == 20);
PW_ASSERT(sizeof(pw_pages_usage) == 24 && offsetof(pw_pages_usage, held) == 16);

/* Creates a pool, and checks that the system has memory of the selected kind.
 *
 * pages    Output: the pool, which the caller destroys; NULL on failure. Not NULL.
 * options  Options, or NULL for anonymous memory.
 *
 * EINVAL: pages is NULL, flags has unknown bits, options exclude each other, or a NUMA node or size
 * of huge pages does not exist. ENOSYS: the kernel has no NUMA. ENOMEM, EPERM, ENOENT and others
 * from the kernel.
 */
int pw_pages_create(pw_pages **pages, const pw_pages_options *options);

/* Creates a pool in a buffer, without memory of the system; NULL if the buffer is too small. The
 * caller owns the buffer, and must not use it for anything else until the pool is destroyed. The
 * library uses about 30 KiB of the buffer, and 24 bytes for each page. */
pw_pages *pw_pages_create_in(void *buffer, size_t size);

/* Destroys a pool and releases its memory. No thread may use its runs any more. Does nothing with
 * NULL. */
void pw_pages_destroy(pw_pages *pages);

/* Returns the length in bytes of a run for a size in bytes: whole pages, at most a sixteenth more
 * than the size needs. 0 if no run is this long. */
size_t pw_pages_size(size_t size);

/* Allocates a run of pw_pages_size(size) bytes; NULL if memory is exhausted. A size of 0 gives one
 * page. */
PW_MALLOC void *pw_pages_alloc(pw_pages *pages, size_t size);

/* As pw_pages_alloc, but the first `size` bytes are 0. Unbacked pages stay unbacked. */
PW_MALLOC void *pw_pages_zalloc(pw_pages *pages, size_t size);

/* As pw_pages_alloc, but aligned to `align`, a power of two. */
PW_MALLOC void *pw_pages_aligned_alloc(pw_pages *pages, size_t align, size_t size);

/* Frees a run. `size` is the size with which the run was allocated, or last reallocated. Does
 * nothing with NULL. */
void pw_pages_free(pw_pages *pages, void *run, size_t size);

/* Frees some whole pages of a run, as many as `size` bytes need. All pages of the run,
 * pw_pages_size bytes in total, must be freed by calls of this function. */
void pw_pages_free_part(pw_pages *pages, void *start, size_t size);

/* Extends a run of `old` bytes to `size` bytes in place. Returns 1, or 0 if the pages behind it are
 * not free. */
int pw_pages_extend(pw_pages *pages, void *run, size_t old, size_t size);

/* Resizes a run of `old` bytes: in place if possible, else by moving its contents. Returns NULL,
 * and leaves the run unchanged, if memory is exhausted. With a run of NULL it allocates a run. */
PW_MUST_USE void *pw_pages_realloc(pw_pages *pages, void *run, size_t old, size_t size);

/* Sets the amount of free memory that the pool keeps, in percent of the high-water mark of the
 * memory in use during the last 16,384 to 32,768 allocations and frees; the amount is never less
 * than 2 MiB. The default is 20: used and kept memory together are at most 1.2 times the high-water
 * mark. A higher percentage saves page faults for runs that are freed and allocated again. */
void pw_pages_keep(pw_pages *pages, unsigned percent);

/* Discards the memory of all free pages, and returns unused regions to the system. Runs in the
 * caches of other threads stay. */
void pw_pages_trim(pw_pages *pages);

/* Returns the numbers of used, idle and taken bytes of the pool. */
pw_pages_usage pw_pages_get_usage(pw_pages *pages);

/* Sets the name of the pool in `pagewise pools`; only the first 32 bytes of UTF-8 are used. The
 * string, which must not be NULL, is copied. */
void pw_pages_set_name(pw_pages *pages, const char *name);

/* Checks all internal invariants, and aborts if one is violated. */
void pw_pages_check(pw_pages *pages);

/* Stacks, rings, FIFO pools and TLSF pools take their memory from the system, unless they are
 * created in a buffer or on a pw_pages. If they release this memory, the library keeps some of it
 * for other pools of the process. Memory in use and kept memory together are at most 1.2 times the
 * high-water mark of the memory in use during the last 16,384 to 32,768 allocations and frees of
 * blocks, or 2 MiB more than that mark, whichever is more. Any thread may call these functions.
 * pw_system_trim returns the kept memory to the kernel, except the memory in caches of other
 * threads. pw_system_keep sets another percentage than the default 20. */
void pw_system_trim(void);
void pw_system_keep(unsigned percent);

PW_END

#endif
