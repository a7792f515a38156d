/* pagewise/base.h: what the other headers have in common. Of it programs use PW_ASSERT and pw_error_message alone. */
#ifndef PAGEWISE_BASE_H
#define PAGEWISE_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define PW_BEGIN extern "C" {
#define PW_END }
#define PW_ASSERT(fact) static_assert(fact, #fact)
#define PW_ALIGNOF(type) alignof(type)
#define PW_THREAD_LOCAL thread_local
#else
#define PW_BEGIN
#define PW_END
#define PW_ASSERT(fact) _Static_assert(fact, #fact)
#define PW_ALIGNOF(type) _Alignof(type)
#define PW_THREAD_LOCAL _Thread_local
#endif

/* Fast paths are inlined into programs; what they do is the same in every version that has the same soname. */
#define PW_INLINE static inline __attribute__((always_inline, unused))
/* A function that programs call seldom: its code lies apart. */
#define PW_COLD __attribute__((cold, noinline))
#define PW_LIKELY(fact) __builtin_expect(!!(fact), 1)
#define PW_UNLIKELY(fact) __builtin_expect(!!(fact), 0)
/* Whoever forgets what is returned makes a mistake that compilers tell. */
#define PW_MUST_USE __attribute__((warn_unused_result))
/* Returns memory that nothing else points to; forgetting it is a mistake too. */
#define PW_MALLOC __attribute__((malloc, warn_unused_result))

PW_BEGIN

/* What went wrong in the last call of this thread that failed; "" where none did. Never NULL. Valid until the next call of
 * this thread that fails. */
const char *pw_error_message(void);

PW_END

#endif
