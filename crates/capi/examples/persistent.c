/* A list in a file: each opening of the file finds it again. */
#include <pagewise/persistent.h>
#include <stdio.h>
#include <unistd.h>

struct link {
    int number;
    pw_rel next;
};

/* Puts a link before the list, in one transaction. */
static int push(pw_persistent *heap, int number)
{
    pw_rel place = pw_persistent_new(heap, struct link, 1);
    struct link *link = pw_persistent_get(heap, struct link, place);
    if (!link) return -1;
    *link = (struct link){number, pw_persistent_root(heap, "list")};
    return pw_persistent_set_root(heap, "list", place) || pw_persistent_commit(heap);
}

int main(void)
{
    char path[40];
    snprintf(path, sizeof(path), "/tmp/pagewise-example-%d.heap", (int)getpid());
    for (int run = 1; run <= 3; run++) {
        pw_persistent heap;
        struct link *link;
        if (pw_persistent_open(&heap, path, NULL) != 0 || push(&heap, run) != 0) return puts(pw_error_message());
        pw_rel place = pw_persistent_root(&heap, "list");
        for (; (link = pw_persistent_get(&heap, struct link, place)); place = link->next) printf("%d ", link->number);
        pw_persistent_close(&heap);
    }
    puts("");
    return unlink(path);
}
