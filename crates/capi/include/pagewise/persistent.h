/* pagewise/persistent.h: a heap in a file, whose blocks exist again when the file is opened again,
 * at whatever address it is then mapped.
 *
 *     pw_persistent heap;
 *     if (pw_persistent_open(&heap, "runs.heap", NULL) != 0) errx(1, "%s", pw_error_message());
 *     pw_rel runs = pw_persistent_root(&heap, "runs");
 *     if (!runs) {
 *         runs = pw_persistent_new0(&heap, uint64_t, 1);
 *         pw_persistent_set_root(&heap, "runs", runs);
 *     }
 *     uint64_t *count = pw_persistent_change(&heap, runs, sizeof(*count));
 *     if (count) ++*count;
 *     pw_persistent_commit(&heap);
 *     pw_persistent_close(&heap);
 *
 * C11 and C++20; link with `pkg-config --cflags --libs pagewise`. Linux only. The file is the same
 * as that of pagewise_alloc::persistent::Persistent in Rust; docs/persistent.md describes the
 * format.
 *
 * Transactions. All that was done since the last pw_persistent_commit is one transaction: it
 * becomes part of the heap when it is committed, at one instruction, or never. A process that is
 * killed, at whatever instruction, leaves a heap that opens with all that was committed and nothing
 * else. With PW_PERSISTENT_POWER so does a loss of power.
 *
 * Writing. A block that this transaction allocated may be written freely. Before writing to other
 * blocks call pw_persistent_change, which saves the old contents: a write without this call is not
 * undone.
 *
 * Pointers in the heap are pw_rel: distance from the start of the file; 0 is the null pointer.
 * Never store an address in it.
 *
 * Errors. Functions that return int return 0, or a number of <errno.h>; those that return a pw_rel
 * or an address return 0 or NULL and set errno. pw_error_message has the message. A call that fails
 * has changed nothing.
 *
 * Threads. One thread at a time may use a heap. One process at a time has it open. A child of fork
 * must not use it: an access raises SIGSEGV.
 *
 * Checkers. Under valgrind, and in programs with AddressSanitizer, memory outside of blocks may not
 * be accessed.
 */
#ifndef PAGEWISE_PERSISTENT_H
#define PAGEWISE_PERSISTENT_H

#include <pagewise/base.h>

PW_BEGIN

/* A pointer in a heap; 0 is the null pointer. */
typedef uint64_t pw_rel;

/* A heap that is open. All zero is one that is not. */
typedef struct pw_persistent {
    char *base;    /* Address of the mapped file. */
    pw_rel first;  /* Blocks lie from here .. */
    pw_rel end;    /* .. up to here, which grows. */
    void *cold;    /* The library's. */
} pw_persistent;

/* Options to open a heap. A field of 0 has its default. */
typedef struct pw_persistent_options {
    uint64_t capacity; /* Maximum number of bytes of blocks in a new heap, up to 2^38; by default 2^36. */
    uint64_t log;      /* Bytes of the log of a new heap, which limit a transaction; by default 2^20. */
    unsigned flags;    /* PW_PERSISTENT_* added with |. */
} pw_persistent_options;

#define PW_PERSISTENT_POWER 1u     /* Commits survive a loss of power, each at the cost of some flushes. */
#define PW_PERSISTENT_WAIT 2u      /* Waits while another process has it open. */
#define PW_PERSISTENT_NO_CREATE 4u /* Makes no heap where there is no file. */
#define PW_PERSISTENT_CHECK_DATA 8u /* Stores a hash over all blocks at the close, and compares it at the open. */

/* Memory of a heap. */
typedef struct pw_persistent_usage {
    uint64_t blocks;
    uint64_t bytes; /* Of the blocks, rounded up to size classes or chunks. */
    uint64_t file;  /* Of the file, holes included. */
} pw_persistent_usage;

PW_ASSERT(sizeof(pw_persistent) == 32 && offsetof(pw_persistent, first) == 8);
PW_ASSERT(offsetof(pw_persistent, end) == 16 && offsetof(pw_persistent, cold) == 24);
PW_ASSERT(sizeof(pw_persistent_options) == 24 && offsetof(pw_persistent_options, flags) == 16);
PW_ASSERT(sizeof(pw_persistent_usage) == 24 && offsetof(pw_persistent_usage, file) == 16);

/* Opens a heap, recovers it if it was not closed, and checks it; creates one if the file does not
 * exist.
 *
 * heap     Output: open, or all zero on failure. Not NULL.
 * path     Path of the file, which only this library may change while it is open. Not NULL.
 * options  NULL for the defaults.
 *
 * EBUSY: another process has it open. EMEDIUMTYPE: the file is not a heap. ENOTSUP: its format is
 * newer. EUCLEAN: it was cut off or damaged. EINVAL: an argument is NULL, or options are
 * impossible. ENOMEM and others from the kernel. */
int pw_persistent_open(pw_persistent *heap, const char *path, const pw_persistent_options *options);

/* Undoes what was not committed, and closes the heap, which is all zero then, also where this
 * fails: then the heap is recovered when next opened. EINVAL: it is not open. */
int pw_persistent_close(pw_persistent *heap);

/* The address of a pointer with this number of bytes after it, while the heap is open; NULL if they
 * are not between `first` and `end`. It is not checked if a block is there. */
PW_INLINE void *pw_persistent_at(const pw_persistent *heap, pw_rel place, size_t size)
{
    if (PW_UNLIKELY(place < heap->first || place > heap->end || size > heap->end - place)) return NULL;
    return heap->base + place;
}

/* The pointer to an address in the heap; 0 for other addresses. */
PW_INLINE pw_rel pw_persistent_rel(const pw_persistent *heap, const void *address)
{
    pw_rel place = (pw_rel)((uintptr_t)address - (uintptr_t)heap->base);
    return place >= heap->first && place < heap->end ? place : 0;
}

/* Allocates a block with undefined contents. `align` is a power of two, up to 16 KiB. ENOSPC: the
 * heap or the disk is full. ENOBUFS: the transaction is larger than the log. EINVAL: unsupported
 * alignment, or the heap is not open. */
pw_rel pw_persistent_alloc(pw_persistent *heap, size_t size, size_t align);

/* As pw_persistent_alloc, with every byte 0. */
pw_rel pw_persistent_zalloc(pw_persistent *heap, size_t size, size_t align);

/* Resizes a block, and keeps its contents as far as they fit. Returns the new pointer; if the block
 * has moved, the commit frees the old one. Errors as for pw_persistent_alloc and
 * pw_persistent_free. */
pw_rel pw_persistent_resize(pw_persistent *heap, pw_rel block, size_t size, size_t align);

/* Frees a block once the transaction is committed; until then it can be read. Does nothing with 0.
 * EINVAL: no allocated block starts there. EBUSY: it has a name. ENOBUFS: as for
 * pw_persistent_alloc. */
int pw_persistent_free(pw_persistent *heap, pw_rel block);

/* Saves the contents of some bytes, which are restored unless the transaction is committed, and
 * returns their address, to be written. EFAULT: they are outside of the blocks. ENOBUFS: as for
 * pw_persistent_alloc. */
void *pw_persistent_change(pw_persistent *heap, pw_rel place, size_t size);

/* Size of a block in bytes: at least the requested size. 0 and EINVAL if no allocated block starts
 * there. */
size_t pw_persistent_size(pw_persistent *heap, pw_rel block);

/* The block that has a name. 0 and ENOENT if no block has it; EINVAL: the name is invalid. */
pw_rel pw_persistent_root(pw_persistent *heap, const char *name);

/* Gives a block a name of 1 to 40 bytes of UTF-8, which another block may have had; a block of 0
 * removes the name. Copied. EINVAL: no allocated block starts there, or the name is invalid.
 * ENOSPC: there are 64 names. */
int pw_persistent_set_root(pw_persistent *heap, const char *name, pw_rel block);

/* Commits the transaction. With PW_PERSISTENT_POWER it returns errors of the kernel: then it is not
 * known if the transaction survives a loss of power. */
int pw_persistent_commit(pw_persistent *heap);

/* Undoes all that was done since the last commit. */
int pw_persistent_abort(pw_persistent *heap);

/* Waits until all committed transactions would survive a power failure, in a heap without
 * PW_PERSISTENT_POWER. */
int pw_persistent_sync(pw_persistent *heap);

/* Names the heap for `pagewise pools`, not in the file; the first 32 bytes of UTF-8 count. Copied.
 * EINVAL: it is not UTF-8. */
int pw_persistent_set_name(pw_persistent *heap, const char *name);

/* Checks all invariants, of the file and of the index in memory. EUCLEAN if one is violated.
 * `usage` is NULL or is written. */
int pw_persistent_check(const pw_persistent *heap, pw_persistent_usage *usage);

/* The size of an array; SIZE_MAX if it overflows. */
PW_INLINE size_t pw_persistent_array_(size_t element, size_t n)
{
    size_t size;
    return __builtin_mul_overflow(element, n, &size) ? SIZE_MAX : size;
}

/* A block for n values of a type, aligned to 16, or 0; the same with every byte 0; and the address
 * of a value of a type, or NULL. */
#define pw_persistent_new(heap, type, n) pw_persistent_alloc((heap), pw_persistent_array_(sizeof(type), (n)), 16)
#define pw_persistent_new0(heap, type, n) pw_persistent_zalloc((heap), pw_persistent_array_(sizeof(type), (n)), 16)
#define pw_persistent_get(heap, type, place) ((type *)pw_persistent_at((heap), (place), sizeof(type)))

PW_END

#endif
