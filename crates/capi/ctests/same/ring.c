/* Executes steps on a ring by the inline functions of C. A test in Rust loads this file into its
 * process, and executes the same steps by the functions of Rust. */
#include <pagewise/ring.h>

/* Addresses of the library functions that the inline functions call. The test sets them. */
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

/* A step: replaces the frame at index `place` by a frame with this number of blocks, of this size
 * and alignment, filled with `fill`. */
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
