#include "common/base/huge_pages.h"

#include <sys/mman.h>

namespace nereus {

void AdviseHugePages(void* memory, size_t bytes) {
  // Where it fails, pages are small, and all is as it was.
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
}

}  // namespace nereus
