/* Memory errors in the use of a heap in a file. The argument of the program selects an error. */
#include <pagewise/persistent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int is_told(const char *told, const char *mistake)
{
    return strcmp(told, mistake) == 0;
}

int main(int count, char **arguments)
{
    char path[40];
    pw_persistent heap;
    snprintf(path, sizeof(path), "/tmp/pagewise-mistake-%d.heap", (int)getpid());
    if (count != 2 || pw_persistent_open(&heap, path, NULL) != 0) return 1;
    unlink(path);
    pw_rel block = pw_persistent_new(&heap, char, 100);
    volatile char *text = pw_persistent_get(&heap, char, block);
    if (pw_persistent_commit(&heap) != 0) return 1;
    if (is_told(arguments[1], "undefined") && text[5]) puts("not 0");
    if (is_told(arguments[1], "overflow")) text[104] = 1;
    if (pw_persistent_free(&heap, block) != 0) return 1;
    text[0] = 1;
    if (pw_persistent_commit(&heap) != 0) return 1;
    if (is_told(arguments[1], "use after free")) text[0] = 2;
    return pw_persistent_close(&heap);
}
