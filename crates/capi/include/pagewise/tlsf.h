/* pagewise/tlsf.h: memory of any size, freed in any order, in a time that does not depend on the
 * number of blocks.
 *
 *     pw_tlsf *pool = pw_tlsf_create();
 *     if (!pool) err(1, "no memory");
 *     double *samples = pw_tlsf_new(pool, double, 100);
 *     char *line = pw_tlsf_alloc(pool, 80);
 *     line = pw_tlsf_realloc(pool, line, 160);
 *     pw_tlsf_free(pool, samples);
 *     pw_tlsf_destroy(pool);
 *
 * Two-level segregated fit: two levels of bits lead to a free block that fits, and a freed block is
 * merged with its free neighbors. Freed blocks are cached before that: the inline functions use the
 * cache of small ones, 32 of each size class.
 *
 * C11 and C++20, of GCC or Clang; link with `pkg-config --cflags --libs pagewise`. Linux only, 64
 * bits. The same is pagewise_alloc::Tlsf in Rust.
 *
 * Errors. Without memory a call returns NULL and changes nothing. Detected misuse prints a message
 * and aborts.
 *
 * Alignment. Blocks are aligned to 16; to more by pw_tlsf_aligned_alloc.
 *
 * Threads. A pool is for one thread at a time, and different pools are independent.
 *
 * Checkers. Under valgrind, and in programs with AddressSanitizer, each block is known to them,
 * with the call stacks of its allocation and free.
 */
#ifndef PAGEWISE_TLSF_H
#define PAGEWISE_TLSF_H

#include <pagewise/base.h>
#include <string.h>

PW_BEGIN

/* Sizes of cached blocks: up to 24 bytes, 40, 56 .. 520; and the number of each. */
#define PW_TLSF_CLASSES 32
#define PW_TLSF_KEPT 32
/* Count of each size class if the library must see every call. */
#define PW_TLSF_CLOSED 255

struct pw_pages;

/* The start of a pool, which the inline functions use. Only the library creates one; it does not
 * move. */
typedef struct pw_tlsf {
    uint32_t counts[PW_TLSF_CLASSES]; /* Cached blocks in the lowest byte; above it allocations, for statistics. */
    void *blocks[PW_TLSF_CLASSES][PW_TLSF_KEPT];
} pw_tlsf;

PW_ASSERT(sizeof(void *) == 8 && offsetof(pw_tlsf, blocks) == 128 && sizeof(pw_tlsf) == 8320);

/* Creates a pool with memory of the system; NULL without memory. */
pw_tlsf *pw_tlsf_create(void);

/* Creates a pool in a buffer, without memory of the system; NULL if the buffer is too small. The
 * caller owns the buffer, and uses it for nothing else until the pool is destroyed. The library
 * uses about 18 KiB of it. */
pw_tlsf *pw_tlsf_create_in(void *buffer, size_t size);

/* Creates a pool with memory of `pages`, which must live as long; NULL without memory. */
pw_tlsf *pw_tlsf_create_on(struct pw_pages *pages);

/* Ends a pool and releases its memory: its blocks may not be used any more. Does nothing with
 * NULL. */
void pw_tlsf_destroy(pw_tlsf *pool);

/* Frees all blocks at once, and keeps the memory for those that come. */
void pw_tlsf_reset(pw_tlsf *pool);

/* Adds guards to a pool without any allocation yet. Returns 1 if the pool has guards, which it
 * keeps, else 0. Each block then costs 48 bytes more, and freed blocks stay in a quarantine before
 * they are used again. A double free, a foreign address, a write beyond a block or after its free
 * print a message and abort. */
int pw_tlsf_guard(pw_tlsf *pool);

/* Returns regions without live blocks to the source of their memory. */
void pw_tlsf_trim(pw_tlsf *pool);

/* Footprint of the pool in bytes, used or not. */
size_t pw_tlsf_held(const pw_tlsf *pool);

/* Names the pool for `pagewise pools`; the first 32 bytes of UTF-8 count. Copied. Not NULL. */
void pw_tlsf_set_name(pw_tlsf *pool, const char *name);

/* Checks all internal invariants, and aborts if one is violated. */
void pw_tlsf_check(const pw_tlsf *pool);

/* The usable size of a block: the requested size, or up to an eighth, and at least 16 bytes, more.
 * Not NULL. */
size_t pw_tlsf_size(const pw_tlsf *pool, const void *block);

/* Resizes a block, and keeps its contents as far as they fit: in place if it shrinks or if the
 * memory after it is free. NULL without memory; then the block is unchanged. A block of NULL is a
 * new one. A block with an alignment above 16 may lose it when it moves. */
PW_MUST_USE void *pw_tlsf_realloc(pw_tlsf *pool, void *block, size_t size);

/* Slow paths of the inline functions if the cache is empty: not for programs. */
void *pw_tlsf_alloc_slow(pw_tlsf *pool, size_t size, size_t align);
void pw_tlsf_free_slow(pw_tlsf *pool, void *block);

/* Size class of a size; PW_TLSF_CLASSES or more if its blocks are not cached here. */
PW_INLINE size_t pw_tlsf_class_(size_t size)
{
    return size > 24 ? (size - 9) / 16 : 0;
}

/* Memory with undefined contents; NULL without memory. A size of 0 is a block like any other. */
PW_MALLOC PW_INLINE void *pw_tlsf_alloc(pw_tlsf *pool, size_t size)
{
    size_t of = pw_tlsf_class_(size);
    if (PW_LIKELY(of < PW_TLSF_CLASSES)) {
        size_t last = (uint8_t)(pool->counts[of] - 1);
        if (PW_LIKELY(last < PW_TLSF_KEPT)) {
            pool->counts[of] += 255; /* One cached block less, one allocation more. */
            return pool->blocks[of][last];
        }
    }
    return pw_tlsf_alloc_slow(pool, size, 16);
}

/* As pw_tlsf_alloc, with every byte 0. */
PW_MALLOC PW_INLINE void *pw_tlsf_zalloc(pw_tlsf *pool, size_t size)
{
    void *block = pw_tlsf_alloc(pool, size);
    return block ? memset(block, 0, size) : NULL;
}

/* As pw_tlsf_alloc, aligned to a power of two; NULL for another alignment. */
PW_MALLOC PW_INLINE void *pw_tlsf_aligned_alloc(pw_tlsf *pool, size_t align, size_t size)
{
    if (align > 16 || PW_UNLIKELY(align == 0 || (align & (align - 1)) != 0))
        return pw_tlsf_alloc_slow(pool, size, align);
    return pw_tlsf_alloc(pool, size);
}

/* As pw_tlsf_alloc, for n elements; NULL also if their size overflows. With pw_tlsf_zarray every
 * byte is 0. */
PW_MALLOC PW_INLINE void *pw_tlsf_array(pw_tlsf *pool, size_t n, size_t element, size_t align)
{
    size_t size;
    return __builtin_mul_overflow(n, element, &size) ? NULL : pw_tlsf_aligned_alloc(pool, align, size);
}

PW_MALLOC PW_INLINE void *pw_tlsf_zarray(pw_tlsf *pool, size_t n, size_t element, size_t align)
{
    void *block = pw_tlsf_array(pool, n, element, align);
    return block ? memset(block, 0, n * element) : NULL;
}

/* Frees a block of which the size is known: what it was allocated with, or last reallocated.
 * Faster, since the block is not read. Does nothing with NULL. */
PW_INLINE void pw_tlsf_free_sized(pw_tlsf *pool, void *block, size_t size)
{
    size_t of = pw_tlsf_class_(size);
    if (PW_LIKELY(of < PW_TLSF_CLASSES && (uint8_t)pool->counts[of] < PW_TLSF_KEPT && block != NULL)) {
        pool->blocks[of][(uint8_t)pool->counts[of]++] = block;
        return;
    }
    pw_tlsf_free_slow(pool, block);
}

/* Frees a block. Does nothing with NULL. */
PW_INLINE void pw_tlsf_free(pw_tlsf *pool, void *block)
{
    if (PW_UNLIKELY(block == NULL || (uint8_t)pool->counts[0] == PW_TLSF_CLOSED)) {
        pw_tlsf_free_slow(pool, block);
    } else {
        /* The word before a block: its size, and a bit if the block is 16 bytes longer than its
         * size class. */
        size_t word = ((const size_t *)block)[-1];
        pw_tlsf_free_sized(pool, block, (word & 0xfffffffff0u) - 8 - (word & 4) * 4);
    }
}

/* Memory for n values of a type; NULL without memory, or if their size overflows. With pw_tlsf_new0
 * every byte is 0. */
#define pw_tlsf_new(pool, type, n) ((type *)pw_tlsf_array((pool), (n), sizeof(type), PW_ALIGNOF(type)))
#define pw_tlsf_new0(pool, type, n) ((type *)pw_tlsf_zarray((pool), (n), sizeof(type), PW_ALIGNOF(type)))

PW_END

#endif
