/* Memory errors in the use of a TLSF pool. The argument of the program selects an error. */
#include <pagewise/pages.h>
#include <pagewise/tlsf.h>
#include <stdio.h>

static pw_tlsf *pool;

static volatile char *allocated_here(size_t size)
{
    return pw_tlsf_alloc(pool, size);
}

static void freed_here(volatile char *block)
{
    pw_tlsf_free(pool, (void *)block);
}

static void writes_past_the_end(void)
{
    allocated_here(10)[10] = 1;
}

static void uses_what_was_freed(void)
{
    volatile char *block = allocated_here(10);
    freed_here(block);
    block[3] = 1;
}

static void frees_twice(void)
{
    volatile char *block = allocated_here(10);
    freed_here(block);
    freed_here(block);
}

static void reads_what_was_not_written(void)
{
    if (allocated_here(10)[3] == 7) puts("seven");
}

static void uses_what_was_moved(void)
{
    volatile char *block = allocated_here(1000);
    allocated_here(1000);
    volatile char *larger = pw_tlsf_realloc(pool, (void *)block, 2000);
    larger[0] = 1;
    block[0] = 1;
}

static void uses_free_pages(void)
{
    pw_pages *pages;
    if (pw_pages_create(&pages, NULL) != 0) return;
    volatile char *run = pw_pages_alloc(pages, 8192);
    pw_pages_free_part(pages, (void *)(run + 4096), 4096);
    run[0] = 1;
    run[4096] = 1;
    pw_pages_destroy(pages);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*does)(void);
    } mistakes[] = {
        {"past the end", writes_past_the_end},   {"after free", uses_what_was_freed},
        {"twice", frees_twice},                  {"undefined", reads_what_was_not_written},
        {"after it moved", uses_what_was_moved}, {"free pages", uses_free_pages},
    };
    pool = pw_tlsf_create();
    for (size_t n = 0; pool && argc == 2 && n < sizeof mistakes / sizeof *mistakes; n++)
        if (strcmp(argv[1], mistakes[n].name) == 0) mistakes[n].does();
    pw_tlsf_destroy(pool);
}
