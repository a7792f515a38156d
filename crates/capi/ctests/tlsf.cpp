/* Tests of pagewise/tlsf.h and pagewise/pages.h in C++: a pool as the memory of a standard
 * container. */
#include <pagewise/pages.h>
#include <pagewise/tlsf.h>

#include <cstdio>
#include <map>
#include <new>
#include <string>

template <typename T> struct in_pool {
    using value_type = T;
    explicit in_pool(pw_tlsf *of) : pool(of) {}
    template <typename U> in_pool(const in_pool<U> &other) : pool(other.pool) {}
    T *allocate(std::size_t n)
    {
        T *block = pw_tlsf_new(pool, T, n);
        if (!block) throw std::bad_alloc();
        return block;
    }
    void deallocate(T *block, std::size_t n) { pw_tlsf_free_sized(pool, block, n * sizeof(T)); }
    template <typename U> bool operator==(const in_pool<U> &other) const { return pool == other.pool; }
    pw_tlsf *pool;
};

using text = std::basic_string<char, std::char_traits<char>, in_pool<char>>;
using entry = std::pair<const int, text>;

int main()
{
    pw_pages *pages = nullptr;
    if (pw_pages_create(&pages, nullptr) != 0) return std::puts(pw_error_message());
    pw_tlsf *pool = pw_tlsf_create_on(pages);
    std::size_t sum = 0;
    {
        std::map<int, text, std::less<>, in_pool<entry>> texts{in_pool<entry>(pool)};
        for (int n = 0; n < 1000; n++) texts.emplace(n, text(static_cast<std::size_t>(n), 'x', in_pool<char>(pool)));
        for (int n = 0; n < 1000; n += 2) texts.erase(n);
        for (const auto &each : texts) sum += each.second.size();
    }
    pw_tlsf_check(pool);
    pw_tlsf_destroy(pool);
    bool all_back = pw_pages_get_usage(pages).live == 0;
    pw_pages_destroy(pages);
    return sum == 250000 && all_back ? 0 : 1;
}
