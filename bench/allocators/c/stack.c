/* The races of stacks as C programs run them, at -O3: the floor, obstack, and ours. */
#include <obstack.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define obstack_chunk_alloc malloc
#define obstack_chunk_free free

enum { REQUESTS = 4 };

/* Requests of one level: their sizes in bytes. */
typedef struct level {
    size_t sizes[REQUESTS];
} level;

typedef struct node {
    struct node *next;
} node;

static void keep(const void *memory)
{
    __asm__ volatile("" : : "r"(memory) : "memory");
}

/* Builds a list of nodes that `allocate` gives. */
#define BUILD(nodes, allocate)                                                                                         \
    do {                                                                                                               \
        node *head = NULL;                                                                                             \
        for (size_t n = 0; n < (nodes); n++) {                                                                         \
            node *new = (allocate);                                                                                    \
            new->next = head;                                                                                          \
            head = new;                                                                                                \
        }                                                                                                              \
        keep(head);                                                                                                    \
    } while (0)

/* Allocates what a level asks for, and touches it. */
#define REQUEST(level, allocate)                                                                                       \
    for (int n = 0; n < REQUESTS; n++) {                                                                               \
        size_t size = (level)->sizes[n];                                                                               \
        uint64_t *memory = (allocate);                                                                                 \
        *memory = size;                                                                                                \
    }

/* No stack can be faster: nobody looks whether there is room. */
typedef struct floor_stack {
    char *next;
} floor_stack;

static inline void *floor_alloc(floor_stack *stack, size_t size)
{
    void *start = stack->next;
    stack->next += size;
    return start;
}

void race_floor_list(char *memory, size_t nodes)
{
    floor_stack stack = {memory};
    keep(&stack);
    BUILD(nodes, floor_alloc(&stack, sizeof(node)));
}

static __attribute__((noinline)) void floor_level(floor_stack *stack, const level *level, size_t depth)
{
    char *mark = stack->next;
    REQUEST(level, floor_alloc(stack, size));
    if (depth > 1) floor_level(stack, level + 1, depth - 1);
    stack->next = mark;
}

void race_floor_frames(char *memory, const level *levels, size_t depth, size_t times)
{
    floor_stack stack = {memory};
    keep(&stack);
    for (size_t n = 0; n < times; n++) floor_level(&stack, levels, depth);
}

static struct obstack obstack;

/* A list in an obstack that `race_obstack_free` frees. */
void race_obstack_list(size_t nodes)
{
    if (!obstack_chunk_size(&obstack)) {
        obstack_begin(&obstack, 1 << 16);
        obstack_alignment_mask(&obstack) = 7;
    }
    BUILD(nodes, obstack_alloc(&obstack, sizeof(node)));
}

void race_obstack_free(void)
{
    obstack_free(&obstack, NULL);
    obstack_chunk_size(&obstack) = 0;
}

static __attribute__((noinline)) void obstack_level(struct obstack *stack, const level *level, size_t depth)
{
    void *mark = obstack_alloc(stack, 0);
    REQUEST(level, obstack_alloc(stack, size));
    if (depth > 1) obstack_level(stack, level + 1, depth - 1);
    obstack_free(stack, mark);
}

void race_obstack_frames(const level *levels, size_t depth, size_t times)
{
    struct obstack stack;
    obstack_begin(&stack, 1 << 16);
    obstack_alignment_mask(&stack) = 7;
    for (size_t n = 0; n < times; n++) obstack_level(&stack, levels, depth);
    obstack_free(&stack, NULL);
}
