/* Prints a line, then runs chain_main of a library. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    int (*chain)(int, char **) = library ? (int (*)(int, char **))dlsym(library, "chain_main") : NULL;
    if (!chain) {
        return 1;
    }
    puts("ready");
    fflush(stdout);
    return chain(argc - 1, argv + 1) + 1;
}
