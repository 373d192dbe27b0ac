#include "common/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

namespace nereus {

int DescriptorLimit() {
  rlimit limit = {};
  // If the system does not tell its limit: 1024, the default of Linux.
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int>(
      std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int>::max()));
}

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace nereus
