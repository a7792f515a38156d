/* pagewise/pages.h from C: parts, kinds of memory, buffers, threads, and messages for missing
 * memory. */
#include <pagewise/pages.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static pw_pages *new_pages(const pw_pages_options *options)
{
    pw_pages *pages;
    int error = pw_pages_create(&pages, options);
    if (error) fprintf(stderr, "skipped: %s\n", pw_error_message());
    CHECK(!error == !!pages);
    return pages;
}

static void runs_are_whole_pages_and_come_back_in_parts(void)
{
    pw_pages *pages = new_pages(NULL);
    CHECK(pw_pages_size(0) == 4096 && pw_pages_size(4097) == 8192 && pw_pages_size(33 * 4096) == 34 * 4096);
    CHECK(pw_pages_size(SIZE_MAX) == 0 && pw_pages_alloc(pages, SIZE_MAX) == NULL);
    char *run = pw_pages_alloc(pages, 1 << 20);
    CHECK(run && (uintptr_t)run % 4096 == 0);
    memset(run, 1, 1 << 20);
    pw_pages_free_part(pages, run + 8192, 4096);
    CHECK(pw_pages_get_usage(pages).live == (1 << 20) - 4096 && run[8191] == 1 && run[12288] == 1);
    pw_pages_free_part(pages, run, 8192);
    pw_pages_free_part(pages, run + 12288, (1 << 20) - 12288);
    CHECK(pw_pages_get_usage(pages).live == 0);
    char *zeros = pw_pages_zalloc(pages, 100000);
    for (int n = 0; n < 100000; n++) CHECK(zeros[n] == 0);
    char *aligned = pw_pages_aligned_alloc(pages, 1 << 21, 5000);
    CHECK(aligned && (uintptr_t)aligned % (1 << 21) == 0);
    pw_pages_free(pages, aligned, 5000);
    pw_pages_free(pages, zeros, 100000);
    pw_pages_free(pages, NULL, 5);
    pw_pages_set_name(pages, "pages of a test");
    pw_pages_keep(pages, 0);
    pw_pages_check(pages);
    pw_pages_trim(pages);
    CHECK(pw_pages_get_usage(pages).held == 0);
    pw_pages_destroy(pages);
    pw_pages_destroy(NULL);
}

static void a_run_grows_in_its_place_or_moves(void)
{
    static char buffer[400000];
    pw_pages *pages = pw_pages_create_in(buffer, sizeof buffer);
    CHECK(pages && pw_pages_create_in(buffer, 100) == NULL && pw_pages_create_in(NULL, 0) == NULL);
    char *run = pw_pages_realloc(pages, NULL, 0, 8192);
    CHECK(run && run > buffer && run < buffer + sizeof buffer);
    strcpy(run, "contents");
    CHECK(pw_pages_extend(pages, run, 8192, 12288));
    memset(run + 8192, 1, 4096);
    char *wall = pw_pages_alloc(pages, 4096);
    CHECK(!pw_pages_extend(pages, run, 12288, 16384));
    char *moved = pw_pages_realloc(pages, run, 12288, 20480);
    CHECK(moved && moved != run && strcmp(moved, "contents") == 0);
    CHECK(pw_pages_realloc(pages, moved, 20480, 1 << 20) == NULL);
    moved = pw_pages_realloc(pages, moved, 20480, 4096);
    pw_pages_free(pages, moved, 4096);
    pw_pages_free(pages, wall, 4096);
    CHECK(pw_pages_get_usage(pages).live == 0);
    pw_pages_check(pages);
    pw_pages_destroy(pages);
}

/* Uses memory of a kind, where the system has some. */
static void use(pw_pages_options options)
{
    pw_pages *pages = new_pages(&options);
    if (!pages) return;
    char *run = pw_pages_alloc(pages, 300000);
    CHECK(run);
    memset(run, 1, 300000);
    pw_pages_free(pages, run, 300000);
    pw_pages_check(pages);
    pw_pages_destroy(pages);
}

static void missing_kinds_of_memory_have_an_error_message(void)
{
    use((pw_pages_options){.flags = PW_PAGES_HUGE});
    use((pw_pages_options){.flags = PW_PAGES_POPULATED});
    use((pw_pages_options){.flags = PW_PAGES_LOCKED});
    use((pw_pages_options){.huge_power = 21});
    use((pw_pages_options){.nodes = 1});
    use((pw_pages_options){.folder = "/tmp"});
    pw_pages *pages;
    CHECK(pw_pages_create(&pages, &(pw_pages_options){.folder = "/no/such/folder"}) == ENOENT);
    CHECK(strcmp(pw_error_message(), "open: the folder does not exist") == 0 && pages == NULL);
    CHECK(pw_pages_create(&pages, &(pw_pages_options){.flags = 64}) == EINVAL);
    CHECK(pw_pages_create(&pages, &(pw_pages_options){.flags = PW_PAGES_HUGE, .huge_power = 21}) == EINVAL);
    CHECK(pw_pages_create(&pages, &(pw_pages_options){.flags = PW_PAGES_LOCKED, .folder = "/tmp"}) == EINVAL);
    CHECK(pw_pages_create(NULL, NULL) == EINVAL);
}

enum { THREADS = 4, RUNS = 64, STEPS = 3000 };

/* Takes runs, and frees some that others have taken. */
static void *use_and_hand_over(void *of)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct { unsigned char *run; size_t size; } shared[RUNS];
    pw_pages *pages = of;
    unsigned dice = (unsigned)(uintptr_t)&dice;
    for (int step = 0; step < STEPS || step < STEPS + RUNS; step++) {
        dice = dice * 1664525u + 1013904223u;
        size_t which = step < STEPS ? dice >> 20 & (RUNS - 1) : (size_t)(step - STEPS), size = 1 + (dice >> 8) % 60000;
        unsigned char *run = step < STEPS ? pw_pages_alloc(pages, size) : NULL;
        if (run) run[0] = run[size - 1] = (unsigned char)size;
        pthread_mutex_lock(&lock);
        unsigned char *other = shared[which].run;
        size_t of_other = shared[which].size;
        shared[which].run = run;
        shared[which].size = size;
        pthread_mutex_unlock(&lock);
        if (other) CHECK(other[0] == (unsigned char)of_other && other[of_other - 1] == (unsigned char)of_other);
        pw_pages_free(pages, other, of_other);
    }
    return NULL;
}

static void any_thread_frees_what_another_has_taken(void)
{
    pw_pages *pages = new_pages(NULL);
    pthread_t threads[THREADS];
    for (int n = 0; n < THREADS; n++) CHECK(pthread_create(&threads[n], NULL, use_and_hand_over, pages) == 0);
    for (int n = 0; n < THREADS; n++) CHECK(pthread_join(threads[n], NULL) == 0);
    use_and_hand_over(pages);
    CHECK(pw_pages_get_usage(pages).live == 0);
    pw_pages_check(pages);
    pw_pages_destroy(pages);
}

int main(void)
{
    runs_are_whole_pages_and_come_back_in_parts();
    a_run_grows_in_its_place_or_moves();
    missing_kinds_of_memory_have_an_error_message();
    any_thread_frees_what_another_has_taken();
}
