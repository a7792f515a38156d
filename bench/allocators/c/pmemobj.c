/* PMDK's libpmemobj: a heap in a file with transactions. With PMEM_IS_PMEM_FORCE=1 it treats the
 * file as persistent memory and only flushes caches, which is safe against kills; else it calls
 * msync, which is safe against power failure. */
#include <libpmemobj.h>
#include <stdint.h>
#include <stdlib.h>

struct heap {
    PMEMobjpool *pool;
    PMEMoid *slots;
};

void *pmemobj_heap_new(const char *path, size_t size, size_t live)
{
    struct heap *heap = malloc(sizeof(*heap));
    if (!heap) abort();
    heap->pool = pmemobj_create(path, "race", size, 0600);
    if (!heap->pool) abort();
    heap->slots = pmemobj_direct(pmemobj_root(heap->pool, live * sizeof(PMEMoid)));
    return heap;
}

void pmemobj_heap_replace(void *pointer, size_t slot, size_t size)
{
    struct heap *heap = pointer;
    TX_BEGIN(heap->pool)
    {
        PMEMoid *place = &heap->slots[slot];
        if (!OID_IS_NULL(*place)) pmemobj_tx_free(*place);
        pmemobj_tx_add_range_direct(place, sizeof(*place));
        *place = pmemobj_tx_alloc(size, 1);
        *(uint64_t *)pmemobj_direct(*place) = slot;
    }
    TX_ONABORT
    {
        abort();
    }
    TX_END
}

void pmemobj_heap_delete(void *pointer)
{
    struct heap *heap = pointer;
    pmemobj_close(heap->pool);
    free(heap);
}
