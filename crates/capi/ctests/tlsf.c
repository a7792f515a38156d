/* pagewise/tlsf.h from C: cached blocks, coalescing, growth in place, and memory errors that abort
 * the program. */
#include <pagewise/pages.h>
#include <pagewise/tlsf.h>

#include <stdio.h>
#include <stdlib.h>

#include "aborts.h"

/* True if a checker observes accesses: then no block is cached, and blocks are separate. */
static int is_watched;

static void a_freed_small_block_is_allocated_again(void)
{
    pw_tlsf *pool = pw_tlsf_create();
    CHECK(pool);
    for (size_t size = 0; size < 600; size += 7) {
        char *block = pw_tlsf_alloc(pool, size);
        CHECK(block && (uintptr_t)block % 16 == 0);
        memset(block, 1, size);
        CHECK(pw_tlsf_size(pool, block) >= size && pw_tlsf_size(pool, block) <= size + size / 8 + 24 + 16);
        pw_tlsf_free(pool, block);
        char *again = pw_tlsf_alloc(pool, size);
        CHECK(is_watched || again == block);
        pw_tlsf_free_sized(pool, again, size);
        CHECK(is_watched || pw_tlsf_class_(size) >= PW_TLSF_CLASSES || (pool->counts[pw_tlsf_class_(size)] & 255) > 0);
    }
    pw_tlsf_check(pool);
    pw_tlsf_destroy(pool);
}

static void a_block_grows_where_it_is_or_moves_with_its_contents(void)
{
    pw_tlsf *pool = pw_tlsf_create();
    char *block = pw_tlsf_realloc(pool, NULL, 1);
    CHECK(block);
    for (size_t size = 1; size < 100000; size *= 3) {
        memset(block, 'x', size);
        char *larger = pw_tlsf_realloc(pool, block, size * 3);
        CHECK(larger && larger[0] == 'x' && larger[size - 1] == 'x');
        block = larger;
    }
    block = pw_tlsf_realloc(pool, block, 10);
    CHECK(block && block[9] == 'x');
    CHECK(pw_tlsf_realloc(pool, block, SIZE_MAX / 2) == NULL && block[9] == 'x');
    pw_tlsf_free(pool, block);
    pw_tlsf_check(pool);
    pw_tlsf_trim(pool);
    CHECK(pw_tlsf_held(pool) == 0);
    pw_tlsf_destroy(pool);
}

static void a_buffer_is_used_and_nothing_else(void)
{
    static char buffer[200000];
    pw_tlsf *pool = pw_tlsf_create_in(buffer, sizeof buffer);
    CHECK((char *)pool >= buffer && (char *)pool < buffer + 16);
    int n = 0;
    for (char *block; (block = pw_tlsf_alloc(pool, 1000)) != NULL; n++) {
        CHECK(block > buffer && block + 1000 <= buffer + sizeof buffer);
        memset(block, n, 1000);
    }
    CHECK(n > 160 && n < 200);
    pw_tlsf_check(pool);
    pw_tlsf_reset(pool);
    int again = 0;
    while (pw_tlsf_alloc(pool, 1000)) again++;
    CHECK(again == n);
    pw_tlsf_destroy(pool);
    CHECK(pw_tlsf_create_in(buffer, 1000) == NULL && pw_tlsf_create_in(NULL, 0) == NULL);
}

static void alignments_and_arrays_are_what_was_asked_for(void)
{
    pw_tlsf *pool = pw_tlsf_create();
    for (size_t align = 1; align <= 1 << 16; align *= 2) {
        char *block = pw_tlsf_aligned_alloc(pool, align, 100);
        CHECK(block && (uintptr_t)block % align == 0);
        memset(block, 7, 100);
        pw_tlsf_free(pool, block);
    }
    double *zeros = pw_tlsf_new0(pool, double, 1000);
    CHECK(zeros && zeros[0] == 0 && zeros[999] == 0);
    volatile size_t too_many = SIZE_MAX / 2;
    CHECK(pw_tlsf_new(pool, double, too_many) == NULL);
    pw_tlsf_free(pool, NULL);
    pw_tlsf_free_sized(pool, NULL, 8);
    pw_tlsf_set_name(pool, "a pool of a test");
    pw_tlsf_check(pool);
    pw_tlsf_destroy(pool);
    pw_tlsf_destroy(NULL);
}

static void memory_comes_of_pages_and_goes_back(void)
{
    pw_pages *pages;
    CHECK(pw_pages_create(&pages, NULL) == 0);
    pw_tlsf *pool = pw_tlsf_create_on(pages);
    CHECK(pool && pw_tlsf_create_on(NULL) == NULL);
    char *block = pw_tlsf_alloc(pool, 100000);
    CHECK(block && pw_pages_get_usage(pages).live >= 100000);
    memset(block, 1, 100000);
    pw_tlsf_destroy(pool);
    CHECK(pw_pages_get_usage(pages).live == 0);
    pw_pages_destroy(pages);
}

static void blocks_do_not_overlap_whatever_is_freed_when(void)
{
    enum { LIVE = 500 };
    static struct { unsigned char *at; size_t size; } live[LIVE];
    pw_tlsf *pool = pw_tlsf_create();
    unsigned dice = 1;
    for (int step = 0; step < 20000; step++) {
        dice = dice * 1664525u + 1013904223u;
        size_t which = dice >> 8 & 255, size = (dice >> 16) % 700;
        unsigned char *block = live[which].at;
        for (size_t n = 0; block && n < live[which].size; n += 50) CHECK(block[n] == (unsigned char)which);
        if (dice & 128) pw_tlsf_free(pool, block);
        else if (block) pw_tlsf_free_sized(pool, block, live[which].size);
        live[which].at = pw_tlsf_alloc(pool, size);
        live[which].size = size;
        CHECK(live[which].at);
        memset(live[which].at, (int)which, size);
    }
    pw_tlsf_check(pool);
    pw_tlsf_destroy(pool);
}

static pw_tlsf *guarded(void)
{
    pw_tlsf *pool = pw_tlsf_create();
    CHECK(pool && pw_tlsf_guard(pool) == 1);
    return pool;
}

static void free_twice(void)
{
    pw_tlsf *pool = guarded();
    void *block = pw_tlsf_alloc(pool, 100);
    pw_tlsf_free(pool, block);
    pw_tlsf_free(pool, block);
}

static void write_past_the_end(void)
{
    pw_tlsf *pool = guarded();
    volatile char *block = pw_tlsf_alloc(pool, 100);
    for (int at = 100; at < 104; at++) block[at] = 1;
    pw_tlsf_free(pool, (void *)block);
}

static void write_after_free(void)
{
    pw_tlsf *pool = guarded();
    volatile char *block = pw_tlsf_alloc(pool, 100);
    pw_tlsf_free(pool, (void *)block);
    block[10] = 1;
    pw_tlsf_check(pool);
}

static void free_another_address(void)
{
    static char elsewhere[64];
    pw_tlsf *pool = guarded();
    CHECK(pw_tlsf_alloc(pool, 100));
    pw_tlsf_free(pool, elsewhere + 32);
}

static void free_pages_twice(void)
{
    pw_pages *pages;
    CHECK(pw_pages_create(&pages, NULL) == 0);
    void *run = pw_pages_alloc(pages, 40960);
    pw_pages_free(pages, run, 40960);
    pw_pages_free(pages, run, 40960);
}

static void write_behind_a_run(void)
{
    pw_pages *pages;
    CHECK(pw_pages_create(&pages, &(pw_pages_options){.flags = PW_PAGES_GUARDED}) == 0);
    volatile char *run = pw_pages_alloc(pages, 40960);
    CHECK(run && pw_pages_alloc(pages, 4096));
    run[40960] = 1;
    pw_pages_free(pages, (void *)run, 40960);
}

static void aligned_blocks_of_all_sizes_stay_apart(void)
{
    enum { BLOCKS = 600 };
    static unsigned char *blocks[BLOCKS];
    pw_tlsf *pool = pw_tlsf_create();
    for (int round = 0; round < 6; round++) {
        for (size_t n = 0; n < BLOCKS; n++) {
            size_t size = 500 + n * (size_t)(round + 1), align = (size_t)16 << n % 4;
            if (blocks[n]) {
                for (size_t at = 0; at < 500; at++) CHECK(blocks[n][at] == (unsigned char)n);
                if (n % 3) pw_tlsf_free(pool, blocks[n]), blocks[n] = NULL;
            }
            if (blocks[n]) blocks[n] = pw_tlsf_realloc(pool, blocks[n], size);
            else blocks[n] = round % 2 ? pw_tlsf_alloc(pool, size) : pw_tlsf_aligned_alloc(pool, align, size);
            CHECK(blocks[n] && pw_tlsf_size(pool, blocks[n]) >= size);
            memset(blocks[n], (int)n, pw_tlsf_size(pool, blocks[n]));
        }
        pw_tlsf_check(pool);
    }
    pw_tlsf_destroy(pool);
}

static void a_guarded_pool_works_as_another(void)
{
    pw_tlsf *pool = guarded();
    void *block = pw_tlsf_alloc(pool, 100);
    CHECK(block && pw_tlsf_size(pool, block) == 100);
    block = pw_tlsf_realloc(pool, block, 10000);
    CHECK(block && pw_tlsf_guard(pool) == 1);
    pw_tlsf_free(pool, block);
    pw_tlsf_check(pool);
    pw_tlsf_destroy(pool);
}

static void an_alignment_that_is_none_is_refused(void)
{
    pw_tlsf *pool = pw_tlsf_create();
    volatile size_t none[] = {0, 3, 12, 24, 100};
    for (size_t n = 0; n < sizeof none / sizeof *none; n++) CHECK(!pw_tlsf_aligned_alloc(pool, none[n], 10));
    CHECK(pw_tlsf_aligned_alloc(pool, 1, 10));
    pw_tlsf_destroy(pool);
}

int main(int argc, char **argv)
{
    is_watched = argc == 2 && strcmp(argv[1], "watched") == 0;
    a_freed_small_block_is_allocated_again();
    a_block_grows_where_it_is_or_moves_with_its_contents();
    a_buffer_is_used_and_nothing_else();
    alignments_and_arrays_are_what_was_asked_for();
    memory_comes_of_pages_and_goes_back();
    blocks_do_not_overlap_whatever_is_freed_when();
    an_alignment_that_is_none_is_refused();
    a_guarded_pool_works_as_another();
    aligned_blocks_of_all_sizes_stay_apart();
    if (!is_watched) {
        aborts_saying(free_twice, "was freed before");
        aborts_saying(free_twice, "bytes, allocated at 0x");
        aborts_saying(free_twice, ", freed at 0x");
        aborts_saying(write_past_the_end, "beyond its bounds");
        aborts_saying(write_behind_a_run, "beyond its bounds; its size is 40960 bytes, allocated at 0x");
        aborts_saying(write_after_free, "written to after it was freed");
        aborts_saying(free_another_address, "is not a block of this pool");
        aborts_saying(free_pages_twice, "was freed before");
    }
    return 0;
}
