/* pagewise/ring.h: memory in frames, which one thread fills and seals, and any thread releases.
 *
 *     pw_ring *ring = pw_ring_create();
 *     while (read_job(&job)) {
 *         if (pw_ring_open(ring)) break;
 *         struct job *copy = pw_ring_new(ring, struct job, 1);
 *         if (copy) *copy = (struct job){pw_ring_strdup(ring, job.name)};
 *         send_to_worker(copy, pw_ring_seal(ring));
 *     }
 *
 * The worker calls pw_ring_release(frame) when it has done the job: in any order, with the same few
 * instructions for any content of the frame, and without waiting for other threads.
 *
 * C11 and C++20, with GCC or Clang; link with `pkg-config --cflags --libs pagewise`. Linux only.
 * The type in Rust is pagewise_alloc::Ring.
 *
 * Errors. If memory is exhausted, a call returns NULL or ENOMEM and changes nothing. Detected
 * misuse prints a message and aborts: opening a frame while another frame is open, or sealing while
 * no frame is open; in a ring with canaries also a second release of a frame, or an overwritten
 * canary.
 *
 * Threads. Only one thread at a time may use a ring, but all threads may use its sealed frames.
 * Data that was written before the seal is visible to a thread that receives the frame by a queue,
 * a lock or another operation that orders memory accesses.
 *
 * Checkers. Valgrind and AddressSanitizer report accesses behind a block and to released blocks,
 * with the call stacks of the allocation of the block and of the release of its frame.
 */
#ifndef PAGEWISE_RING_H
#define PAGEWISE_RING_H

#include <pagewise/base.h>
#include <string.h>

PW_BEGIN

/* A ring, which allocates blocks in frames. A frame is a group of blocks that are freed together.
 * It is open from pw_ring_open until pw_ring_seal or pw_ring_cancel, and only the open frame of a
 * ring can allocate blocks. Only the library creates rings, which have more fields than these. The
 * inline functions use these fields; programs must not. */
typedef struct pw_ring {
    char *next;    /* The first free byte of the open frame. */
    uintptr_t end; /* Blocks end below this; 0 while no frame is open. */
} pw_ring;

PW_ASSERT(offsetof(pw_ring, end) == 8);

/* A sealed frame: a group of blocks that pw_ring_seal has closed to further allocations, and that
 * pw_ring_release frees together. Programs must not dereference the pointer. */
typedef struct pw_ring_frame pw_ring_frame;

/* Creates a ring with memory of the system; NULL if memory is exhausted. The caller destroys the
 * ring. */
pw_ring *pw_ring_create(void);

/* Creates a ring in a buffer, without memory of the system; NULL if the buffer is too small. The
 * caller owns the buffer, and must not use it for anything else until the last frame is released
 * and the ring is destroyed. */
pw_ring *pw_ring_create_in(void *buffer, size_t size);

/* Destroys a ring. Does nothing with NULL. An open frame is freed. Sealed frames stay valid until
 * they are released, and the memory of the ring is freed with the last of them. */
void pw_ring_destroy(pw_ring *ring);

/* Adds canaries to a ring that has not allocated anything yet; they cannot be removed. Returns 1 if
 * the ring has canaries now, else 0. */
int pw_ring_guard(pw_ring *ring);

/* Returns memory without frames to the system. */
void pw_ring_trim(pw_ring *ring);

/* Footprint: number of bytes that the ring has taken from the system, or from its buffer, and not
 * returned. */
size_t pw_ring_held(const pw_ring *ring);

/* Sets the name of the ring in `pagewise pools`; only the first 32 bytes of UTF-8 are used. The
 * string is copied. */
void pw_ring_set_name(pw_ring *ring, const char *name);

/* Checks all internal invariants, and aborts if one is violated. */
void pw_ring_check(const pw_ring *ring);

/* Opens a frame. Returns 0, or ENOMEM if memory is exhausted. */
int pw_ring_open(pw_ring *ring);

/* Seals the open frame, which cannot allocate any more. Returns the frame, never NULL; its receiver
 * must release it once. */
pw_ring_frame *pw_ring_seal(pw_ring *ring);

/* Closes the open frame, and frees all of its blocks. */
void pw_ring_cancel(pw_ring *ring);

/* Releases a sealed frame, on any thread. Its blocks must not be used any more. Does nothing with
 * NULL. */
void pw_ring_release(pw_ring_frame *frame);

/* Resizes a block of the open frame, and keeps its contents up to the smaller size: in place if it
 * is the last block or does not grow. Returns NULL, and leaves the block unchanged, if memory is
 * exhausted. `old` and `align` are the size and alignment of the block. With a block of NULL and
 * `old` 0 it allocates a block. */
void *pw_ring_realloc(pw_ring *ring, void *block, size_t old, size_t size, size_t align);

/* Slow paths of the inline functions. Programs must not call them. */
void *pw_ring_alloc_slow(pw_ring *ring, size_t size, size_t align);

/* Allocates memory in the open frame with undefined contents; NULL if memory is exhausted. `align`
 * is a power of two. A block of size 0 may have the same address as another block. */
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

/* Allocates memory for n elements; NULL if memory is exhausted or if the total size overflows.
 * pw_ring_zarray also sets every byte to 0. */
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

/* Copies a string into the open frame; NULL if memory is exhausted. */
PW_INLINE char *pw_ring_strdup(pw_ring *ring, const char *text)
{
    size_t size = strlen(text) + 1;
    void *copy = pw_ring_alloc(ring, size, 1);
    return copy ? (char *)memcpy(copy, text, size) : NULL;
}

/* Allocates memory for n values of a type; NULL if memory is exhausted or if the total size
 * overflows. pw_ring_new0 also sets every byte to 0. */
#define pw_ring_new(ring, type, n) ((type *)pw_ring_array((ring), (n), sizeof(type), PW_ALIGNOF(type)))
#define pw_ring_new0(ring, type, n) ((type *)pw_ring_zarray((ring), (n), sizeof(type), PW_ALIGNOF(type)))

PW_END

#endif
