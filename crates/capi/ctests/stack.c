/* pagewise/stack.h from C: adjacent blocks, frames, growth in place, and memory errors that abort
 * the program. */
#include <pagewise/stack.h>

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "aborts.h"

/* True if a checker observes accesses: then blocks are separate, and always move when they grow. */
static int is_watched;

static void small_blocks_are_adjacent(void)
{
    pw_stack stack = {0};
    char *one = pw_stack_new(&stack, char, 3);
    char *two = pw_stack_new(&stack, char, 5);
    double *three = pw_stack_new(&stack, double, 1);
    void *page = pw_stack_alloc(&stack, 100, 4096);
    CHECK(one && two && (is_watched || two == one + 3));
    CHECK(is_watched || (char *)three == one + 8);
    CHECK((uintptr_t)three % sizeof(double) == 0 && (uintptr_t)page % 4096 == 0);
    memset(one, 1, 3);
    memset(two, 2, 5);
    *three = 3;
    memset(page, 4, 100);
    CHECK(one[2] == 1 && two[0] == 2);
    pw_stack_check(&stack);
    pw_stack_wipe(&stack);
    CHECK(pw_stack_held(&stack) == 0);
}

static void frames_free_all_that_was_allocated_in_them(void)
{
    pw_stack stack = {0};
    int *kept = pw_stack_new(&stack, int, 1);
    size_t held = 0;
    *kept = 7;
    for (int round = 0; round < 4; round++) {
        pw_frame outer;
        pw_stack_push(&stack, &outer);
        for (int n = 0; n < 50; n++) {
            pw_scope(&stack);
            char *block = pw_stack_new(&stack, char, 20000);
            CHECK(block);
            memset(block, n, 20000);
        }
        for (int n = 0; n < 50; n++) CHECK(pw_stack_new0(&stack, char, 20000)[19999] == 0);
        pw_stack_pop(&stack, &outer);
        if (round > 0) CHECK(pw_stack_held(&stack) == held);
        held = pw_stack_held(&stack);
        pw_stack_check(&stack);
    }
    CHECK(held >= 1000000 && *kept == 7);
    pw_stack_trim(&stack);
    CHECK(pw_stack_held(&stack) < held);
    pw_stack_wipe(&stack);
}

static void what_is_reserved_is_one_block(void)
{
    pw_stack stack = {0};
    CHECK(!pw_stack_reserve(&stack, SIZE_MAX / 4) && pw_stack_held(&stack) == 0);
    CHECK(pw_stack_reserve(&stack, 10000 * 24));
    size_t held = pw_stack_held(&stack);
    pw_scope(&stack);
    char *first = pw_stack_new(&stack, char, 24), *last = first;
    for (int n = 1; n < 10000 && !pw_stack_guard(&stack); n++) {
        char *next = pw_stack_new(&stack, char, 24);
        CHECK(next == last + 24);
        last = next;
    }
    CHECK(pw_stack_held(&stack) == held);
}

static void the_last_block_grows_where_it_is(void)
{
    pw_stack stack = {0};
    size_t size = 1;
    char *text = pw_stack_realloc(&stack, NULL, 0, size, 1);
    char *first = text;
    for (; size < 30000; size *= 2) {
        CHECK(text);
        memset(text + size / 2, 'x', size - size / 2);
        text = pw_stack_realloc(&stack, text, size, size * 2, 1);
    }
    CHECK(text && text[0] == 'x' && text[size / 2 - 1] == 'x');
    CHECK(is_watched || text == first);
    pw_stack_new(&stack, char, 1);
    char *shorter = pw_stack_realloc(&stack, text, size, 10, 1);
    CHECK(is_watched || shorter == text);
    char *longer = pw_stack_realloc(&stack, shorter, 10, 20, 1);
    CHECK(longer != shorter && longer[9] == 'x');
    pw_stack_wipe(&stack);
}

static void too_much_is_null(void)
{
    pw_stack stack = {0};
    CHECK(!pw_stack_new(&stack, double, SIZE_MAX / 4));
    CHECK(!pw_stack_alloc(&stack, SIZE_MAX, 1));
    CHECK(!pw_stack_alloc(&stack, SIZE_MAX - 4, 8));
    CHECK(pw_stack_alloc(&stack, 0, 1));
    CHECK(!pw_stack_alloc(&stack, SIZE_MAX, 1));
    CHECK(!pw_stack_alloc(&stack, SIZE_MAX - 4, 4096));
    CHECK(!pw_stack_zalloc(&stack, SIZE_MAX / 2, 16));
    char *block = pw_stack_new(&stack, char, 10);
    CHECK(!pw_stack_realloc(&stack, block, 10, SIZE_MAX, 1));
    CHECK(!pw_stack_realloc(&stack, block, 10, SIZE_MAX / 2, 1));
    pw_stack_check(&stack);
    pw_stack_wipe(&stack);
}

static void a_buffer_is_all_that_is_used(void)
{
    static char buffer[10000];
    pw_stack stack;
    size_t bytes = 0;
    pw_stack_init_in(&stack, buffer, sizeof buffer);
    for (char *block; (block = pw_stack_new(&stack, char, 100)); bytes += 100) {
        CHECK(block >= buffer && block + 100 <= buffer + sizeof buffer);
        memset(block, 1, 100);
    }
    CHECK(bytes >= (is_watched ? 4000 : 9000));
    pw_stack_wipe(&stack);
    pw_stack_init_in(&stack, NULL, 0);
    CHECK(!pw_stack_new(&stack, char, 1));
    pw_stack_wipe(&stack);
}

static char *t_twice(const char *text)
{
    size_t size = strlen(text);
    char *twice = pw_t_new0(char, 2 * size + 1);
    CHECK(twice);
    t_scope;
    const char *copy = pw_t_strdup(text);
    memcpy(twice, copy, size);
    memcpy(twice + size, copy, size);
    return twice;
}

static void *on_the_stack_of_the_thread(void *unused)
{
    for (int n = 0; n < 100; n++) {
        t_scope;
        pw_stack *mine = pw_t_stack();
        const char *four = t_twice(t_twice("ab"));
        CHECK(strcmp(four, "abababab") == 0);
        if (n % 2) continue;
        long *grown = pw_t_realloc(pw_t_alloc(8, 8), 8, 800000, 8);
        CHECK(grown && mine == pw_t_stack());
        memset(grown, n, 800000);
    }
    pw_stack_check(pw_t_stack());
    return unused;
}

static void each_thread_has_a_stack(void)
{
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) CHECK(pthread_create(&threads[n], NULL, on_the_stack_of_the_thread, NULL) == 0);
    on_the_stack_of_the_thread(NULL);
    for (int n = 0; n < 4; n++) CHECK(pthread_join(threads[n], NULL) == 0);
}

static void guards_and_names(void)
{
    pw_stack stack = {0};
    CHECK(pw_stack_guard(&stack));
    pw_stack_set_name(&stack, "of the test");
    char *one, *two;
    {
        pw_scope(&stack);
        one = pw_stack_new(&stack, char, 8);
        two = pw_stack_new(&stack, char, 8);
        CHECK(two >= one + 16);
        memset(one, 0, 8);
        memset(two, 0, 8);
    }
    pw_stack_check(&stack);
    pw_stack_wipe(&stack);
}

static void pop_out_of_order(void)
{
    pw_stack stack = {0};
    pw_frame outer, inner;
    pw_stack_push(&stack, &outer);
    pw_stack_push(&stack, &inner);
    pw_stack_pop(&stack, &outer);
}

static void pop_twice(void)
{
    pw_frame frame;
    t_scope;
    pw_stack_push(pw_t_stack(), &frame);
    pw_stack_pop(pw_t_stack(), &frame);
    pw_stack_pop(pw_t_stack(), &frame);
}

static void wipe_in_a_frame(void)
{
    pw_stack stack = {0};
    pw_scope(&stack);
    pw_stack_wipe(&stack);
}

static void write_past_the_end(void)
{
    pw_stack stack = {0};
    pw_stack_guard(&stack);
    pw_scope(&stack);
    volatile char *block = pw_stack_new(&stack, char, 5);
    block[5] = 1;
}

static void misuse_aborts(void)
{
    aborts_saying(pop_out_of_order, "a frame is popped that is not the innermost");
    aborts_saying(pop_twice, "a frame is popped that is not the innermost");
    aborts_saying(wipe_in_a_frame, "it is wiped while a frame is open");
    aborts_saying(write_past_the_end, "beyond its bounds");
}

int main(int argc, char **argv)
{
    is_watched = argc > 1 && strcmp(argv[1], "watched") == 0;
    small_blocks_are_adjacent();
    frames_free_all_that_was_allocated_in_them();
    what_is_reserved_is_one_block();
    the_last_block_grows_where_it_is();
    too_much_is_null();
    a_buffer_is_all_that_is_used();
    each_thread_has_a_stack();
    guards_and_names();
    if (!is_watched) misuse_aborts();
    return 0;
}
