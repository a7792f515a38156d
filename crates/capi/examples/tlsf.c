/* Blocks of any size, freed in any order. */
#include <pagewise/tlsf.h>
#include <stdio.h>

int main(void)
{
    pw_tlsf *pool = pw_tlsf_create();
    if (!pool) return 1;
    int *squares = pw_tlsf_new(pool, int, 10);
    char *text = pw_tlsf_alloc(pool, 20);
    for (int n = 0; squares && n < 10; n++) squares[n] = n * n;
    text = pw_tlsf_realloc(pool, text, 1000);
    if (squares && text) puts(snprintf(text, 1000, "%d", squares[9]) == 2 ? text : "?");
    pw_tlsf_free(pool, squares);
    pw_tlsf_destroy(pool);
}
