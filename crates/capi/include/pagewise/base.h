/* pagewise/base.h: common definitions of the other headers. Programs use only PW_ASSERT and
 * pw_error_message. */
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

/* For fast paths, which are inlined into programs. They are the same in every version with the same
 * soname. */
#define PW_INLINE static inline __attribute__((always_inline, unused))
/* For functions that programs seldom call: the compiler places their code apart from other code. */
#define PW_COLD __attribute__((cold, noinline))
#define PW_LIKELY(fact) __builtin_expect(!!(fact), 1)
#define PW_UNLIKELY(fact) __builtin_expect(!!(fact), 0)
/* Makes compilers warn about a call whose result is ignored. */
#define PW_MUST_USE __attribute__((warn_unused_result))
/* For functions that return memory to which no other pointer exists; compilers warn about an
 * ignored result. */
#define PW_MALLOC __attribute__((malloc, warn_unused_result))

PW_BEGIN

/* Returns the message of the last failed call of this thread, or "" if no call has failed. Never
 * NULL. The string is valid until the next failing call of this thread. */
const char *pw_error_message(void);

PW_END

#endif
