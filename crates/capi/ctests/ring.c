/* pagewise/ring.h from C: frames for other threads, in any order, of any size; sizes that are too
 * large, and memory errors that abort the program. */
#include <pagewise/ring.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "aborts.h"

#define JOBS 1000
#define WAITING 50

/* True if a checker observes accesses: then blocks are separate, and always move when they grow. */
static int is_watched;

struct job {
    pw_ring_frame *frame;
    char *name;
    size_t n;
    size_t *numbers;
};

/* A queue of one writer and one reader. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct job *jobs[WAITING];
    size_t written, read;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

static void write_job(struct job *job)
{
    pthread_mutex_lock(&queue.lock);
    while (queue.written - queue.read == WAITING) pthread_cond_wait(&queue.moved, &queue.lock);
    queue.jobs[queue.written++ % WAITING] = job;
    pthread_cond_signal(&queue.moved);
    pthread_mutex_unlock(&queue.lock);
}

static struct job *read_job(void)
{
    pthread_mutex_lock(&queue.lock);
    while (queue.written == queue.read) pthread_cond_wait(&queue.moved, &queue.lock);
    struct job *job = queue.jobs[queue.read++ % WAITING];
    pthread_cond_signal(&queue.moved);
    pthread_mutex_unlock(&queue.lock);
    return job;
}

static struct job *make(pw_ring *ring, size_t at)
{
    static const size_t sizes[] = {3, 900, 40000};
    CHECK(pw_ring_open(ring) == 0);
    struct job *job = pw_ring_new0(ring, struct job, 1);
    CHECK(job && !job->frame);
    job->n = sizes[at % (is_watched ? 2 : 3)];
    job->name = pw_ring_strdup(ring, "a job");
    job->numbers = pw_ring_new(ring, size_t, job->n);
    CHECK(job->name && job->numbers && (uintptr_t)job->numbers % sizeof(size_t) == 0);
    for (size_t n = 0; n < job->n; n++) job->numbers[n] = n ^ at;
    job->frame = pw_ring_seal(ring);
    return job;
}

static void look_at(const struct job *job)
{
    size_t at = job->numbers[0];
    CHECK(strcmp(job->name, "a job") == 0);
    for (size_t n = 0; n < job->n; n++) CHECK(job->numbers[n] == (n ^ at));
}

static void done(struct job *job)
{
    look_at(job);
    pw_ring_release(job->frame);
}

static void *work(void *unused)
{
    struct job *kept[10] = {NULL};
    for (size_t n = 0; n < JOBS; n++) {
        struct job *job = read_job();
        look_at(job);
        if (kept[n % 10]) done(kept[n % 10]);
        kept[n % 10] = n % 7 ? NULL : job;
        if (n % 7) done(job);
    }
    for (int n = 0; n < 10; n++)
        if (kept[n]) done(kept[n]);
    return unused;
}

static void a_worker_releases_jobs_in_any_order(void)
{
    pthread_t worker;
    pw_ring *ring = pw_ring_create();
    CHECK(ring && pthread_create(&worker, NULL, work, NULL) == 0);
    pw_ring_set_name(ring, "of the test");
    for (size_t n = 0; n < JOBS; n++) {
        write_job(make(ring, n));
        pw_ring_check(ring);
    }
    CHECK(pthread_join(worker, NULL) == 0);
    pw_ring_trim(ring);
    CHECK(pw_ring_held(ring) < 3000000);
    pw_ring_destroy(ring);
}

static void blocks_are_adjacent_and_grow_in_place(void)
{
    pw_ring *ring = pw_ring_create();
    CHECK(pw_ring_open(ring) == 0);
    char *one = pw_ring_new(ring, char, 3), *two = pw_ring_new(ring, char, 5);
    char *page = pw_ring_alloc(ring, 100, 4096);
    CHECK(is_watched || two == one + 3);
    CHECK((uintptr_t)page % 4096 == 0);
    char *longer = pw_ring_realloc(ring, page, 100, 300, 1);
    CHECK(longer && (is_watched || longer == page));
    memset(longer, 1, 300);
    char *other = pw_ring_realloc(ring, NULL, 0, 10, 1), *moved = pw_ring_realloc(ring, longer, 300, 400, 1);
    CHECK(other && moved && moved != longer && moved[299] == 1);
    pw_ring_release(pw_ring_seal(ring));
    pw_ring_release(NULL);
    pw_ring_destroy(ring);
}

static void what_is_cancelled_is_used_again(void)
{
    pw_ring *ring = pw_ring_create();
    struct job *kept = make(ring, 4);
    for (int n = 0; n < 1000; n++) {
        CHECK(pw_ring_open(ring) == 0 && pw_ring_new(ring, char, 50000));
        pw_ring_cancel(ring);
    }
    CHECK(pw_ring_held(ring) < 1000000);
    CHECK(pw_ring_open(ring) == 0 && pw_ring_new(ring, char, 50000));
    pw_ring_destroy(ring);
    pw_ring_destroy(NULL);
    done(kept);
}

static void too_much_is_null(void)
{
    pw_ring *ring = pw_ring_create();
    CHECK(pw_ring_open(ring) == 0);
    CHECK(!pw_ring_new(ring, double, SIZE_MAX / 4));
    CHECK(!pw_ring_alloc(ring, SIZE_MAX, 1) && !pw_ring_alloc(ring, SIZE_MAX - 4, 8));
    CHECK(!pw_ring_zalloc(ring, SIZE_MAX / 2, 4096));
    CHECK(pw_ring_alloc(ring, 0, 1) && pw_ring_new(ring, char, 10));
    pw_ring_check(ring);
    pw_ring_release(pw_ring_seal(ring));
    pw_ring_destroy(ring);
}

static void a_buffer_is_all_that_is_used(void)
{
    static char buffer[200000];
    char small[100];
    CHECK(!pw_ring_create_in(small, sizeof small) && !pw_ring_create_in(NULL, 0));
    pw_ring *ring = pw_ring_create_in(buffer, sizeof buffer);
    CHECK(ring);
    pw_ring_frame *frames[4000];
    size_t n = 0;
    while (n < 4000 && pw_ring_open(ring) == 0) {
        char *block = pw_ring_new(ring, char, 100);
        CHECK(!block || (block >= buffer && block + 100 <= buffer + sizeof buffer));
        if (block) memset(block, 1, 100);
        frames[n++] = pw_ring_seal(ring);
        if (!block) break;
    }
    CHECK(n > (is_watched ? 200 : 900) && n < 4000);
    while (n > 0) pw_ring_release(frames[--n]);
    CHECK(pw_ring_open(ring) == 0 && pw_ring_new(ring, char, 100));
    pw_ring_destroy(ring);
}

static void open_twice(void)
{
    pw_ring *ring = pw_ring_create();
    pw_ring_open(ring);
    pw_ring_open(ring);
}

static void seal_nothing(void)
{
    pw_ring_seal(pw_ring_create());
}

static void allocate_in_nothing(void)
{
    pw_ring_new(pw_ring_create(), char, 1);
}

static pw_ring_frame *of_guarded(size_t past)
{
    pw_ring *ring = pw_ring_create();
    CHECK(pw_ring_guard(ring) && pw_ring_open(ring) == 0);
    volatile char *block = pw_ring_new(ring, char, 10);
    block[9 + past] = 1;
    return pw_ring_seal(ring);
}

static void release_twice(void)
{
    pw_ring_frame *frame = of_guarded(0);
    pw_ring_release(frame);
    pw_ring_release(frame);
}

static void write_past_the_end(void)
{
    pw_ring_release(of_guarded(1));
}

int main(int argc, char **argv)
{
    is_watched = argc > 1 && strcmp(argv[1], "watched") == 0;
    a_worker_releases_jobs_in_any_order();
    blocks_are_adjacent_and_grow_in_place();
    what_is_cancelled_is_used_again();
    too_much_is_null();
    a_buffer_is_all_that_is_used();
    if (!is_watched) {
        aborts_saying(open_twice, "opened while one is open");
        aborts_saying(seal_nothing, "no frame is open");
        aborts_saying(allocate_in_nothing, "no frame is open");
        aborts_saying(release_twice, "released twice");
        aborts_saying(write_past_the_end, "beyond its bounds");
    }
    return 0;
}
