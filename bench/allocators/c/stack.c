/* The races of stacks as C programs run them, at -O3: the floor, obstack, and ours. */
#include <obstack.h>
#include <pagewise/stack.h>
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

/* Builds a list of nodes from `allocate`. Each node is made observable, so that the compiler does
 * not combine writes. */
#define BUILD(nodes, allocate)                                                                                         \
    do {                                                                                                               \
        node *head = NULL;                                                                                             \
        for (size_t n = 0; n < (nodes); n++) {                                                                         \
            node *new = (allocate);                                                                                    \
            new->next = head;                                                                                          \
            head = new;                                                                                                \
            keep(new);                                                                                                 \
        }                                                                                                              \
        keep(head);                                                                                                    \
    } while (0)

/* Allocates what a level asks for, touches it, and does with it what `keep` says. */
#define REQUEST(level, keep, allocate)                                                                                 \
    for (int n = 0; n < REQUESTS; n++) {                                                                               \
        size_t size = (level)->sizes[n];                                                                               \
        uint64_t *memory = (allocate);                                                                                 \
        *memory = size;                                                                                                \
        keep(memory);                                                                                                  \
    }

/* Lower bound for any stack: it aligns and adds, without checking the free space. */
typedef struct floor_stack {
    char *next;
} floor_stack;

static inline void *floor_alloc(floor_stack *stack, size_t size, size_t align)
{
    uintptr_t start = ((uintptr_t)stack->next + (align - 1)) & ~(uintptr_t)(align - 1);
    stack->next = (char *)(start + size);
    return (void *)start;
}

void race_floor_list(char *memory, size_t nodes)
{
    floor_stack stack = {memory};
    keep(&stack);
    BUILD(nodes, floor_alloc(&stack, sizeof(node), _Alignof(node)));
}

static __attribute__((noinline)) void floor_level(floor_stack *stack, const level *level, size_t depth)
{
    char *mark = stack->next;
    REQUEST(level, keep, floor_alloc(stack, size, 8));
    if (depth > 1) floor_level(stack, level + 1, depth - 1);
    stack->next = mark;
}

void race_floor_frames(char *memory, const level *levels, size_t depth, size_t times)
{
    floor_stack stack = {memory};
    keep(&stack);
    for (size_t n = 0; n < times; n++) floor_level(&stack, levels, depth);
}

static pw_stack ours;

/* A list on our stack, which is popped before this returns. */
void race_ours_list(size_t nodes)
{
    pw_scope(&ours);
    BUILD(nodes, pw_stack_new(&ours, node, 1));
}

static __attribute__((noinline)) void ours_level(pw_stack *stack, const level *level, size_t depth)
{
    pw_scope(stack);
    REQUEST(level, keep, pw_stack_alloc(stack, size, 8));
    if (depth > 1) ours_level(stack, level + 1, depth - 1);
}

void race_ours_frames(const level *levels, size_t depth, size_t times)
{
    for (size_t n = 0; n < times; n++) ours_level(&ours, levels, depth);
}

static __attribute__((noinline)) void t_level(const level *level, size_t depth)
{
    t_scope;
    REQUEST(level, keep, pw_t_alloc(size, 8));
    if (depth > 1) t_level(level + 1, depth - 1);
}

void race_t_frames(const level *levels, size_t depth, size_t times)
{
    for (size_t n = 0; n < times; n++) t_level(levels, depth);
}

/* An obstack with one chunk, which it keeps. */
static struct obstack *obstack_of(size_t size)
{
    static struct obstack obstack;
    static size_t room;
    if (room < size) {
        if (room) obstack_free(&obstack, NULL);
        obstack_begin(&obstack, room = size);
        obstack_alignment_mask(&obstack) = 7;
    }
    return &obstack;
}

void race_obstack_list(size_t nodes)
{
    struct obstack *stack = obstack_of(nodes * sizeof(node) + 4096);
    void *mark = obstack_alloc(stack, 0);
    BUILD(nodes, obstack_alloc(stack, sizeof(node)));
    obstack_free(stack, mark);
}

static __attribute__((noinline)) void obstack_level(struct obstack *stack, const level *level, size_t depth)
{
    void *mark = obstack_alloc(stack, 0);
    /* Looked at, it would be four times slower: compilers then read two of its fields at once, just
     * after one is written. */
    REQUEST(level, (void), obstack_alloc(stack, size));
    if (depth > 1) obstack_level(stack, level + 1, depth - 1);
    obstack_free(stack, mark);
}

void race_obstack_frames(const level *levels, size_t depth, size_t times)
{
    for (size_t n = 0; n < times; n++) obstack_level(obstack_of(1 << 16), levels, depth);
}
