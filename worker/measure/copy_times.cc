#include "worker/measure/copy_times.h"

#include <algorithm>
#include <vector>

#include "absl/algorithm/container.h"

namespace nereus {

CopyTimes CopyTimesOf(absl::Span<const GpuSpan> spans, GpuSpan::Kind kind) {
  std::vector<const GpuSpan*> computing;
  for (const GpuSpan& span : spans) {
    if (span.kind == GpuSpan::Kind::kCompute) computing.push_back(&span);
  }
  CopyTimes times;
  for (const GpuSpan& copy : spans) {
    if (copy.kind != kind) continue;
    // Skips the spans of computing that end before the copy.
    auto compute = absl::c_partition_point(computing, [&](const GpuSpan* span) {
      return span->end <= copy.begin;
    });
    absl::Duration hidden;
    for (; compute != computing.end() && (*compute)->begin < copy.end;
         ++compute) {
      hidden += std::min(copy.end, (*compute)->end) -
                std::max(copy.begin, (*compute)->begin);
    }
    times.hidden += hidden;
    times.exposed += copy.end - copy.begin - hidden;
  }
  return times;
}

}  // namespace nereus
