/* Runs steps on a FIFO pool with the inline functions, in the process of a test in Rust, which runs
 * the same steps with the functions of Rust. */
#include <pagewise/fifo.h>

/* Functions that the inline functions call, linked by the test. */
struct library {
    void *(*alloc)(pw_fifo *, size_t, size_t);
    void *(*zalloc)(pw_fifo *, size_t, size_t);
    void (*free)(pw_fifo *, void *, size_t);
};

static struct library library;

void connect_to(const struct library *to)
{
    library = *to;
}

void *pw_fifo_alloc_slow(pw_fifo *pool, size_t size, size_t align)
{
    return library.alloc(pool, size, align);
}

void *pw_fifo_zalloc_slow(pw_fifo *pool, size_t size, size_t align)
{
    return library.zalloc(pool, size, align);
}

void pw_fifo_free_slow(pw_fifo *pool, void *block, size_t size)
{
    library.free(pool, block, size);
}

/* Replaces the block at index `place` by another of this size and alignment, filled with `fill`. */
struct step {
    size_t place, size, align, zeroed, late, fill;
};

struct live {
    void *block;
    size_t size;
};

int run_all(pw_fifo *pool, struct live *live, const struct step *step, size_t n)
{
    for (const struct step *end = step + n; step < end; step++) {
        struct live *old = &live[step->place];
        if (step->late) pw_fifo_free_late(old->block, old->size);
        else pw_fifo_free(pool, old->block, old->size);
        old->size = step->size;
        old->block = (step->zeroed ? pw_fifo_zalloc : pw_fifo_alloc)(pool, step->size, step->align);
        if (!old->block) return 0;
        if (!step->zeroed) memset(old->block, (int)step->fill, step->size);
    }
    return 1;
}
