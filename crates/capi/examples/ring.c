/* A job that one thread creates; another thread does the job and frees all memory of it at once. */
#include <pagewise/ring.h>
#include <pthread.h>
#include <stdio.h>

struct job {
    pw_ring_frame *frame;
    const char *word;
    int *numbers;
};

static void *work(void *arg)
{
    struct job *job = (struct job *)arg;
    printf("%s %d\n", job->word, job->numbers[99]);
    pw_ring_release(job->frame);
    return NULL;
}

int main(void)
{
    pthread_t worker;
    pw_ring *ring = pw_ring_create();
    if (!ring || pw_ring_open(ring)) return 1;
    struct job *job = pw_ring_new(ring, struct job, 1);
    *job = (struct job){NULL, pw_ring_strdup(ring, "the last is"), pw_ring_new(ring, int, 100)};
    for (int n = 0; n < 100; n++) job->numbers[n] = n;
    job->frame = pw_ring_seal(ring);
    pw_ring_destroy(ring); /* The job stays until it is released. */
    if (pthread_create(&worker, NULL, work, job)) return 1;
    return pthread_join(worker, NULL);
}
