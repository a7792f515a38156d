/* pagewise/stack.h: memory in frames: allocating is adding to a pointer, and a whole frame is freed
 * at once.
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
 * All that was allocated on the thread's stack since `t_scope;` is freed at the end of the
 * enclosing block, however the block is left. A function that allocates in its caller's frame is
 * called t_... by convention. Stacks of your own: pw_stack below.
 *
 * C11 and C++20, of GCC or Clang; link with `pkg-config --cflags --libs pagewise`. Linux only. The
 * same memory is pagewise_alloc::Stack in Rust; t_scope of Rust and of C push their frames on one
 * and the same stack of the thread.
 *
 * Errors. Without memory a call returns NULL and changes nothing. Detected misuse prints a message
 * and aborts: popping a frame that is not the innermost, an overwritten canary.
 *
 * Alignment. Alignments are powers of two, and blocks have no other padding: two blocks of chars
 * are adjacent.
 *
 * Threads. A stack is for one thread at a time. The thread's stack ends with it; do not use it in a
 * signal handler. After longjmp over frames the next that is popped is not the innermost: do not
 * jump over t_scope.
 *
 * Checkers. Under valgrind, and in programs with AddressSanitizer, each block is known to them,
 * with the call stack of its allocation and of the pop of its frame. Memory past a block, or
 * popped, may not be accessed.
 */
#ifndef PAGEWISE_STACK_H
#define PAGEWISE_STACK_H

#include <pagewise/base.h>
#include <string.h>

PW_BEGIN

/* Position of a stack when a frame was pushed. It is a variable of the function that pushes the
 * frame, and must not move. */
typedef struct pw_frame {
    char *next;
    void *block;
    struct pw_frame *outer;
} pw_frame;

/* A stack. All zero is one without memory, which gets it from the system when needed:
 * `pw_stack stack = {0};`. It may be moved while no frame is open. The other fields belong to the
 * library. */
typedef struct pw_stack {
    char *next;      /* The first free byte. */
    char *end;       /* End of the free space. */
    void *block;     /* The chunk of memory that contains both. */
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

/* Makes a stack in a buffer, without memory of the system. The caller owns the buffer, and uses it
 * for nothing else until the stack is wiped. The library uses about 300 bytes of it. */
void pw_stack_init_in(pw_stack *stack, void *buffer, size_t size);

/* Releases all memory: blocks of the stack must not be used any more, and the stack is as it was
 * when it was made. Aborts if a frame is open. */
void pw_stack_wipe(pw_stack *stack);

/* Adds canaries to a stack that has no memory yet: the canary behind each block is checked when its
 * frame is popped, and popped memory is filled with a pattern. Returns 1 if the stack has canaries,
 * which it keeps, else 0. */
int pw_stack_guard(pw_stack *stack);

/* Prepares a single block for the next `size` bytes, including alignment, so that no allocation
 * until then crosses the end of a block: best for a stack without memory. Returns 0 without any
 * change if memory is exhausted. */
int pw_stack_reserve(pw_stack *stack, size_t size);

/* Returns memory without blocks to the system. */
void pw_stack_trim(pw_stack *stack);

/* Footprint: bytes that the stack has from the system, or from its buffer. */
size_t pw_stack_held(const pw_stack *stack);

/* Names the stack for `pagewise pools`; the first 32 bytes of UTF-8 count. Copied. Allocates the
 * first block. */
void pw_stack_set_name(pw_stack *stack, const char *name);

/* Checks all internal invariants, and aborts if one is violated. */
void pw_stack_check(const pw_stack *stack);

/* Slow paths of the inline functions: not for programs. */
void *pw_stack_alloc_slow(pw_stack *stack, size_t size, size_t align);
void *pw_stack_realloc_slow(pw_stack *stack, void *block, size_t old, size_t size, size_t align);
void pw_stack_pop_slow(pw_stack *stack, const pw_frame *frame);
pw_stack *pw_t_stack_find(void);

/* Address of the next block. */
PW_INLINE uintptr_t pw_stack_start_(const pw_stack *stack, size_t align)
{
    return ((uintptr_t)stack->next + (align - 1)) & ~(uintptr_t)(align - 1);
}

/* True if there is space: blocks end before `end`, which is aligned to 16. No sum can overflow. */
PW_INLINE int pw_stack_fits_(const pw_stack *stack, uintptr_t start, size_t size, size_t align)
{
    uintptr_t end = (uintptr_t)stack->end;
    return PW_LIKELY(size < end - start && (align <= 16 || start <= end));
}

/* Memory in the innermost frame with undefined contents; NULL without memory. `align` is a power of
 * two. A block of size 0 may share its address. */
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

/* As pw_stack_alloc, for n elements whose size is a multiple of their alignment: the new `next` is
 * then the aligned sum of the old one and the size, which is one instruction less from one block to
 * the next. NULL also if their size overflows. */
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

/* Resizes a block, and keeps its contents as far as they fit: in place if it is the last one or
 * does not grow. NULL without memory; then the block is unchanged. `old` is its size; a block of
 * NULL has none. The returned block belongs to the innermost frame. */
PW_INLINE void *pw_stack_realloc(pw_stack *stack, void *block, size_t old, size_t size, size_t align)
{
    uintptr_t start = (uintptr_t)block;
    int is_last = start + old == (uintptr_t)stack->next && (start & (align - 1)) == 0;
    if (!is_last || size >= (uintptr_t)stack->end - start) return pw_stack_realloc_slow(stack, block, old, size, align);
    stack->next = (char *)(start + size);
    return block;
}

/* A copy of a string; NULL without memory. */
PW_INLINE char *pw_stack_strdup(pw_stack *stack, const char *text)
{
    size_t size = strlen(text) + 1;
    void *copy = pw_stack_alloc(stack, size, 1);
    return copy ? (char *)memcpy(copy, text, size) : NULL;
}

/* Pushes a frame, whose memory belongs to the caller. */
PW_INLINE void pw_stack_push(pw_stack *stack, pw_frame *frame)
{
    char *next = stack->next;
    void *block = stack->block;
    /* One by one: a load of 16 bytes would wait until the last store to `next`, of 8 bytes, is in
     * the cache. */
    __asm__("" : "+r"(next), "+r"(block));
    frame->next = next;
    frame->block = block;
    frame->outer = stack->frame;
    stack->frame = frame;
}

/* Pops a frame: all that was allocated since it was pushed is freed. Aborts where another was
 * pushed since and not popped, or this one was popped before. */
PW_INLINE void pw_stack_pop(pw_stack *stack, pw_frame *frame)
{
    if (PW_LIKELY(stack->frame == frame)) {
        stack->frame = frame->outer;
        stack->next = frame->next;
    } else {
        pw_stack_pop_slow(stack, frame);
    }
}

/* The stack of the calling thread: Rust's t_scope has the same. Never NULL. */
PW_INLINE pw_stack *pw_t_stack(void)
{
    static PW_THREAD_LOCAL __attribute__((tls_model("initial-exec"))) pw_stack *mine;
    if (PW_UNLIKELY(mine == NULL)) mine = pw_t_stack_find();
    return mine;
}

/* Memory for n values of a type; NULL without memory, or if their size overflows. With
 * pw_stack_new0 every byte is 0. */
#define pw_stack_new(stack, type, n) ((type *)pw_stack_array((stack), (n), sizeof(type), PW_ALIGNOF(type)))
#define pw_stack_new0(stack, type, n) ((type *)pw_stack_zarray((stack), (n), sizeof(type), PW_ALIGNOF(type)))

/* The same on the thread's stack. */
#define pw_t_new(type, n) pw_stack_new(PW_T_HERE, type, n)
#define pw_t_new0(type, n) pw_stack_new0(PW_T_HERE, type, n)
#define pw_t_alloc(size, align) pw_stack_alloc(PW_T_HERE, (size), (align))
#define pw_t_zalloc(size, align) pw_stack_zalloc(PW_T_HERE, (size), (align))
#define pw_t_realloc(block, old, size, align) pw_stack_realloc(PW_T_HERE, (block), (old), (size), (align))
#define pw_t_strdup(text) pw_stack_strdup(PW_T_HERE, (text))

/* Address of the thread's stack: looked up once for a t_scope, which has a variable of this name,
 * and else at each use. */
enum { pw_t_here = 0 };
#define PW_T_HERE ((uintptr_t)pw_t_here ? (pw_stack *)(uintptr_t)pw_t_here : pw_t_stack())

/* Pushes a frame that is popped at the end of the enclosing block, however the block is left:
 * `pw_scope(&stack);`, or `t_scope;` on the thread's stack, once in a block. */
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
