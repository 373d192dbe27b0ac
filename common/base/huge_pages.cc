#include "common/base/huge_pages.h"

#include <sys/mman.h>

namespace nereus {

void AdviseHugePages(void* memory, size_t bytes) {
  // A failure is ignored: the pages stay small.
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
}

}  // namespace nereus
