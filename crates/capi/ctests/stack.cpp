/* Tests of pagewise/stack.h in C++: scopes are objects, and an exception that leaves a scope pops
 * its frame. */
#include <pagewise/stack.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>

namespace {

void check(bool fact, const char *what)
{
    if (fact) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::exit(1);
}

struct Point {
    double x, y;
};

Point *t_point(double x)
{
    return new (pw_t_new(Point, 1)) Point{x, -x};
}

void throws()
{
    t_scope;
    t_point(1);
    throw std::runtime_error("on purpose");
}

} // namespace

int main()
{
    t_scope;
    const Point *kept = t_point(5);
    const pw_frame *innermost = pw_t_stack()->frame;
    try {
        throws();
    } catch (const std::runtime_error &) {
    }
    check(pw_t_stack()->frame == innermost, "a frame that an exception leaves is popped");
    check(kept->x == 5 && kept->y == -5, "what the outer frame holds stays");

    pw_stack stack = {};
    {
        pw_scope(&stack);
        long *many = pw_stack_new0(&stack, long, 100000);
        check(many != nullptr && many[99999] == 0, "memory is zeroed");
    }
    pw_stack_check(&stack);
    pw_stack_wipe(&stack);
}
