// Boost.Interprocess: a heap in a mapped file, safe against nothing.
#include <boost/interprocess/managed_mapped_file.hpp>

#include <cstdint>
#include <cstdlib>

using boost::interprocess::create_only;
using boost::interprocess::managed_mapped_file;
using boost::interprocess::offset_ptr;

namespace {

struct Heap {
    managed_mapped_file file;
    offset_ptr<void> *slots;
};

} // namespace

extern "C" void *boost_heap_new(const char *path, std::size_t size, std::size_t live)
{
    auto *heap = new Heap{managed_mapped_file(create_only, path, size), nullptr};
    heap->slots = heap->file.construct<offset_ptr<void>>("slots")[live]();
    return heap;
}

extern "C" void boost_heap_replace(void *pointer, std::size_t slot, std::size_t size)
{
    auto *heap = static_cast<Heap *>(pointer);
    if (heap->slots[slot]) heap->file.deallocate(heap->slots[slot].get());
    void *block = heap->file.allocate(size);
    *static_cast<std::uint64_t *>(block) = slot;
    heap->slots[slot] = block;
}

extern "C" void boost_heap_delete(void *heap)
{
    delete static_cast<Heap *>(heap);
}
