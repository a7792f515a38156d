/* Functions that call each other, one of them inlined. Tests look up addresses in the program, and
 * never run it. */
#include <stdlib.h>

void *kept[8];

__attribute__((noinline)) void *innermost(size_t size)
{
    void *block = malloc(size);
    kept[0] = block;
    return block;
}

static inline __attribute__((always_inline)) void *inlined(size_t size)
{
    void *block = innermost(size + 1);
    kept[1] = block;
    return block;
}

__attribute__((noinline)) void *outer(size_t size)
{
    kept[2] = inlined(size);
    kept[3] = innermost(size + 2);
    return kept[2];
}

int main(void)
{
    return outer(8) == NULL;
}
