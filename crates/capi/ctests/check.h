/* Assertions for tests: a failed assertion prints its location, and ends the program with status
 * 1. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(fact)                                                                                                    \
    do {                                                                                                               \
        if (!(fact)) {                                                                                                 \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #fact);                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
