/* pagewise/stack.h: memory in frames. An allocation adds to a pointer, and all memory of a frame is
 * freed at once.
 *
 *     char *t_path(const char *folder, const char *name)
 *     {
 *         size_t size = strlen(folder) + strlen(name) + 2;
 *         char *path = pw_t_new(char, size);
 *         if (path) snprintf(path, size, "%s/%s", folder, name);
 *         return path;
 *     }
 *
 *     void print(const char *folder, const char **names, size_t n)
 *     {
 *         t_scope;
 *         for (size_t i = 0; i < n; i++) puts(t_path(folder, names[i]));
 *     }
 *
 * All memory that was allocated on the thread's stack since `t_scope;` is freed at the end of the
 * enclosing block, however the block is left. By convention, the name of a function that allocates
 * in its caller's frame begins with t_. For other stacks than that of the thread, see pw_stack
 * below.
 *
 * C11 and C++20, with GCC or Clang; link with `pkg-config --cflags --libs pagewise`. Linux only.
 * The type in Rust is pagewise_alloc::Stack. The t_scope of Rust and that of C push their frames on
 * the same stack of the thread.
 *
 * Errors. If memory is exhausted, a call returns NULL and changes nothing. Detected misuse prints a
 * message and aborts: popping a frame that is not the innermost, or an overwritten canary.
 *
 * Alignment. Alignments are powers of two. Blocks have no padding except for their alignment: two
 * blocks of chars are adjacent.
 *
 * Threads. Only one thread at a time may use a stack. The stack of a thread is destroyed when the
 * thread exits; signal handlers must not use it. A program must not call longjmp out of a t_scope:
 * the frame would stay pushed, and the next pop of an outer frame would abort.
 *
 * Checkers. Valgrind and AddressSanitizer report accesses behind a block and to popped blocks, with
 * the call stacks of the allocation of the block and of the pop of its frame.
 */
#ifndef PAGEWISE_STACK_H
#define PAGEWISE_STACK_H

#include <pagewise/base.h>
#include <string.h>

PW_BEGIN

/* Position of a stack when a frame was pushed. It is usually a local variable of the function that
 * pushes the frame, and must not move while the frame is open. */
typedef struct pw_frame {
    char *next;
    void *block;
    struct pw_frame *outer;
} pw_frame;

/* A stack. A value of all zeros, `pw_stack stack = {0};`, is a stack without memory, which takes
 * memory from the system when it needs some. A stack may be moved while no frame is open. Programs
 * must not use its fields. */
typedef struct pw_stack {
    char *next;      /* The first free byte. */
    char *end;       /* End of the free space. */
    void *block;     /* The chunk of memory that contains next and end. */
    void *cold;
    pw_frame *frame; /* The innermost frame; odd if it began in another chunk. */
    size_t guarded;
    void *buffer;
    size_t left;
} pw_stack;

PW_ASSERT(sizeof(pw_frame) == 24 && offsetof(pw_frame, outer) == 16);
PW_ASSERT(offsetof(pw_stack, end) == 8 && offsetof(pw_stack, block) == 16 && offsetof(pw_stack, cold) == 24);
PW_ASSERT(offsetof(pw_stack, frame) == 32 && offsetof(pw_stack, guarded) == 40 && offsetof(pw_stack, buffer) == 48);
PW_ASSERT(sizeof(pw_stack) == 64);

/* Creates a stack in a buffer, without memory of the system. The caller owns the buffer, and must
 * not use it for anything else until the stack is wiped. The library uses about 300 bytes of the
 * buffer. */
void pw_stack_init_in(pw_stack *stack, void *buffer, size_t size);

/* Releases all memory of a stack, which is then as it was when it was created. Its blocks must not
 * be used any more. Aborts if a frame is open. */
void pw_stack_wipe(pw_stack *stack);

/* Adds canaries to a stack that has no memory yet; they cannot be removed. The canary behind each
 * block is checked when the frame of the block is popped, and popped memory is filled with a
 * pattern. Returns 1 if the stack has canaries now, else 0. */
int pw_stack_guard(pw_stack *stack);

/* Prepares a single chunk of memory for the next `size` bytes of blocks, including alignment, so
 * that none of these blocks crosses the end of a chunk. If the stack has no memory yet, all of them
 * are contiguous. Returns 1, or 0 without any change if memory is exhausted. */
int pw_stack_reserve(pw_stack *stack, size_t size);

/* Returns free chunks of memory to the system. */
void pw_stack_trim(pw_stack *stack);

/* Footprint: number of bytes that the stack has taken from the system, or from its buffer, and not
 * returned. */
size_t pw_stack_held(const pw_stack *stack);

/* Sets the name of the stack in `pagewise pools`; only the first 32 bytes of UTF-8 are used. The
 * string is copied. If the stack has no memory yet, it takes some. */
void pw_stack_set_name(pw_stack *stack, const char *name);

/* Checks all internal invariants, and aborts if one is violated. */
void pw_stack_check(const pw_stack *stack);

/* Slow paths of the inline functions. Programs must not call them. */
void *pw_stack_alloc_slow(pw_stack *stack, size_t size, size_t align);
void *pw_stack_realloc_slow(pw_stack *stack, void *block, size_t old, size_t size, size_t align);
void pw_stack_pop_slow(pw_stack *stack, const pw_frame *frame);
pw_stack *pw_t_stack_find(void);

/* Returns the address of the next block with this alignment. */
PW_INLINE uintptr_t pw_stack_start_(const pw_stack *stack, size_t align)
{
    return ((uintptr_t)stack->next + (align - 1)) & ~(uintptr_t)(align - 1);
}

/* True if the current chunk has space for a block of `size` bytes at `start`. Blocks end before
 * `end`, which is aligned to 16. So only an alignment above 16 can move `start` beyond `end`. The
 * comparison subtracts, because a sum could overflow. */
PW_INLINE int pw_stack_fits_(const pw_stack *stack, uintptr_t start, size_t size, size_t align)
{
    uintptr_t end = (uintptr_t)stack->end;
    return PW_LIKELY(size < end - start && (align <= 16 || start <= end));
}

/* Allocates memory in the innermost frame with undefined contents; NULL if memory is exhausted.
 * `align` is a power of two. A block of size 0 may have the same address as another block. */
PW_INLINE void *pw_stack_alloc(pw_stack *stack, size_t size, size_t align)
{
    uintptr_t start = pw_stack_start_(stack, align);
    if (!pw_stack_fits_(stack, start, size, align)) return pw_stack_alloc_slow(stack, size, align);
    stack->next = (char *)(start + size);
    return (char *)start;
}

/* As pw_stack_alloc, with every byte 0. */
PW_INLINE void *pw_stack_zalloc(pw_stack *stack, size_t size, size_t align)
{
    void *block = pw_stack_alloc(stack, size, align);
    return block ? memset(block, 0, size) : NULL;
}

/* As pw_stack_alloc, for n elements whose size is a multiple of their alignment. The new `next` is
 * then the aligned sum of the old one and the size, so the dependency chain from one block to the
 * next is one instruction shorter. Returns NULL also if the total size overflows. */
PW_INLINE void *pw_stack_array(pw_stack *stack, size_t n, size_t element, size_t align)
{
    uintptr_t start = pw_stack_start_(stack, align);
    size_t size;
    if (__builtin_mul_overflow(n, element, &size)) return NULL;
    if (!pw_stack_fits_(stack, start, size, align)) return pw_stack_alloc_slow(stack, size, align);
    stack->next = (char *)(((uintptr_t)stack->next + size + (align - 1)) & ~(uintptr_t)(align - 1));
    return (char *)start;
}

/* As pw_stack_array, with every byte 0. */
PW_INLINE void *pw_stack_zarray(pw_stack *stack, size_t n, size_t element, size_t align)
{
    void *block = pw_stack_array(stack, n, element, align);
    return block ? memset(block, 0, n * element) : NULL;
}

/* Resizes a block, and keeps its contents up to the smaller size: in place if it is the last block
 * or does not grow. Returns NULL, and leaves the block unchanged, if memory is exhausted. `old` is
 * the size of the block; with a block of NULL and `old` 0 it allocates a block. The returned block
 * belongs to the innermost frame. */
PW_INLINE void *pw_stack_realloc(pw_stack *stack, void *block, size_t old, size_t size, size_t align)
{
    uintptr_t start = (uintptr_t)block;
    int is_last = start + old == (uintptr_t)stack->next && (start & (align - 1)) == 0;
    if (!is_last || size >= (uintptr_t)stack->end - start) return pw_stack_realloc_slow(stack, block, old, size, align);
    stack->next = (char *)(start + size);
    return block;
}

/* Copies a string into the innermost frame; NULL if memory is exhausted. */
PW_INLINE char *pw_stack_strdup(pw_stack *stack, const char *text)
{
    size_t size = strlen(text) + 1;
    void *copy = pw_stack_alloc(stack, size, 1);
    return copy ? (char *)memcpy(copy, text, size) : NULL;
}

/* Pushes a frame. The caller provides the memory of `frame`. */
PW_INLINE void pw_stack_push(pw_stack *stack, pw_frame *frame)
{
    char *next = stack->next;
    void *block = stack->block;
    /* Keeps the compiler from loading both fields by one load of 16 bytes, which would wait until
     * the last store of 8 bytes to `next` is in the cache. */
    __asm__("" : "+r"(next), "+r"(block));
    frame->next = next;
    frame->block = block;
    frame->outer = stack->frame;
    stack->frame = frame;
}

/* Pops a frame: frees all blocks that were allocated since the frame was pushed. Aborts if the
 * frame is not the innermost open frame. */
PW_INLINE void pw_stack_pop(pw_stack *stack, pw_frame *frame)
{
    if (PW_LIKELY(stack->frame == frame)) {
        stack->frame = frame->outer;
        stack->next = frame->next;
    } else {
        pw_stack_pop_slow(stack, frame);
    }
}

/* Returns the stack of the calling thread, which t_scope of Rust also uses. Never NULL. */
PW_INLINE pw_stack *pw_t_stack(void)
{
    static PW_THREAD_LOCAL __attribute__((tls_model("initial-exec"))) pw_stack *mine;
    if (PW_UNLIKELY(mine == NULL)) mine = pw_t_stack_find();
    return mine;
}

/* Allocates memory for n values of a type; NULL if memory is exhausted or if the total size
 * overflows. pw_stack_new0 also sets every byte to 0. */
#define pw_stack_new(stack, type, n) ((type *)pw_stack_array((stack), (n), sizeof(type), PW_ALIGNOF(type)))
#define pw_stack_new0(stack, type, n) ((type *)pw_stack_zarray((stack), (n), sizeof(type), PW_ALIGNOF(type)))

/* The operations pw_stack_*, on the stack of the calling thread. */
#define pw_t_new(type, n) pw_stack_new(PW_T_HERE, type, n)
#define pw_t_new0(type, n) pw_stack_new0(PW_T_HERE, type, n)
#define pw_t_alloc(size, align) pw_stack_alloc(PW_T_HERE, (size), (align))
#define pw_t_zalloc(size, align) pw_stack_zalloc(PW_T_HERE, (size), (align))
#define pw_t_realloc(block, old, size, align) pw_stack_realloc(PW_T_HERE, (block), (old), (size), (align))
#define pw_t_strdup(text) pw_stack_strdup(PW_T_HERE, (text))

/* Marks that no t_scope encloses the code. A t_scope defines a variable of the same name with the
 * address of the thread's stack, so that the stack is looked up once; elsewhere each use looks it
 * up. */
enum { pw_t_here = 0 };
#define PW_T_HERE ((uintptr_t)pw_t_here ? (pw_stack *)(uintptr_t)pw_t_here : pw_t_stack())

/* Pushes a frame that is popped at the end of the enclosing block, however the block is left:
 * `pw_scope(&stack);`, or `t_scope;` for the thread's stack. A block may contain only one such
 * declaration. */
#define t_scope                                                                                                        \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wshadow\"")                                      \
    pw_stack *const pw_t_here __attribute__((unused)) = pw_t_stack();                                                  \
    _Pragma("GCC diagnostic pop") pw_scope(pw_t_here)
#define PW_NAME_(prefix, line) prefix##line
#define PW_NAME(prefix, line) PW_NAME_(prefix, line)

PW_END

#ifdef __cplusplus

struct pw_scope_guard {
    explicit pw_scope_guard(pw_stack *of) : stack(of) { pw_stack_push(stack, &frame); }
    ~pw_scope_guard() { pw_stack_pop(stack, &frame); }
    pw_scope_guard(const pw_scope_guard &) = delete;
    pw_scope_guard &operator=(const pw_scope_guard &) = delete;

    pw_stack *stack;
    pw_frame frame;
};

#define pw_scope(stack) pw_scope_guard PW_NAME(pw_scope_, __LINE__)(stack)

#else

typedef struct pw_scope_of_ {
    pw_stack *stack;
    pw_frame *frame;
} pw_scope_of_;

PW_INLINE pw_scope_of_ pw_scope_enter_(pw_stack *stack, pw_frame *frame)
{
    pw_stack_push(stack, frame);
    return (pw_scope_of_){stack, frame};
}

PW_INLINE void pw_scope_leave_(const pw_scope_of_ *scope)
{
    pw_stack_pop(scope->stack, scope->frame);
}

#define pw_scope(stack)                                                                                                \
    const pw_scope_of_ PW_NAME(pw_scope_, __LINE__) __attribute__((cleanup(pw_scope_leave_), unused)) =                \
        pw_scope_enter_((stack), &(pw_frame){0})

#endif

#endif
