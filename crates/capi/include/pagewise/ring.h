/* pagewise/ring.h: memory in frames that one thread fills and seals, and any thread releases.
 *
 *     pw_ring *ring = pw_ring_create();
 *     while (read_job(&job)) {
 *         if (pw_ring_open(ring)) break;
 *         struct job *copy = pw_ring_new(ring, struct job, 1);
 *         if (copy) *copy = (struct job){pw_ring_strdup(ring, job.name)};
 *         send_to_worker(copy, pw_ring_seal(ring));
 *     }
 *
 * and the worker calls pw_ring_release(frame) when it is done with the job: in any order, in the
 * same few instructions whatever is in the frame, and without waiting for others.
 *
 * C11 and C++20, of GCC or Clang; link with `pkg-config --cflags --libs pagewise`. Linux only. The
 * same memory is pagewise_alloc::Ring in Rust.
 *
 * Errors. Without memory a call returns NULL, or ENOMEM, and changes nothing. Detected misuse
 * prints a message and aborts: a frame that is opened while one is open, sealed while none is; in a
 * ring with canaries also a frame that is released twice, or an overwritten canary.
 *
 * Threads. A ring is for one thread at a time; its sealed frames are for all. Data written before a
 * frame was sealed is visible to the thread that receives it by a queue, a lock or another
 * operation that orders memory.
 *
 * Checkers. Under valgrind, and in programs with AddressSanitizer, each block is known to them,
 * with the call stacks of its allocation and of the release of its frame. Memory past a block, or
 * released, may not be accessed.
 */
#ifndef PAGEWISE_RING_H
#define PAGEWISE_RING_H

#include <pagewise/base.h>
#include <string.h>

PW_BEGIN

/* A ring. Only the library creates one, with more fields than these, which the inline functions
 * use. */
typedef struct pw_ring {
    char *next;    /* The first free byte of the open frame. */
    uintptr_t end; /* Blocks end below this; 0 while no frame is open. */
} pw_ring;

PW_ASSERT(offsetof(pw_ring, end) == 8);

/* A frame that is sealed. Not for dereferencing. */
typedef struct pw_ring_frame pw_ring_frame;

/* A ring with memory of the system; NULL without memory. The caller destroys it. */
pw_ring *pw_ring_create(void);

/* A ring in a buffer, without memory of the system; NULL if the buffer is too small. The caller
 * owns the buffer, and uses it for nothing else until the last frame was released and the ring
 * destroyed. */
pw_ring *pw_ring_create_in(void *buffer, size_t size);

/* Ends a ring, or does nothing with NULL. Contents of an open frame are lost; sealed frames stay
 * until they are released, and the memory is freed with the last. */
void pw_ring_destroy(pw_ring *ring);

/* Adds canaries to a ring without any allocation yet. Returns 1 if the ring has canaries, which it
 * keeps, else 0. */
int pw_ring_guard(pw_ring *ring);

/* Returns memory without blocks to the system. */
void pw_ring_trim(pw_ring *ring);

/* Footprint: bytes that the ring has from the system, or from its buffer. */
size_t pw_ring_held(const pw_ring *ring);

/* Names the ring for `pagewise pools`; the first 32 bytes of UTF-8 count. Copied. */
void pw_ring_set_name(pw_ring *ring, const char *name);

/* Checks all internal invariants, and aborts if one is violated. */
void pw_ring_check(const pw_ring *ring);

/* Opens a frame: 0, or ENOMEM. */
int pw_ring_open(pw_ring *ring);

/* Seals the open frame: no further allocation is possible in it. Never NULL. The receiver releases
 * it, once. */
pw_ring_frame *pw_ring_seal(pw_ring *ring);

/* Frees all that was allocated in the open frame, and closes the frame. */
void pw_ring_cancel(pw_ring *ring);

/* Releases a frame, on any thread: its blocks must not be used any more. Does nothing with NULL. */
void pw_ring_release(pw_ring_frame *frame);

/* Resizes a block, and keeps its contents as far as they fit: in place if it is the last one or
 * does not grow. NULL without memory; then the block is unchanged. `old` and `align` are those of
 * the block, which is of the open frame; a block of NULL has the size 0. */
void *pw_ring_realloc(pw_ring *ring, void *block, size_t old, size_t size, size_t align);

/* Slow paths of the inline functions: not for programs. */
void *pw_ring_alloc_slow(pw_ring *ring, size_t size, size_t align);

/* Memory in the open frame with undefined contents; NULL without memory. `align` is a power of two.
 * A block of size 0 may share its address. */
PW_INLINE void *pw_ring_alloc(pw_ring *ring, size_t size, size_t align)
{
    uintptr_t start = ((uintptr_t)ring->next + (align - 1)) & ~(uintptr_t)(align - 1);
    if (PW_UNLIKELY(start >= ring->end || size >= ring->end - start)) return pw_ring_alloc_slow(ring, size, align);
    ring->next = (char *)(start + size);
    return (char *)start;
}

/* As pw_ring_alloc, with every byte 0. */
PW_INLINE void *pw_ring_zalloc(pw_ring *ring, size_t size, size_t align)
{
    void *block = pw_ring_alloc(ring, size, align);
    return block ? memset(block, 0, size) : NULL;
}

/* Memory for n elements; NULL also if their size overflows. With pw_ring_zarray every byte is 0. */
PW_INLINE void *pw_ring_array(pw_ring *ring, size_t n, size_t element, size_t align)
{
    size_t size;
    return __builtin_mul_overflow(n, element, &size) ? NULL : pw_ring_alloc(ring, size, align);
}

PW_INLINE void *pw_ring_zarray(pw_ring *ring, size_t n, size_t element, size_t align)
{
    size_t size;
    return __builtin_mul_overflow(n, element, &size) ? NULL : pw_ring_zalloc(ring, size, align);
}

/* A copy of a string; NULL without memory. */
PW_INLINE char *pw_ring_strdup(pw_ring *ring, const char *text)
{
    size_t size = strlen(text) + 1;
    void *copy = pw_ring_alloc(ring, size, 1);
    return copy ? (char *)memcpy(copy, text, size) : NULL;
}

/* Memory for n values of a type; NULL without memory, or if their size overflows. With pw_ring_new0
 * every byte is 0. */
#define pw_ring_new(ring, type, n) ((type *)pw_ring_array((ring), (n), sizeof(type), PW_ALIGNOF(type)))
#define pw_ring_new0(ring, type, n) ((type *)pw_ring_zarray((ring), (n), sizeof(type), PW_ALIGNOF(type)))

PW_END

#endif
