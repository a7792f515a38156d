/* Memory errors in the use of stacks. The argument of the program selects an error. */
#include <pagewise/stack.h>
#include <stdio.h>

static volatile char *t_allocated_here(size_t size)
{
    return pw_t_new(char, size);
}

static volatile char *popped_here(void)
{
    t_scope;
    return t_allocated_here(10);
}

static void writes_past_the_end(void)
{
    t_allocated_here(10)[10] = 1;
}

static void writes_before_the_start(void)
{
    t_allocated_here(10)[-1] = 1;
}

static void uses_what_was_popped(void)
{
    popped_here()[3] = 1;
}

static void uses_what_was_moved(void)
{
    char *block = pw_t_new(char, 10);
    char *larger = pw_t_realloc(block, 10, 20, 1);
    ((volatile char *)block)[0] = larger[0] = 1;
}

static void reads_what_was_not_written(void)
{
    if (t_allocated_here(10)[3] == 7) puts("seven");
}

int main(int argc, char **argv)
{
    t_scope;
    static const struct {
        const char *name;
        void (*does)(void);
    } mistakes[] = {
        {"past the end", writes_past_the_end}, {"before the start", writes_before_the_start},
        {"after pop", uses_what_was_popped},   {"after it moved", uses_what_was_moved},
        {"undefined", reads_what_was_not_written},
    };
    for (size_t n = 0; argc == 2 && n < sizeof mistakes / sizeof *mistakes; n++)
        if (strcmp(argv[1], mistakes[n].name) == 0) mistakes[n].does();
}
