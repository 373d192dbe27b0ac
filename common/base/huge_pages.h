#pragma once

#include <cstddef>
#include <new>

namespace nereus {

// Asks the kernel to use huge pages (2 MiB instead of 4 KiB) for `bytes` bytes
// at `memory`. The bytes do not change. A kernel without huge pages ignores the
// call. Call it before the program first writes to the memory: then the kernel
// can use huge pages from the start.
void AdviseHugePages(void* memory, size_t bytes);

// Allocator for containers of hundreds of megabytes that are read in random
// order. With pages of 4 KiB, the CPU would have to look up the address of a
// page at most accesses. Such a look-up costs more than a miss of the cache.
// Allocations below 2 MiB get ordinary pages.
template <typename T>
class HugePageAllocator {
 public:
  using value_type = T;  // NOLINT: the standard's name.

  HugePageAllocator() = default;
  template <typename U>
  explicit HugePageAllocator(const HugePageAllocator<U>&) {}

  // Returns memory for `count` objects, as the standard requires of allocators.
  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    void* const memory = ::operator new(bytes, AlignmentOf(bytes));
    if (bytes >= kPageBytes) AdviseHugePages(memory, bytes);
    return static_cast<T*>(memory);
  }
  // Frees memory of allocate(count).
  void deallocate(T* memory, size_t count) {
    ::operator delete(memory, AlignmentOf(count * sizeof(T)));
  }

  template <typename U>
  bool operator==(const HugePageAllocator<U>&) const {
    return true;
  }

 private:
  // Length of a huge page.
  static constexpr size_t kPageBytes = size_t{2} << 20;
  // Returns the alignment of an allocation of `bytes`: a huge page if the
  // allocation is that long. Only an aligned range of 2 MiB can be a huge page.
  static constexpr std::align_val_t AlignmentOf(size_t bytes) {
    return std::align_val_t{bytes >= kPageBytes ? kPageBytes
                                                : alignof(std::max_align_t)};
  }
};

}  // namespace nereus
