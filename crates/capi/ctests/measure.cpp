/* pagewise/measure.h from C++: a probe as a value that closes itself, and a region as a lambda. */
#include <pagewise/measure.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace {

struct Close {
    void operator()(pw_probe *probe) const noexcept { pw_probe_close(probe); }
};

class Probe {
public:
    explicit Probe(const char *events, unsigned flags = 0)
    {
        pw_probe *probe = nullptr;
        check(pw_probe_open(&probe, events, flags));
        probe_.reset(probe);
    }

    template <typename Region> void measure(Region &&region)
    {
        check(pw_probe_start(probe_.get()));
        region();
        check(pw_probe_stop(probe_.get()));
    }

    pw_value operator[](const char *name)
    {
        pw_value value;
        check(pw_probe_read(probe_.get(), name, &value));
        return value;
    }

private:
    static void check(int error)
    {
        if (error != 0)
            throw std::runtime_error(pw_error_message());
    }

    std::unique_ptr<pw_probe, Close> probe_;
};

} // namespace

int main()
try {
    alarm(300);
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    constexpr std::size_t pages = 100;
    void *memory = mmap(nullptr, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || madvise(memory, pages * page, MADV_NOHUGEPAGE) != 0)
        throw std::runtime_error("no memory");

    Probe probe("page_faults");
    probe.measure([&] {
        for (std::size_t at = 0; at < pages; at++)
            static_cast<char *>(memory)[at * page] = 1;
    });
    const pw_value faults = probe["page_faults"];
    if (faults.absent != nullptr || faults.count != static_cast<std::int64_t>(pages))
        throw std::runtime_error("page_faults is " + std::to_string(faults.count));

    try {
        Probe wrong("no_such_event");
    } catch (const std::runtime_error &error) {
        return std::strstr(error.what(), "no_such_event") != nullptr ? 0 : 2;
    }
    return 3;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
