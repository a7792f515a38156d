/* Reads the clock repeatedly for some time, once for each input line. */
#include <stdio.h>
#include <time.h>

__attribute__((noinline)) static long asks(long nanoseconds) {
    struct timespec now;
    long begin, passed, sum = 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    begin = now.tv_sec * 1000000000L + now.tv_nsec;
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
        passed = now.tv_sec * 1000000000L + now.tv_nsec - begin;
        sum++;
    } while (passed < nanoseconds);
    return sum;
}

int main(void) {
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        printf("%ld\n", asks(300000000));
        fflush(stdout);
    }
    return 0;
}
