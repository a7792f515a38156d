/* pagewise/persistent.h from C: reopened heaps, undone transactions, refused calls, and the heap of
 * a killed process. With `program PATH` it makes the same heap as a test in Rust. */
#define _GNU_SOURCE
#include <pagewise/persistent.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(fact)                                                                                                    \
    do {                                                                                                               \
        if (!(fact)) {                                                                                                 \
            fprintf(stderr, "%s:%d: not so: %s: %s\n", __FILE__, __LINE__, #fact, pw_error_message());                 \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static const pw_persistent_options small = {.capacity = 4 << 20, .log = 1};

static char path[] = "/tmp/pagewise-ctest-XXXXXX/heap";

static void make_folder(void)
{
    char *slash = strrchr(path, '/');
    *slash = '\0';
    CHECK(mkdtemp(path));
    *slash = '/';
}

static void remove_folder(void)
{
    CHECK(unlink(path) == 0);
    *strrchr(path, '/') = '\0';
    CHECK(rmdir(path) == 0);
}

static void blocks_are_there_again(void)
{
    pw_persistent heap;
    CHECK(pw_persistent_open(&heap, path, &small) == 0);
    CHECK(pw_persistent_root(&heap, "text") == 0 && errno == ENOENT);
    pw_rel text = pw_persistent_new(&heap, char, 6);
    memcpy(pw_persistent_at(&heap, text, 6), "hello", 6);
    CHECK(pw_persistent_set_root(&heap, "text", text) == 0);
    CHECK(pw_persistent_commit(&heap) == 0);
    CHECK(pw_persistent_close(&heap) == 0 && !heap.cold);
    CHECK(pw_persistent_close(&heap) == EINVAL);

    CHECK(pw_persistent_open(&heap, path, NULL) == 0);
    text = pw_persistent_root(&heap, "text");
    CHECK(strcmp(pw_persistent_get(&heap, char, text), "hello") == 0);
    CHECK(pw_persistent_size(&heap, text) >= 6);
    CHECK(pw_persistent_rel(&heap, pw_persistent_at(&heap, text, 1)) == text && pw_persistent_rel(&heap, path) == 0);
    CHECK(pw_persistent_close(&heap) == 0);
}

static void what_is_not_committed_is_undone(void)
{
    pw_persistent heap;
    pw_persistent_usage before, after;
    CHECK(pw_persistent_open(&heap, path, &small) == 0);
    CHECK(pw_persistent_check(&heap, &before) == 0 && before.blocks == 1);
    pw_rel text = pw_persistent_root(&heap, "text");
    for (int closes = 0; closes < 2; closes++) {
        char *address = (char *)pw_persistent_change(&heap, text, 5);
        CHECK(address);
        memcpy(address, "HELLO", 5);
        pw_rel large = pw_persistent_new0(&heap, uint64_t, 10000);
        CHECK(large && pw_persistent_get(&heap, uint64_t, large)[0] == 0);
        large = pw_persistent_resize(&heap, large, 200000, 16);
        CHECK(large && pw_persistent_get(&heap, uint64_t, large)[9999] == 0);
        CHECK(pw_persistent_set_root(&heap, "large", large) == 0);
        if (closes) {
            CHECK(pw_persistent_close(&heap) == 0);
            CHECK(pw_persistent_open(&heap, path, &small) == 0);
        } else {
            CHECK(pw_persistent_abort(&heap) == 0);
        }
        CHECK(memcmp(pw_persistent_at(&heap, text, 6), "hello", 6) == 0);
        CHECK(pw_persistent_check(&heap, &after) == 0 && after.blocks == 1 && after.bytes == before.bytes);
        CHECK(pw_persistent_root(&heap, "large") == 0);
    }
    CHECK(pw_persistent_sync(&heap) == 0);
    CHECK(pw_persistent_set_name(&heap, "texts") == 0 && pw_persistent_set_name(&heap, NULL) == EINVAL);
    CHECK(pw_persistent_close(&heap) == 0);
}

static void mistakes_are_refused(void)
{
    pw_persistent heap, other, none = {0};
    pw_persistent_options odd = {.flags = 64};
    CHECK(pw_persistent_open(&heap, path, &small) == 0);
    CHECK(pw_persistent_open(&other, path, &small) == EBUSY && !other.cold);
    CHECK(pw_persistent_open(&other, NULL, NULL) == EINVAL && pw_persistent_open(NULL, path, NULL) == EINVAL);
    CHECK(pw_persistent_open(&other, path, &odd) == EINVAL);
    CHECK(pw_persistent_open(&other, "/dev/null", NULL) == EMEDIUMTYPE);
    odd = (pw_persistent_options){.flags = PW_PERSISTENT_NO_CREATE};
    CHECK(pw_persistent_open(&other, "/tmp/pagewise-nowhere", &odd) == ENOENT);
    pw_rel text = pw_persistent_root(&heap, "text");
    CHECK(pw_persistent_free(&heap, text) == EBUSY);
    CHECK(pw_persistent_free(&heap, text + 8) == EINVAL && pw_persistent_free(&heap, 0) == 0);
    CHECK(!pw_persistent_at(&heap, 8, 1) && !pw_persistent_at(&heap, text, SIZE_MAX) && !pw_persistent_at(&heap, 0, 0));
    CHECK(!pw_persistent_change(&heap, heap.end - 4, 8) && errno == EFAULT);
    CHECK(!pw_persistent_alloc(&heap, 8 << 20, 8) && errno == ENOSPC);
    CHECK(!pw_persistent_alloc(&heap, 8, 3) && errno == EINVAL);
    CHECK(!pw_persistent_new(&heap, uint64_t, SIZE_MAX / 4) && errno == EINVAL);
    CHECK(!pw_persistent_alloc(&heap, 8, 1 << 20) && errno == EINVAL);
    CHECK(pw_persistent_set_root(&heap, "", text) == EINVAL && pw_persistent_set_root(&heap, NULL, text) == EINVAL);
    CHECK(pw_persistent_set_root(&heap, "\xff", text) == EINVAL);
    CHECK(!pw_persistent_new(&none, char, 1) && errno == EINVAL && pw_persistent_commit(NULL) == EINVAL);
    CHECK(pw_persistent_close(&heap) == 0);
}

/* A child counts in the heap until it is killed: each count that it reported is kept. */
static void a_kill_loses_nothing_that_was_committed(int times)
{
    uint64_t said = 0;
    for (int kill_number = 0; kill_number < times; kill_number++) {
        int pipes[2];
        CHECK(pipe(pipes) == 0);
        pid_t child = fork();
        if (child == 0) {
            pw_persistent heap;
            alarm(300);
            CHECK(pw_persistent_open(&heap, path, &small) == 0);
            for (;;) {
                pw_rel old = pw_persistent_root(&heap, "count");
                pw_rel place = pw_persistent_new(&heap, uint64_t, 3);
                uint64_t *count = pw_persistent_get(&heap, uint64_t, place);
                CHECK(count);
                *count = old ? *pw_persistent_get(&heap, uint64_t, old) + 1 : 1;
                CHECK(pw_persistent_set_root(&heap, "count", place) == 0);
                CHECK(pw_persistent_free(&heap, old) == 0 && pw_persistent_commit(&heap) == 0);
                CHECK(write(pipes[1], count, sizeof(*count)) == sizeof(*count));
            }
        }
        CHECK(close(pipes[1]) == 0);
        for (int counts = 0; counts < 50; counts++) CHECK(read(pipes[0], &said, sizeof(said)) == sizeof(said));
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        while (read(pipes[0], &said, sizeof(said)) > 0) {
        }
        CHECK(close(pipes[0]) == 0);
        pw_persistent heap;
        pw_persistent_usage usage;
        CHECK(pw_persistent_open(&heap, path, &small) == 0);
        CHECK(pw_persistent_check(&heap, &usage) == 0 && usage.blocks == 2);
        uint64_t count = *pw_persistent_get(&heap, uint64_t, pw_persistent_root(&heap, "count"));
        CHECK(count == said || count == said + 1);
        CHECK(pw_persistent_close(&heap) == 0);
    }
}

/* The same steps as in crates/capi/tests/c/persistent.rs: both must write the same bytes. */
static void run_program(const char *file)
{
    pw_persistent heap;
    pw_rel blocks[64] = {0};
    uint64_t dice = 88172645463325252u;
    CHECK(pw_persistent_open(&heap, file, &small) == 0);
    for (int step = 0; step < 5000; step++) {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        pw_rel *block = &blocks[dice % 64];
        size_t size = 8 + (dice >> 8) % (dice >> 30 & 7 ? 600 : 40000);
        if (!*block) {
            *block = pw_persistent_zalloc(&heap, size, 16);
            CHECK(*block);
            memset(pw_persistent_at(&heap, *block, size), step & 255, size);
        } else if (dice >> 40 & 1) {
            CHECK(pw_persistent_free(&heap, *block) == 0);
            *block = 0;
        } else {
            size = pw_persistent_size(&heap, *block) / 4;
            memset(pw_persistent_change(&heap, *block + size, size), step & 255, size);
        }
        if ((dice >> 50) % 3 == 0) CHECK(pw_persistent_commit(&heap) == 0);
    }
    CHECK(pw_persistent_commit(&heap) == 0);
    CHECK(pw_persistent_close(&heap) == 0);
}

int main(int count, char **arguments)
{
    int is_watched = count > 1 && strcmp(arguments[1], "watched") == 0;
    if (count > 2) {
        run_program(arguments[2]);
        return 0;
    }
    make_folder();
    blocks_are_there_again();
    what_is_not_committed_is_undone();
    mistakes_are_refused();
    a_kill_loses_nothing_that_was_committed(is_watched ? 2 : 50);
    remove_folder();
}
