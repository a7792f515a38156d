/* Memory errors in the use of FIFO pools. */
#include <pagewise/fifo.h>
#include <stdio.h>
#include <stdlib.h>

static pw_fifo *pool;

static volatile char *allocated_here(size_t size)
{
    return pw_fifo_new(pool, char, size);
}

static volatile char *freed_here(void)
{
    volatile char *block = allocated_here(10);
    pw_fifo_free(pool, (char *)block, 10);
    return block;
}

static void writes_past_the_end(void)
{
    allocated_here(10)[10] = 1;
}

static void writes_before_the_start(void)
{
    allocated_here(10)[-1] = 1;
}

static void uses_what_was_freed(void)
{
    freed_here()[3] = 1;
}

/* memcheck searches for leaks only if a block of malloc is live at exit. */
static void loses_a_block(void)
{
    static void *volatile kept;
    kept = malloc(1);
    allocated_here(1000)[0] = kept != NULL;
}

static void reads_what_was_not_written(void)
{
    if (allocated_here(10)[3] == 7) puts("seven");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*does)(void);
    } mistakes[] = {
        {"past the end", writes_past_the_end},        {"before the start", writes_before_the_start},
        {"after free", uses_what_was_freed},          {"lost", loses_a_block},
        {"undefined", reads_what_was_not_written},
    };
    pool = pw_fifo_create();
    for (size_t n = 0; argc == 2 && n < sizeof mistakes / sizeof *mistakes; n++)
        if (strcmp(argv[1], mistakes[n].name) == 0) mistakes[n].does();
}
