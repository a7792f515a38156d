/* Measures the cost of a loop. */
#include <pagewise/measure.h>
#include <stdio.h>

int main(void)
{
    static volatile char memory[1 << 24];
    pw_probe *probe;
    pw_value faults;
    if (pw_probe_open(&probe, "page_faults,cycles", 0) != 0)
        return puts(pw_error_message());
    pw_probe_start(probe);
    for (size_t i = 0; i < sizeof memory; i += 512)
        memory[i] = 1;
    pw_probe_stop(probe);
    pw_probe_read(probe, "page_faults", &faults);
    printf("%.0f page faults\n", faults.value);
    pw_probe_close(probe);
}
