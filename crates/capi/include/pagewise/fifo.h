/* pagewise/fifo.h: memory for blocks that are freed in about the order of their allocation:
 * messages, jobs, queues.
 *
 *     pw_fifo *pool = pw_fifo_create();
 *     struct job *job = pool ? pw_fifo_new(pool, struct job, 1) : NULL;
 *     ...
 *     pw_fifo_free(pool, job, sizeof *job);
 *     pw_fifo_destroy(pool);
 *
 * Blocks are adjacent, without headers, in pages of 64 KiB. A page without a live block is used
 * again. Freeing in another order works, but costs more: see docs/allocators.md.
 *
 * C11 and C++20, with GCC or Clang; link with `pkg-config --cflags --libs pagewise`. Linux only.
 * The type in Rust is pagewise_alloc::Fifo.
 *
 * Errors. If memory is exhausted, a call returns NULL and changes nothing. A pool with canaries
 * prints a message and aborts on misuse: a double free, a free with another size, or an overwritten
 * canary.
 *
 * Threads. Only one thread at a time may use a pool and its blocks.
 *
 * Checkers. Valgrind and AddressSanitizer report accesses behind a block and to freed blocks, with
 * the call stacks of the allocation and the free of the block.
 */
#ifndef PAGEWISE_FIFO_H
#define PAGEWISE_FIFO_H

#include <pagewise/base.h>
#include <string.h>

PW_BEGIN

/* A pool. Only the library creates pools, which have more fields than these. The inline functions
 * use these fields; programs must not. */
typedef struct pw_fifo {
    char *next;      /* Start of the next block. */
    uintptr_t end;   /* End of the free space. */
    size_t zeroed;   /* Not 0 if the free space is known to be zero. */
} pw_fifo;

/* Header of a page. Only the inline functions use it. */
struct pw_fifo_page_ {
    uintptr_t hole_end;
    uintptr_t empty_at;
    pw_fifo *pool;
};

PW_ASSERT(offsetof(pw_fifo, end) == 8 && offsetof(pw_fifo, zeroed) == 16);
PW_ASSERT(offsetof(struct pw_fifo_page_, empty_at) == 8 && offsetof(struct pw_fifo_page_, pool) == 16);

/* Creates a pool with memory of the system; NULL if memory is exhausted. The caller destroys the
 * pool. */
pw_fifo *pw_fifo_create(void);

/* Creates a pool in a buffer, without memory of the system; NULL if the buffer is too small. The
 * caller owns the buffer, and must not use it for anything else until the last block is freed and
 * the pool is destroyed. Pages start at multiples of 64 KiB. */
pw_fifo *pw_fifo_create_in(void *buffer, size_t size);

/* Destroys a pool. Does nothing with NULL. Live blocks stay valid until pw_fifo_free_late frees
 * them and releases their memory. */
void pw_fifo_destroy(pw_fifo *pool);

/* Adds canaries to a pool that has not allocated anything yet; they cannot be removed. Returns 1 if
 * the pool has canaries now, else 0. */
int pw_fifo_guard(pw_fifo *pool);

/* Footprint: number of bytes that the pool has taken from the system, or from its buffer, and not
 * returned. */
size_t pw_fifo_held(const pw_fifo *pool);

/* Sets the name of the pool in `pagewise pools`; only the first 32 bytes of UTF-8 are used. The
 * string is copied. */
void pw_fifo_set_name(pw_fifo *pool, const char *name);

/* Checks all internal invariants, and aborts if one is violated. */
void pw_fifo_check(const pw_fifo *pool);

/* Resizes a block, and keeps its contents up to the smaller size: in place if it shrinks or if
 * enough free space follows it, else by moving it. A pool with canaries always moves the block.
 * Returns NULL, and leaves the block unchanged, if memory is exhausted. `old` and `align` are the
 * size and alignment of the block. With a block of NULL and `old` 0 it allocates a block. */
void *pw_fifo_realloc(pw_fifo *pool, void *block, size_t old, size_t size, size_t align);

/* Slow paths of the inline functions. Programs must not call them. */
void *pw_fifo_alloc_slow(pw_fifo *pool, size_t size, size_t align);
void *pw_fifo_zalloc_slow(pw_fifo *pool, size_t size, size_t align);
void pw_fifo_free_slow(pw_fifo *pool, void *block, size_t size);

/* Returns the index of the last byte of a block; sizes are rounded up to multiples of 8. A size of
 * 0 gives a number larger than any page. */
PW_INLINE size_t pw_fifo_last_(size_t size)
{
    return (size - 1) | 7;
}

/* True if the alignment is at most 8 and the free space of a pool is large enough. The slow path
 * handles an alignment of 0 and larger ones. */
PW_INLINE int pw_fifo_fits_(const pw_fifo *pool, size_t last, size_t align)
{
    return PW_LIKELY(align - 1 < 8 && last < pool->end - (uintptr_t)pool->next);
}

/* Allocates a block with undefined contents; NULL if memory is exhausted. `align` is a power of
 * two; an alignment of up to 8 takes no additional memory. */
PW_INLINE void *pw_fifo_alloc(pw_fifo *pool, size_t size, size_t align)
{
    size_t last = pw_fifo_last_(size);
    char *block = pool->next;
    if (!pw_fifo_fits_(pool, last, align)) return pw_fifo_alloc_slow(pool, size, align);
    pool->next = block + last + 1;
    return block;
}

/* As pw_fifo_alloc, with every byte 0. */
PW_INLINE void *pw_fifo_zalloc(pw_fifo *pool, size_t size, size_t align)
{
    size_t last = pw_fifo_last_(size);
    char *block = pool->next;
    if (!pw_fifo_fits_(pool, last, align)) return pw_fifo_zalloc_slow(pool, size, align);
    pool->next = block + last + 1;
    return pool->zeroed ? block : (char *)memset(block, 0, last + 1);
}

/* Returns the address of the page header of a block. */
PW_INLINE struct pw_fifo_page_ *pw_fifo_page_of_(const void *block)
{
    uintptr_t base = ((uintptr_t)block - 1) & ~(uintptr_t)0xffff;
    return (struct pw_fifo_page_ *)(base + (base >> 10 & 0x3c0));
}

/* Frees a block if it is the next in order of age in its page and other blocks of the page are
 * live. Returns 1 if it freed the block, else 0. */
PW_INLINE int pw_fifo_is_next_(struct pw_fifo_page_ *page, const void *block, size_t size)
{
    uintptr_t start = (uintptr_t)block, end = start + pw_fifo_last_(size) + 1;
    if (PW_UNLIKELY(page->hole_end != start || page->empty_at == end || size == 0)) return 0;
    page->hole_end = end;
    return 1;
}

/* Frees a block of this size, in any order. Does nothing with NULL. */
PW_INLINE void pw_fifo_free(pw_fifo *pool, void *block, size_t size)
{
    if (PW_UNLIKELY(!block)) return;
    if (!pw_fifo_is_next_(pw_fifo_page_of_(block), block, size)) pw_fifo_free_slow(pool, block, size);
}

/* As pw_fifo_free, for a block of any pool. The pool may already be destroyed. */
PW_INLINE void pw_fifo_free_late(void *block, size_t size)
{
    if (PW_UNLIKELY(!block)) return;
    struct pw_fifo_page_ *page = pw_fifo_page_of_(block);
    if (!pw_fifo_is_next_(page, block, size)) pw_fifo_free_slow(page->pool, block, size);
}

/* Allocates memory for n elements; NULL if memory is exhausted or if the total size overflows.
 * pw_fifo_zarray also sets every byte to 0. */
PW_INLINE void *pw_fifo_array(pw_fifo *pool, size_t n, size_t element, size_t align)
{
    size_t size;
    return __builtin_mul_overflow(n, element, &size) ? NULL : pw_fifo_alloc(pool, size, align);
}

PW_INLINE void *pw_fifo_zarray(pw_fifo *pool, size_t n, size_t element, size_t align)
{
    size_t size;
    return __builtin_mul_overflow(n, element, &size) ? NULL : pw_fifo_zalloc(pool, size, align);
}

/* Allocates memory for n values of a type; NULL if memory is exhausted or if the total size
 * overflows. pw_fifo_new0 also sets every byte to 0. */
#define pw_fifo_new(pool, type, n) ((type *)pw_fifo_array((pool), (n), sizeof(type), PW_ALIGNOF(type)))
#define pw_fifo_new0(pool, type, n) ((type *)pw_fifo_zarray((pool), (n), sizeof(type), PW_ALIGNOF(type)))

PW_END

#endif
