/* Runs of pages, and a pool that takes its memory from them. */
#include <pagewise/pages.h>
#include <pagewise/tlsf.h>
#include <stdio.h>

int main(void)
{
    pw_pages *pages;
    if (pw_pages_create(&pages, NULL) != 0) return puts(pw_error_message());
    char *run = pw_pages_alloc(pages, 1 << 20);
    if (run) pw_pages_free_part(pages, run + (1 << 19), 1 << 19);
    pw_tlsf *pool = pw_tlsf_create_on(pages);
    printf("%zu bytes are in use\n", pw_pages_get_usage(pages).live);
    pw_tlsf_destroy(pool);
    pw_pages_destroy(pages);
}
