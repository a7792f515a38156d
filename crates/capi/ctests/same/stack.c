/* Executes steps on a stack by the inline functions of C. A test in Rust loads this file into its
 * process, and executes the same steps by the functions of Rust. */
#include <pagewise/stack.h>

/* Addresses of the library functions that the inline functions call. The test sets them. */
struct library {
    void *(*alloc)(pw_stack *, size_t, size_t);
    void *(*realloc)(pw_stack *, void *, size_t, size_t, size_t);
    void (*pop)(pw_stack *, const pw_frame *);
    pw_stack *(*find)(void);
};

static struct library library;

void connect_to(const struct library *to)
{
    library = *to;
}

void *pw_stack_alloc_slow(pw_stack *stack, size_t size, size_t align)
{
    return library.alloc(stack, size, align);
}

void *pw_stack_realloc_slow(pw_stack *stack, void *block, size_t old, size_t size, size_t align)
{
    return library.realloc(stack, block, old, size, align);
}

void pw_stack_pop_slow(pw_stack *stack, const pw_frame *frame)
{
    library.pop(stack, frame);
}

pw_stack *pw_t_stack_find(void)
{
    return library.find();
}

enum { ALLOCATE, ALLOCATE_ARRAY, RESIZE, PUSH, POP };

struct step {
    size_t kind, size, align, fill;
};

/* The block that was allocated last, which a RESIZE step resizes. */
struct last {
    char *block;
    size_t size, align;
};

/* Executes steps until the step that pops the frame in which the first step runs, or until `end`.
 * Returns the address of that step or `end`, or NULL if memory is exhausted. */
static const struct step *run(pw_stack *stack, const struct step *step, const struct step *end)
{
    struct last last = {NULL, 0, 1};
    for (; step < end && step->kind != POP; step++) {
        switch (step->kind) {
        case ALLOCATE:
            last = (struct last){pw_stack_alloc(stack, step->size, step->align), step->size, step->align};
            break;
        case ALLOCATE_ARRAY:
            last = (struct last){pw_stack_array(stack, step->size / step->align, step->align, step->align),
                                 step->size / step->align * step->align, step->align};
            break;
        case RESIZE:
            last.block = pw_stack_realloc(stack, last.block, last.size, step->size, last.align);
            last.size = step->size;
            break;
        case PUSH: {
            pw_scope(stack);
            step = run(stack, step + 1, end);
            if (!step || step == end) return step;
            continue;
        }
        }
        if (!last.block) return NULL;
        memset(last.block, (int)step->fill, last.size);
    }
    return step;
}

int run_all(pw_stack *stack, const struct step *steps, size_t n)
{
    return run(stack, steps, steps + n) != NULL;
}

/* Allocates a block of the thread's stack in a new frame, calls `back` in this frame, and returns
 * the address of the block. */
char *in_a_frame_of_c(void (*back)(void *), void *with)
{
    t_scope;
    char *block = pw_t_new(char, 8);
    back(with);
    return block;
}

/* Allocates a block of the thread's stack, and returns its address. */
char *allocated_by_c(void)
{
    return pw_t_new(char, 8);
}
