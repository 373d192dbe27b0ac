#include "common/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/base/status.h"

namespace nereus {

int DescriptorLimit() {
  rlimit limit = {};
  // If the system does not tell its limit, returns 1024, Linux's default.
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int>(
      std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int>::max()));
}

absl::Status CheckDescriptors(int workers, int servers) {
  const int64_t needed = 2 * int64_t{workers} + 2 * int64_t{servers} + 64;
  if (needed <= DescriptorLimit()) return absl::OkStatus();
  return InvalidArgumentError(
      "workers is ", workers, ": this process needs ", needed,
      " file descriptors for them, and may have ", DescriptorLimit(),
      "; raise its limit (ulimit -n)");
}

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace nereus
