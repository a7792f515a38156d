/* pagewise/persistent.h: a heap in a file. Its blocks persist when the file is closed and opened
 * again, even if the file is then mapped at another address.
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
 * C11 and C++20; link with `pkg-config --cflags --libs pagewise`. Linux only. The type in Rust is
 * pagewise_alloc::persistent::Persistent, with the same files; docs/persistent.md describes the
 * format.
 *
 * Transactions. All changes since the last pw_persistent_commit are one transaction. The commit, at
 * a single instruction, makes all of them part of the heap; without it none of them takes effect. A
 * process that is killed, at any instruction, leaves a heap that opens with all committed changes
 * and nothing else. With PW_PERSISTENT_POWER the same is true of a loss of power.
 *
 * Writing. A program may write freely to a block that it has allocated in the open transaction.
 * Before it writes to another block, it must call pw_persistent_change, which saves the old
 * contents. A write without this call is not undone.
 *
 * Pointers. A pointer in the heap is a pw_rel: the offset from the start of the file; 0 is the null
 * pointer. A heap must not contain addresses.
 *
 * Errors. A function that returns int returns 0, or a number of <errno.h> if it fails. A function
 * that returns a pw_rel or an address returns 0 or NULL if it fails, and sets errno.
 * pw_error_message returns the message. A failed call changes nothing.
 *
 * Threads. One thread at a time may use a heap, and one process at a time may have it open. A child
 * of fork must not use the heap: an access raises SIGSEGV.
 *
 * Checkers. Valgrind and AddressSanitizer report accesses to memory outside of blocks.
 */
#ifndef PAGEWISE_PERSISTENT_H
#define PAGEWISE_PERSISTENT_H

#include <pagewise/base.h>

PW_BEGIN

/* Pointer in a heap: the offset of the target from the start of the file; 0 is the null pointer. */
typedef uint64_t pw_rel;

/* A heap. A value of all zeros is a heap that is not open. */
typedef struct pw_persistent {
    char *base;    /* Address of the mapped file. */
    pw_rel first;  /* Offset of the first block. */
    pw_rel end;    /* Offset of the end of the blocks, which grows. */
    void *cold;    /* Only the library uses it. */
} pw_persistent;

/* Options to open a heap. A field of 0 has its default. */
typedef struct pw_persistent_options {
    uint64_t capacity; /* Maximum number of bytes of blocks in a new heap, up to 2^38; by default 2^36. */
    uint64_t log;      /* Bytes of the log of a new heap, which limit a transaction; by default 2^20. */
    unsigned flags;    /* PW_PERSISTENT_* added with |. */
} pw_persistent_options;

#define PW_PERSISTENT_POWER 1u     /* Commits survive a loss of power, each at the cost of some flushes. */
#define PW_PERSISTENT_WAIT 2u      /* Waits while another process has the heap open. */
#define PW_PERSISTENT_NO_CREATE 4u /* Does not create a heap if the file does not exist. */
#define PW_PERSISTENT_CHECK_DATA 8u /* Stores a hash over all blocks at the close, and compares it at the open. */

/* Numbers of blocks and bytes of a heap. */
typedef struct pw_persistent_usage {
    uint64_t blocks;
    uint64_t bytes; /* Bytes of the blocks, rounded up to size classes or chunks. */
    uint64_t file;  /* Size of the file in bytes, holes included. */
} pw_persistent_usage;

PW_ASSERT(sizeof(pw_persistent) == 32 && offsetof(pw_persistent, first) == 8);
PW_ASSERT(offsetof(pw_persistent, end) == 16 && offsetof(pw_persistent, cold) == 24);
PW_ASSERT(sizeof(pw_persistent_options) == 24 && offsetof(pw_persistent_options, flags) == 16);
PW_ASSERT(sizeof(pw_persistent_usage) == 24 && offsetof(pw_persistent_usage, file) == 16);

/* Opens a heap, recovers it if it was not closed, and checks it; creates a heap if the file
 * does not exist.
 *
 * heap     Output: the open heap, or all zero on failure. Not NULL.
 * path     Path of the file, which only this library may change while it is open. Not NULL.
 * options  Options, or NULL for the defaults.
 *
 * EBUSY: another process has the heap open. EMEDIUMTYPE: the file is not a heap. ENOTSUP: its
 * format is newer. EUCLEAN: the file was cut off or damaged. EINVAL: an argument is NULL, or an
 * option is impossible. ENOMEM and others from the kernel. */
int pw_persistent_open(pw_persistent *heap, const char *path, const pw_persistent_options *options);

/* Undoes the open transaction and closes the heap. `heap` is all zero afterwards, even if the call
 * fails: in this case the next open recovers the heap. EINVAL: the heap is not open. */
int pw_persistent_close(pw_persistent *heap);

/* Converts a pw_rel to an address, which is valid while the heap is open. Returns NULL if the
 * `size` bytes from there on are not between `first` and `end`. The function does not check that a
 * block is there. */
PW_INLINE void *pw_persistent_at(const pw_persistent *heap, pw_rel place, size_t size)
{
    if (PW_UNLIKELY(place < heap->first || place > heap->end || size > heap->end - place)) return NULL;
    return heap->base + place;
}

/* Converts an address in the heap to a pw_rel. Returns 0 if the address is outside of the heap. */
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

/* Resizes a block, and keeps its contents up to the smaller size. Returns the new pointer. If the
 * block has moved, the commit frees the old block. Errors as for pw_persistent_alloc and
 * pw_persistent_free. */
pw_rel pw_persistent_resize(pw_persistent *heap, pw_rel block, size_t size, size_t align);

/* Frees a block when the transaction is committed; until then the block can be read. Does nothing
 * with 0. EINVAL: no allocated block starts there. EBUSY: the block has a name. ENOBUFS: the
 * transaction is larger than the log. */
int pw_persistent_free(pw_persistent *heap, pw_rel block);

/* Saves the contents of `size` bytes, and returns their address, so that the program may change
 * them. They are restored unless the transaction is committed. EFAULT: the bytes are outside of the
 * blocks. ENOBUFS: the transaction is larger than the log. */
void *pw_persistent_change(pw_persistent *heap, pw_rel place, size_t size);

/* Returns the size of a block in bytes, which is at least the requested size. Returns 0 and sets
 * errno to EINVAL if no allocated block starts there. */
size_t pw_persistent_size(pw_persistent *heap, pw_rel block);

/* Returns the block with a name. Returns 0 and sets errno to ENOENT if no block has the name, or to
 * EINVAL if the name is invalid. */
pw_rel pw_persistent_root(pw_persistent *heap, const char *name);

/* Sets the name of a block: 1 to 40 bytes of UTF-8, which are copied. If another block has the
 * name, it loses the name. With a block of 0 the name is removed. EINVAL: no allocated block starts
 * there, or the name is invalid. ENOSPC: the heap already has 64 names. */
int pw_persistent_set_root(pw_persistent *heap, const char *name, pw_rel block);

/* Commits the transaction. With PW_PERSISTENT_POWER it may return an error of the kernel: then the
 * transaction may or may not survive a loss of power. */
int pw_persistent_commit(pw_persistent *heap);

/* Undoes all changes since the last commit. */
int pw_persistent_abort(pw_persistent *heap);

/* Waits until all committed transactions would survive a loss of power. Only heaps without
 * PW_PERSISTENT_POWER need it. */
int pw_persistent_sync(pw_persistent *heap);

/* Sets the name of the heap in `pagewise pools`, which is not stored in the file; only the first 32
 * bytes of UTF-8 are used. The string is copied. EINVAL: the name is not UTF-8. */
int pw_persistent_set_name(pw_persistent *heap, const char *name);

/* Checks all invariants of the file and of the index in memory. EUCLEAN if one is violated. Writes
 * the numbers of blocks and bytes to `usage`, if it is not NULL. */
int pw_persistent_check(const pw_persistent *heap, pw_persistent_usage *usage);

/* Returns the size of an array in bytes; SIZE_MAX if the size overflows. */
PW_INLINE size_t pw_persistent_array_(size_t element, size_t n)
{
    size_t size;
    return __builtin_mul_overflow(element, n, &size) ? SIZE_MAX : size;
}

/* pw_persistent_new allocates a block for n values of a type, aligned to 16, or returns 0.
 * pw_persistent_new0 also sets every byte to 0. pw_persistent_get returns the address of a value of
 * a type, or NULL. */
#define pw_persistent_new(heap, type, n) pw_persistent_alloc((heap), pw_persistent_array_(sizeof(type), (n)), 16)
#define pw_persistent_new0(heap, type, n) pw_persistent_zalloc((heap), pw_persistent_array_(sizeof(type), (n)), 16)
#define pw_persistent_get(heap, type, place) ((type *)pw_persistent_at((heap), (place), sizeof(type)))

PW_END

#endif
