/* pagewise/fifo.h from C: queues, frees in any order, blocks of any size, sizes that are too large,
 * and memory errors that abort the program. */
#include <pagewise/fifo.h>

#include <stdlib.h>
#include <unistd.h>

#include "aborts.h"

#define LIVE 500

/* True if a checker observes accesses: then blocks are separate, and always move when they are
 * resized. */
static int is_watched;

static char *live[LIVE];
static size_t sizes[LIVE];

static unsigned below(unsigned n)
{
    static unsigned long long seed = 1;
    seed = seed * 6364136223846793005 + 1;
    return (unsigned)(seed >> 33) % n;
}

static void replace(pw_fifo *pool, int at, int zeroed)
{
    for (size_t n = 0; n < sizes[at]; n++) CHECK(live[at][n] == (char)at);
    pw_fifo_free(pool, live[at], sizes[at]);
    sizes[at] = below(50) ? below(500) : below(200000);
    live[at] = zeroed ? pw_fifo_new0(pool, char, sizes[at]) : pw_fifo_new(pool, char, sizes[at]);
    CHECK(live[at]);
    for (size_t n = 0; zeroed && n < sizes[at]; n++) CHECK(live[at][n] == 0);
    memset(live[at], at, sizes[at]);
}

static void free_all(pw_fifo *pool)
{
    for (int at = 0; at < LIVE; at++) {
        pw_fifo_free(pool, live[at], sizes[at]);
        live[at] = NULL;
        sizes[at] = 0;
    }
    pw_fifo_check(pool);
}

static void blocks_keep_what_they_hold_in_any_order(void)
{
    pw_fifo *pool = pw_fifo_create();
    CHECK(pool);
    for (int round = 0; round < 4; round++) {
        for (int n = 0; n < 3 * LIVE; n++) replace(pool, round % 2 ? (int)below(LIVE) : n % LIVE, round / 2);
        pw_fifo_check(pool);
    }
    free_all(pool);
    CHECK(pw_fifo_held(pool) < 3000000);
    pw_fifo_destroy(pool);
}

static void blocks_are_adjacent_and_aligned(void)
{
    pw_fifo *pool = pw_fifo_create();
    char *one = pw_fifo_new(pool, char, 3), *two = pw_fifo_new(pool, char, 24), *three = pw_fifo_new(pool, char, 8);
    char *page = pw_fifo_alloc(pool, 100, 4096), *large = pw_fifo_alloc(pool, 100000, 1 << 17);
    CHECK(is_watched || (two == one + 8 && three == two + 24));
    CHECK((uintptr_t)page % 4096 == 0 && (uintptr_t)large % (1 << 17) == 0);
    memset(large, 1, 100000);
    pw_fifo_free(pool, large, 100000);
    pw_fifo_free(pool, page, 100);
    pw_fifo_free(pool, three, 8);
    pw_fifo_free(pool, one, 3);
    pw_fifo_free(pool, two, 24);
    pw_fifo_free(pool, NULL, 7);
    pw_fifo_destroy(pool);
}

static void the_last_block_grows_where_it_is(void)
{
    pw_fifo *pool = pw_fifo_create();
    size_t size = 8;
    char *first = pw_fifo_realloc(pool, NULL, 0, size, 8), *text = first;
    memset(text, 'x', 8);
    for (; size < 30000; size *= 2) {
        text = pw_fifo_realloc(pool, text, size, 2 * size, 8);
        CHECK(text && (is_watched || text == first));
        memset(text + size, 'x', size);
    }
    char *other = pw_fifo_new(pool, char, 8), *shorter = pw_fifo_realloc(pool, text, size, 100, 8);
    CHECK(is_watched || shorter == first);
    text = pw_fifo_realloc(pool, shorter, 100, 200, 8);
    CHECK(text && text != shorter && text[0] == 'x' && text[99] == 'x');
    pw_fifo_free(pool, text, 200);
    pw_fifo_free(pool, other, 8);
    pw_fifo_destroy(pool);
}

static void too_much_is_null(void)
{
    pw_fifo *pool = pw_fifo_create();
    CHECK(!pw_fifo_new(pool, double, SIZE_MAX / 4));
    CHECK(!pw_fifo_alloc(pool, SIZE_MAX, 8));
    CHECK(!pw_fifo_alloc(pool, SIZE_MAX - 4, 1));
    CHECK(!pw_fifo_alloc(pool, SIZE_MAX / 2, 4096));
    void *none = pw_fifo_alloc(pool, 0, 1);
    CHECK(none);
    CHECK(!pw_fifo_zalloc(pool, SIZE_MAX, 1));
    CHECK(!pw_fifo_realloc(pool, none, 0, SIZE_MAX / 2, 1));
    pw_fifo_free(pool, none, 0);
    pw_fifo_check(pool);
    pw_fifo_destroy(pool);
}

static void a_buffer_is_all_that_is_used(void)
{
    static char buffer[200000];
    char small[100];
    CHECK(!pw_fifo_create_in(small, sizeof small) && !pw_fifo_create_in(NULL, 0));
    pw_fifo *pool = pw_fifo_create_in(buffer, sizeof buffer);
    CHECK(pool);
    char *blocks[4000];
    size_t n = 0;
    for (char *block; n < 4000 && (block = pw_fifo_new(pool, char, 100)); n++) {
        CHECK(block >= buffer && block + 100 <= buffer + sizeof buffer);
        memset(block, 1, 100);
        blocks[n] = block;
    }
    CHECK(n >= (is_watched ? 300 : 600) && n < 4000);
    while (n > 0) pw_fifo_free(pool, blocks[--n], 100);
    pw_fifo_destroy(pool);
}

static void blocks_outlive_the_pool(void)
{
    pw_fifo *pool = pw_fifo_create();
    pw_fifo_set_name(pool, "of the test");
    for (int at = 0; at < LIVE; at++) replace(pool, at, 0);
    pw_fifo_destroy(pool);
    pw_fifo_destroy(NULL);
    for (int at = 0; at < LIVE; at++) {
        memset(live[at], 7, sizes[at]);
        pw_fifo_free_late(live[at], sizes[at]);
        live[at] = NULL;
        sizes[at] = 0;
    }
}

static char *of_guarded(pw_fifo **pool)
{
    *pool = pw_fifo_create();
    CHECK(pw_fifo_guard(*pool));
    return pw_fifo_new(*pool, char, 10);
}

static void free_twice(void)
{
    pw_fifo *pool;
    char *block = of_guarded(&pool);
    pw_fifo_new(pool, char, 10);
    pw_fifo_free(pool, block, 10);
    pw_fifo_free(pool, block, 10);
}

static void free_another_size(void)
{
    pw_fifo *pool;
    char *block = of_guarded(&pool);
    pw_fifo_free(pool, block, 11);
}

static void write_past_the_end(void)
{
    pw_fifo *pool;
    volatile char *block = of_guarded(&pool);
    block[10] = 1;
    pw_fifo_free(pool, (char *)block, 10);
}

int main(int argc, char **argv)
{
    is_watched = argc > 1 && strcmp(argv[1], "watched") == 0;
    blocks_keep_what_they_hold_in_any_order();
    blocks_are_adjacent_and_aligned();
    the_last_block_grows_where_it_is();
    too_much_is_null();
    a_buffer_is_all_that_is_used();
    blocks_outlive_the_pool();
    if (!is_watched) {
        aborts_saying(free_twice, "was freed before");
        aborts_saying(free_another_size, "was not allocated with");
        aborts_saying(write_past_the_end, "beyond its bounds");
    }
    return 0;
}
