#include "worker/measure/copy_times.h"

#include <gtest/gtest.h>

#include <vector>

namespace nereus {
namespace {

using Kind = GpuSpan::Kind;

GpuSpan SpanOf(Kind kind, int begin, int end) {
  return {kind, 0, 3, absl::Microseconds(begin), absl::Microseconds(end)};
}

TEST(CopyTimesTest, CopiesAreHiddenWhileTheGpuComputes) {
  const std::vector<GpuSpan> spans = {
      SpanOf(Kind::kCompute, 0, 10),  SpanOf(Kind::kCompute, 10, 30),
      SpanOf(Kind::kCopyOut, 5, 25),  SpanOf(Kind::kCopyOut, 30, 40),
      SpanOf(Kind::kCompute, 60, 70), SpanOf(Kind::kCopyIn, 20, 65)};
  const CopyTimes out = CopyTimesOf(spans, Kind::kCopyOut);
  EXPECT_EQ(out.hidden, absl::Microseconds(20));
  EXPECT_EQ(out.exposed, absl::Microseconds(10));
  const CopyTimes in = CopyTimesOf(spans, Kind::kCopyIn);
  EXPECT_EQ(in.hidden, absl::Microseconds(15));
  EXPECT_EQ(in.exposed, absl::Microseconds(30));
  CopyTimes all = out;
  all += in;
  EXPECT_DOUBLE_EQ(all.hidden_share(), 35.0 / 75.0);
}

TEST(CopyTimesTest, NoCopiesTakeNoTime) {
  const CopyTimes none = CopyTimesOf({}, Kind::kCopyIn);
  EXPECT_EQ(none.hidden, absl::ZeroDuration());
  EXPECT_EQ(none.exposed, absl::ZeroDuration());
  EXPECT_EQ(none.hidden_share(), 0.0);
}

}  // namespace
}  // namespace nereus
