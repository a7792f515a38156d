/* Memory that a function needs until it returns, and memory that it returns to its caller. */
#include <pagewise/stack.h>
#include <stdio.h>

/* Allocates in its caller's frame. */
static char *t_path(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = pw_t_new(char, size);
    if (path) snprintf(path, size, "%s/%s", folder, name);
    return path;
}

int main(void)
{
    t_scope;
    const char *path = t_path(t_path("usr", "share"), "man");
    puts(path ? path : "no memory");
}
