/* Calls that abort must print the reason: each wrong call is made in a child. */
#ifndef ABORTS_H
#define ABORTS_H

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* Checks that a program ends by SIGABRT and prints a text. */
static void aborts_saying(void (*does)(void), const char *says)
{
    int ends[2];
    char said[4096];
    int status;
    size_t size = 0;
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(300);
        dup2(ends[1], 2);
        does();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], said + size, sizeof said - 1 - size)) > 0;) size += (size_t)n;
    said[size] = 0;
    close(ends[0]);
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(said, says)) {
        fprintf(stderr, "status %x, said: %s\n", (unsigned)status, said);
        exit(1);
    }
}

#endif
