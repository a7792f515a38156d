/* Executes steps on a TLSF pool by the inline functions of C. A test in Rust loads this file into
 * its process, and executes the same steps by the functions of Rust. */
#include <pagewise/tlsf.h>

/* Addresses of the library functions that the inline functions call. The test sets them. */
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

/* Executes steps. Stores the block of a step in `blocks[place]`, and fills it with the number
 * `place`. Returns the number of live blocks after the last step. */
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
