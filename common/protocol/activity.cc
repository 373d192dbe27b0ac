#include "common/protocol/activity.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nereus {
namespace {

// Returns "3.0 of 40.0 GB", in the unit that suits the total.
std::string DescribeBytes(int64_t done, int64_t total) {
  const bool is_large = total >= 1'000'000'000;
  const double unit = is_large ? 1e9 : 1e6;
  return absl::StrFormat("%.1f of %.1f %s", static_cast<double>(done) / unit,
                         static_cast<double>(total) / unit,
                         is_large ? "GB" : "MB");
}

}  // namespace

std::string DescribeWork(const LongWork& work) {
  switch (work.kind) {
    case LongWork::Kind::kRestore:
      return absl::StrCat("restores, ", DescribeBytes(work.done, work.total));
    case LongWork::Kind::kMultiply:
      return absl::StrCat("multiplies factors, ", work.done, " of ", work.total,
                          " rows");
  }
  return "";
}

}  // namespace nereus
