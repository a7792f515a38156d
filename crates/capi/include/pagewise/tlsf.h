/* pagewise/tlsf.h: blocks of any size, freed in any order, in a time that does not depend on the
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
 * Two-level segregated fit: a bitmap of two levels leads to a free block that fits, and a freed
 * block is merged with its free neighbors. Freed blocks are cached before they are merged. The
 * inline functions use the cache of small blocks, which contains at most 32 blocks of each size
 * class.
 *
 * C11 and C++20, with GCC or Clang; link with `pkg-config --cflags --libs pagewise`. 64-bit Linux
 * only. The type in Rust is pagewise_alloc::Tlsf.
 *
 * Errors. If memory is exhausted, a call returns NULL and changes nothing. Detected misuse prints a
 * message and aborts.
 *
 * Alignment. Blocks are aligned to 16, or to more if pw_tlsf_aligned_alloc allocates them.
 *
 * Threads. Only one thread at a time may use a pool; different pools are independent.
 *
 * Checkers. Valgrind and AddressSanitizer report accesses behind a block and to freed blocks, with
 * the call stacks of the allocation and the free of the block.
 */
#ifndef PAGEWISE_TLSF_H
#define PAGEWISE_TLSF_H

#include <pagewise/base.h>
#include <string.h>

PW_BEGIN

/* Number of size classes with cached blocks: up to 24 bytes, 40, 56 .. 520; and maximum number of
 * cached blocks of each size class. */
#define PW_TLSF_CLASSES 32
#define PW_TLSF_KEPT 32
/* Value of each count if every call must take a slow path of the library. */
#define PW_TLSF_CLOSED 255

struct pw_pages;

/* First fields of a pool, which the inline functions use. Only the library creates pools, and a
 * pool must not move. */
typedef struct pw_tlsf {
    uint32_t counts[PW_TLSF_CLASSES]; /* Cached blocks in the lowest byte; above it allocations, for statistics. */
    void *blocks[PW_TLSF_CLASSES][PW_TLSF_KEPT];
} pw_tlsf;

PW_ASSERT(sizeof(void *) == 8 && offsetof(pw_tlsf, blocks) == 128 && sizeof(pw_tlsf) == 8320);

/* Creates a pool with memory of the system; NULL if memory is exhausted. */
pw_tlsf *pw_tlsf_create(void);

/* Creates a pool in a buffer, without memory of the system; NULL if the buffer is too small. The
 * caller owns the buffer, and must not use it for anything else until the pool is destroyed. The
 * library uses about 18 KiB of the buffer. */
pw_tlsf *pw_tlsf_create_in(void *buffer, size_t size);

/* Creates a pool with memory of `pages`, which must outlive the pool; NULL if memory is
 * exhausted. */
pw_tlsf *pw_tlsf_create_on(struct pw_pages *pages);

/* Destroys a pool and releases its memory. Its blocks must not be used any more. Does nothing with
 * NULL. */
void pw_tlsf_destroy(pw_tlsf *pool);

/* Frees all blocks at once, and keeps the memory for later blocks. */
void pw_tlsf_reset(pw_tlsf *pool);

/* Adds guards to a pool that has not allocated anything yet; they cannot be removed. Returns 1 if
 * the pool has guards now, else 0. Each block then takes 48 bytes more, and freed blocks stay in a
 * quarantine before they are used again. A double free, an address at which no block starts, and a
 * write beyond a block or after its free print a message and abort. */
int pw_tlsf_guard(pw_tlsf *pool);

/* Returns regions without live blocks to the system, the buffer or the pool of pages. */
void pw_tlsf_trim(pw_tlsf *pool);

/* Footprint of the pool: number of bytes, used or not, that it has taken and not returned. */
size_t pw_tlsf_held(const pw_tlsf *pool);

/* Sets the name of the pool in `pagewise pools`; only the first 32 bytes of UTF-8 are used. The
 * string, which must not be NULL, is copied. */
void pw_tlsf_set_name(pw_tlsf *pool, const char *name);

/* Checks all internal invariants, and aborts if one is violated. */
void pw_tlsf_check(const pw_tlsf *pool);

/* Returns the usable size of a block: the requested size, rounded up to a size class. For an
 * alignment of up to 16 this adds at most an eighth or 24 bytes, whichever is more. In a pool with
 * guards the usable size is the requested size. `block` must not be NULL. */
size_t pw_tlsf_size(const pw_tlsf *pool, const void *block);

/* Resizes a block, and keeps its contents up to the smaller size: in place if it shrinks or if the
 * memory behind it is free. Returns NULL, and leaves the block unchanged, if memory is exhausted.
 * With a block of NULL it allocates a block. A block with an alignment above 16 that moves may lose
 * this alignment. */
PW_MUST_USE void *pw_tlsf_realloc(pw_tlsf *pool, void *block, size_t size);

/* Slow paths of the inline functions. Programs must not call them. */
void *pw_tlsf_alloc_slow(pw_tlsf *pool, size_t size, size_t align);
void pw_tlsf_free_slow(pw_tlsf *pool, void *block);

/* Returns the size class of a size; PW_TLSF_CLASSES or more if blocks of this size are not in
 * `counts`. */
PW_INLINE size_t pw_tlsf_class_(size_t size)
{
    return size > 24 ? (size - 9) / 16 : 0;
}

/* Allocates memory with undefined contents; NULL if memory is exhausted. A block of size 0 has an
 * address of its own. */
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

/* As pw_tlsf_alloc, but aligned to `align`; NULL if `align` is not a power of two. */
PW_MALLOC PW_INLINE void *pw_tlsf_aligned_alloc(pw_tlsf *pool, size_t align, size_t size)
{
    if (align > 16 || PW_UNLIKELY(align == 0 || (align & (align - 1)) != 0))
        return pw_tlsf_alloc_slow(pool, size, align);
    return pw_tlsf_alloc(pool, size);
}

/* As pw_tlsf_alloc, for n elements; NULL also if the total size overflows. pw_tlsf_zarray also sets
 * every byte to 0. */
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

/* Frees a block. `size` is the size with which the block was allocated, or last reallocated. Faster
 * than pw_tlsf_free, since the function does not read the block. Does nothing with NULL. */
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
        /* The word before a block contains its size, and a bit that is set if the block is 16 bytes
         * longer than its size class. */
        size_t word = ((const size_t *)block)[-1];
        pw_tlsf_free_sized(pool, block, (word & 0xfffffffff0u) - 8 - (word & 4) * 4);
    }
}

/* Allocates memory for n values of a type; NULL if memory is exhausted or if the total size
 * overflows. pw_tlsf_new0 also sets every byte to 0. */
#define pw_tlsf_new(pool, type, n) ((type *)pw_tlsf_array((pool), (n), sizeof(type), PW_ALIGNOF(type)))
#define pw_tlsf_new0(pool, type, n) ((type *)pw_tlsf_zarray((pool), (n), sizeof(type), PW_ALIGNOF(type)))

PW_END

#endif
