#include "worker/gpu/gpu_copy_metric.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>

#include "absl/time/clock.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/gate.h"
#include "tests/gpu/needs_gpu.h"

namespace nereus {
namespace {

using Kind = GpuSpan::Kind;

constexpr absl::Duration kCopyTime = absl::Milliseconds(40);

// Two streams, one for computing and one for copies.
struct GpuCopyMetricTest : NeedsGpu<testing::Test> {
  void SetUp() override {
    NeedsGpu::SetUp();
    if (IsSkipped()) return;
    NEREUS_CUDA(cudaStreamCreateWithFlags(&computing, cudaStreamNonBlocking));
    NEREUS_CUDA(cudaStreamCreateWithFlags(&copying, cudaStreamNonBlocking));
  }

  // Does a step with a copy of `kind`. The GPU also computes while it copies,
  // or does nothing else.
  void Step(int64_t step, Kind kind, bool computes) {
    metric.OnStep(step);
    Note(Kind::kCompute, step, /*begins=*/true, computing);
    if (!computes) Note(Kind::kCompute, step, /*begins=*/false, computing);
    NEREUS_CUDA(cudaStreamSynchronize(computing));
    {
      Note(kind, step, /*begins=*/true, copying);
      Gate gate(copying);
      absl::SleepFor(kCopyTime);
    }
    Note(kind, step, /*begins=*/false, copying);
    NEREUS_CUDA(cudaStreamSynchronize(copying));
    if (computes) Note(Kind::kCompute, step, /*begins=*/false, computing);
  }
  void Note(Kind kind, int64_t step, bool begins, cudaStream_t stream) {
    if (!metric.Records(step)) return;
    ++noted;
    metric.OnMoment(kind, /*layer=*/0, step, begins, stream);
  }

  // Returns the seconds of the metric, by its labels.
  std::map<std::string, double> Read() {
    MetricList list;
    metric.AddTo(list);
    std::map<std::string, double> read;
    std::istringstream lines(list.ToText());
    for (std::string line; std::getline(lines, line);) {
      const size_t space = line.rfind(' ');
      if (line.front() == '#') continue;
      read[line.substr(line.find('{'), space - line.find('{'))] =
          std::stod(line.substr(space));
    }
    return read;
  }

  cudaStream_t computing = nullptr;
  cudaStream_t copying = nullptr;
  GpuCopyMetric metric{0};
  int noted = 0;
};

constexpr char kOutHidden[] = R"({direction="out",hidden="true"})";
constexpr char kOutExposed[] = R"({direction="out",hidden="false"})";
constexpr char kInHidden[] = R"({direction="in",hidden="true"})";
constexpr char kInExposed[] = R"({direction="in",hidden="false"})";

TEST_F(GpuCopyMetricTest, AStepCountsForAllStepsSinceTheLastOne) {
  const double copy = absl::ToDoubleSeconds(kCopyTime);
  Step(0, Kind::kCopyOut, /*computes=*/false);
  EXPECT_EQ(noted, 0) << "nobody reads the metric";
  EXPECT_EQ(Read()[kOutExposed], 0.0);
  Step(1, Kind::kCopyOut, /*computes=*/true);
  EXPECT_EQ(noted, 4);
  Step(2, Kind::kCopyOut, /*computes=*/false);
  EXPECT_EQ(Read()[kOutHidden], 0.0) << "copies of step 1 may still follow";
  Step(3, Kind::kCopyIn, /*computes=*/false);
  EXPECT_EQ(noted, 4) << "one step is recorded";

  // Step 1 counts for the steps 0 and 1.
  auto read = Read();
  EXPECT_NEAR(read[kOutHidden], 2 * copy, copy);
  EXPECT_GE(read[kOutHidden], 2 * copy - 1e-3);
  EXPECT_LT(read[kOutExposed], copy);
  EXPECT_EQ(read[kInHidden], 0.0);
  EXPECT_EQ(read[kInExposed], 0.0);

  // Step 4 counts for the steps 2 to 4.
  Step(4, Kind::kCopyIn, /*computes=*/false);
  for (int step = 5; step < 7; ++step) metric.OnStep(step);
  read = Read();
  EXPECT_GE(read[kInExposed], 3 * copy - 1e-3);
  EXPECT_LT(read[kInExposed], 6 * copy);
  EXPECT_EQ(read[kInHidden], 0.0);
}

TEST_F(GpuCopyMetricTest, AStepThatIsDoneAgainCountsOnce) {
  const double copy = absl::ToDoubleSeconds(kCopyTime);
  Read();
  Step(7, Kind::kCopyOut, /*computes=*/false);
  // The job goes back to step 6, which is recorded in the place of step 7.
  Step(6, Kind::kCopyOut, /*computes=*/false);
  Step(7, Kind::kCopyOut, /*computes=*/false);
  EXPECT_EQ(noted, 8);
  metric.OnStep(8);
  const auto read = Read();
  EXPECT_GE(read.at(kOutExposed), 2 * copy - 1e-3);
  EXPECT_LT(read.at(kOutExposed), 4 * copy);
}

}  // namespace
}  // namespace nereus
