/* Memory errors in the use of rings. The argument of the program selects an error. */
#include <pagewise/ring.h>
#include <stdio.h>

static pw_ring *ring;

static volatile char *allocated_here(size_t size)
{
    return pw_ring_new(ring, char, size);
}

static void released_here(void)
{
    pw_ring_release(pw_ring_seal(ring));
}

static void writes_past_the_end(void)
{
    allocated_here(10)[10] = 1;
}

static void uses_what_was_released(void)
{
    volatile char *block = allocated_here(10);
    released_here();
    block[3] = 1;
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
        {"past the end", writes_past_the_end},
        {"after release", uses_what_was_released},
        {"undefined", reads_what_was_not_written},
    };
    ring = pw_ring_create();
    if (!ring || pw_ring_open(ring)) return 1;
    for (size_t n = 0; argc == 2 && n < sizeof mistakes / sizeof *mistakes; n++)
        if (strcmp(argv[1], mistakes[n].name) == 0) mistakes[n].does();
}
