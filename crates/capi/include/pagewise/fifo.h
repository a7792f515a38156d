/* pagewise/fifo.h: memory for blocks that are freed in about the order of their allocation:
 * messages, jobs, queues.
 *
 *     pw_fifo *pool = pw_fifo_create();
 *     struct job *job = pool ? pw_fifo_new(pool, struct job, 1) : NULL;
 *     ...
 *     pw_fifo_free(pool, job, sizeof *job);
 *     pw_fifo_destroy(pool);
 *
 * Blocks lie side by side, without headers, in pages of 64 KiB, which are used again when they
 * contain no live block. Freeing in another order works, and costs more: see docs/allocators.md.
 *
 * C11 and C++20, of GCC or Clang; link with `pkg-config --cflags --libs pagewise`. Linux only. The
 * same memory is pagewise_alloc::Fifo in Rust.
 *
 * Errors. Without memory a call returns NULL and changes nothing. In a pool with canaries misuse
 * prints a message and aborts: a double free, a free with another size, or an overwritten canary.
 *
 * Threads. A pool and its blocks are for one thread at a time.
 *
 * Checkers. Under valgrind, and in programs with AddressSanitizer, each block is known to them,
 * with the call stacks of its allocation and free. Memory past a block, or freed, may not be
 * accessed.
 */
#ifndef PAGEWISE_FIFO_H
#define PAGEWISE_FIFO_H

#include <pagewise/base.h>
#include <string.h>

PW_BEGIN

/* A pool. Only the library creates one, with more fields than these, which the inline functions
 * use. */
typedef struct pw_fifo {
    char *next;      /* Start of the next block. */
    uintptr_t end;   /* End of the free space. */
    size_t zeroed;   /* Not 0 if the free space is known to be zero. */
} pw_fifo;

/* Header of a page, for the inline functions. */
struct pw_fifo_page_ {
    uintptr_t hole_end;
    uintptr_t empty_at;
    pw_fifo *pool;
};

PW_ASSERT(offsetof(pw_fifo, end) == 8 && offsetof(pw_fifo, zeroed) == 16);
PW_ASSERT(offsetof(struct pw_fifo_page_, empty_at) == 8 && offsetof(struct pw_fifo_page_, pool) == 16);

/* A pool with memory of the system; NULL without memory. The caller destroys it. */
pw_fifo *pw_fifo_create(void);

/* A pool in a buffer, without memory of the system; NULL if the buffer is too small. The caller
 * owns the buffer, and uses it for nothing else until the last block was freed and the pool
 * destroyed. Pages start at multiples of 64 KiB. */
pw_fifo *pw_fifo_create_in(void *buffer, size_t size);

/* Ends a pool, or does nothing with NULL. Live blocks stay valid until pw_fifo_free_late, which
 * releases their memory. */
void pw_fifo_destroy(pw_fifo *pool);

/* Adds canaries to a pool without any allocation yet. Returns 1 if the pool has canaries, which it
 * keeps, else 0. */
int pw_fifo_guard(pw_fifo *pool);

/* Footprint: bytes that the pool has from the system, or from its buffer. */
size_t pw_fifo_held(const pw_fifo *pool);

/* Names the pool for `pagewise pools`; the first 32 bytes of UTF-8 count. Copied. */
void pw_fifo_set_name(pw_fifo *pool, const char *name);

/* Checks all internal invariants, and aborts if one is violated. */
void pw_fifo_check(const pw_fifo *pool);

/* Resizes a block, and keeps its contents as far as they fit: in place if it gets smaller, or if it
 * is the last one and there is space. NULL without memory; then the block is unchanged. `old` and
 * `align` are those of the block; a block of NULL has the size 0. */
void *pw_fifo_realloc(pw_fifo *pool, void *block, size_t old, size_t size, size_t align);

/* Slow paths of the inline functions: not for programs. */
void *pw_fifo_alloc_slow(pw_fifo *pool, size_t size, size_t align);
void *pw_fifo_zalloc_slow(pw_fifo *pool, size_t size, size_t align);
void pw_fifo_free_slow(pw_fifo *pool, void *block, size_t size);

/* The last byte of a block, counted from 0: sizes are rounded up to 8. For a size of 0 a number
 * that exceeds every page. */
PW_INLINE size_t pw_fifo_last_(size_t size)
{
    return (size - 1) | 7;
}

/* True if the free space of a pool is large enough. An alignment of 0 is left to the slow path. */
PW_INLINE int pw_fifo_fits_(const pw_fifo *pool, size_t last, size_t align)
{
    return PW_LIKELY(align - 1 < 8 && last < pool->end - (uintptr_t)pool->next);
}

/* A block with undefined contents; NULL without memory. `align` is a power of two; up to 8 costs
 * nothing. */
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

/* Address of the page of a block. */
PW_INLINE struct pw_fifo_page_ *pw_fifo_page_of_(const void *block)
{
    uintptr_t base = ((uintptr_t)block - 1) & ~(uintptr_t)0xffff;
    return (struct pw_fifo_page_ *)(base + (base >> 10 & 0x3c0));
}

/* Frees a block if it is the next in order of age in its page, and other blocks there are live. */
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

/* As pw_fifo_free, for a block of any pool, which may have been destroyed since. */
PW_INLINE void pw_fifo_free_late(void *block, size_t size)
{
    if (PW_UNLIKELY(!block)) return;
    struct pw_fifo_page_ *page = pw_fifo_page_of_(block);
    if (!pw_fifo_is_next_(page, block, size)) pw_fifo_free_slow(page->pool, block, size);
}

/* Memory for n elements; NULL also if their size overflows. With pw_fifo_zarray every byte is 0. */
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

/* Memory for n values of a type; NULL without memory, or if their size overflows. With pw_fifo_new0
 * every byte is 0. */
#define pw_fifo_new(pool, type, n) ((type *)pw_fifo_array((pool), (n), sizeof(type), PW_ALIGNOF(type)))
#define pw_fifo_new0(pool, type, n) ((type *)pw_fifo_zarray((pool), (n), sizeof(type), PW_ALIGNOF(type)))

PW_END

#endif
