/* Runs steps on a ring with the inline functions, in the process of a test in Rust, which runs the
 * same steps with the functions of Rust. */
#include <pagewise/ring.h>

/* Functions that the inline functions call, linked by the test. */
struct library {
    void *(*alloc)(pw_ring *, size_t, size_t);
    int (*open)(pw_ring *);
    pw_ring_frame *(*seal)(pw_ring *);
    void (*release)(pw_ring_frame *);
};

static struct library library;

void connect_to(const struct library *to)
{
    library = *to;
}

void *pw_ring_alloc_slow(pw_ring *ring, size_t size, size_t align)
{
    return library.alloc(ring, size, align);
}

/* Replaces the frame at index `place` by one with this number of blocks, size and alignment, filled
 * with `fill`. */
struct step {
    size_t place, blocks, size, align, fill;
};

int run_all(pw_ring *ring, pw_ring_frame **frames, const struct step *step, size_t n)
{
    for (const struct step *end = step + n; step < end; step++) {
        library.release(frames[step->place]);
        if (library.open(ring)) return 0;
        for (size_t at = 0; at < step->blocks; at++) {
            void *block = pw_ring_alloc(ring, step->size, step->align);
            if (!block) return 0;
            memset(block, (int)step->fill, step->size);
        }
        frames[step->place] = library.seal(ring);
    }
    return 1;
}
