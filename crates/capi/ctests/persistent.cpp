// Tests of pagewise/persistent.h in C++: its macros and inline functions.
#include <pagewise/persistent.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

namespace {

struct Pair {
    std::uint64_t first;
    pw_rel second;
};

bool holds(const std::string &path)
{
    pw_persistent heap;
    if (pw_persistent_open(&heap, path.c_str(), nullptr) != 0) return false;
    pw_rel place = pw_persistent_new0(&heap, Pair, 2);
    Pair *pair = pw_persistent_get(&heap, Pair, place);
    if (!pair || pair[1].second != 0) return false;
    *pair = {7, pw_persistent_rel(&heap, pair)};
    bool kept = pw_persistent_set_root(&heap, "pair", place) == 0 && pw_persistent_commit(&heap) == 0;
    kept = pw_persistent_close(&heap) == 0 && kept && pw_persistent_open(&heap, path.c_str(), nullptr) == 0;
    pair = pw_persistent_get(&heap, Pair, pw_persistent_root(&heap, "pair"));
    kept = kept && pair && pair->first == 7 && pair->second == place;
    return pw_persistent_close(&heap) == 0 && kept;
}

} // namespace

int main()
{
    char folder[] = "/tmp/pagewise-ctest-XXXXXX";
    if (!mkdtemp(folder)) return 1;
    const std::string path = std::string(folder) + "/heap";
    const bool held = holds(path);
    if (!held) std::fprintf(stderr, "%s\n", pw_error_message());
    unlink(path.c_str());
    rmdir(folder);
    return held ? 0 : 1;
}
