/* A queue: blocks are freed in the order of their allocation. */
#include <pagewise/fifo.h>
#include <stdio.h>

int main(void)
{
    pw_fifo *pool = pw_fifo_create();
    long *queue[1000] = {NULL}, last = 0;
    for (long n = 0; pool && n < 100000; n++) {
        long **oldest = &queue[n % 1000];
        pw_fifo_free(pool, *oldest, sizeof **oldest);
        *oldest = pw_fifo_new(pool, long, 1);
        if (*oldest) **oldest = last = n;
    }
    printf("%ld, and the pool holds less than a megabyte: %d\n", last, pool && pw_fifo_held(pool) < 1000000);
    for (int n = 0; n < 1000; n++) pw_fifo_free(pool, queue[n], sizeof *queue[n]);
    pw_fifo_destroy(pool);
}
