/* Runs steps on a TLSF pool with the inline functions, in the process of a test in Rust, which runs
 * the same steps with the functions of Rust. */
#include <pagewise/tlsf.h>

/* Functions that the inline functions call, linked by the test. */
struct library {
    void *(*alloc)(pw_tlsf *, size_t, size_t);
    void (*free)(pw_tlsf *, void *);
};

static struct library library;

void connect_to(const struct library *to)
{
    library = *to;
}

void *pw_tlsf_alloc_slow(pw_tlsf *pool, size_t size, size_t align)
{
    return library.alloc(pool, size, align);
}

void pw_tlsf_free_slow(pw_tlsf *pool, void *block)
{
    library.free(pool, block);
}

enum { ALLOCATE, FREE, FREE_SIZED };

struct step {
    size_t kind, place, size;
};

/* Keeps the block of a step in `blocks[place]`, filled with this index. Returns the number of live
 * blocks at the end. */
size_t run_all(pw_tlsf *pool, const struct step *steps, size_t n, void **blocks)
{
    size_t live = 0;
    for (const struct step *step = steps; step < steps + n; step++) {
        void **block = &blocks[step->place];
        switch (step->kind) {
        case ALLOCATE:
            *block = pw_tlsf_alloc(pool, step->size);
            if (!*block) return 0;
            memset(*block, (int)step->place, step->size);
            live++;
            continue;
        case FREE:
            pw_tlsf_free(pool, *block);
            break;
        default:
            pw_tlsf_free_sized(pool, *block, step->size);
        }
        live--;
    }
    return live;
}
