#pragma once

#include <cstddef>
#include <new>

namespace nereus {

// Asks the kernel to back memory by huge pages. Changes no bytes, and does
// nothing without huge pages. Works best before the memory is touched.
void AdviseHugePages(void* memory, size_t bytes);

// Allocator for containers of hundreds of megabytes with random access. With
// pages of 4 KiB most accesses would miss the TLB, which costs more than
// missing the cache. Allocations below 2 MiB are ordinary ones.
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
  // Large allocations begin where a huge page does: only whole pages can be
  // huge.
  static constexpr std::align_val_t AlignmentOf(size_t bytes) {
    return std::align_val_t{bytes >= kPageBytes ? kPageBytes
                                                : alignof(std::max_align_t)};
  }
};

}  // namespace nereus
