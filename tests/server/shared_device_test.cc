#include "server/admin/simulate/shared_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/base/random.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

TEST(SharedDeviceTest, EqualJobsInTurnsTakeTheLongestTerm) {
  // Waiting, link, and the expected step, in units of computing.
  const struct {
    double waits, link, step;
  } kRows[] = {
      {0, 0, 2},       {0.2, 0.2, 2}, {0.5, 0.8, 2},   {1, 0.5, 2},
      {1.5, 0.5, 2.5}, {1, 1.2, 2.4}, {0.8, 1.3, 2.6},
  };
  for (const auto& row : kRows) {
    const SharingJob job = {1, row.link, 1 + row.waits};
    EXPECT_THAT(
        PlayShared({{job, job}}, Sharing::kTurns),
        ElementsAre(DoubleNear(row.step, 0.01), DoubleNear(row.step, 0.01)))
        << row.waits << " " << row.link;
  }
}

TEST(SharedDeviceTest, JobsAtOnceShareDeviceAndLinkEqually) {
  // Both compute all the time.
  const SharingJob busy = {1, 0, 1};
  EXPECT_THAT(PlayShared({{busy, busy, busy}}, Sharing::kAtOnce),
              ElementsAre(DoubleNear(3, 0.03), DoubleNear(3, 0.03),
                          DoubleNear(3, 0.03)));
  // A job alone takes the time that it takes alone.
  EXPECT_THAT(PlayShared({{{1, 0.7, 1.4}}}, Sharing::kAtOnce),
              ElementsAre(DoubleNear(1.4, 0.01)));
}

TEST(SharedDeviceTest, ShortJobMakesStepsWhileTheLongOneWaits) {
  // In its wait of 1, the long job leaves the device for steps of 0.1; in its
  // turn, the short job has to wait.
  const std::vector<double> steps =
      PlayShared({{{1, 0, 2}, {0.1, 0, 0.1}}}, Sharing::kTurns);
  EXPECT_NEAR(steps[0], 2, 0.1);
  EXPECT_NEAR(steps[1], 0.2, 0.02);
}

TEST(SharedDeviceTest, NoJobGetsMoreThanThereIs) {
  for (const uint64_t seed : TestSeeds(300)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    std::vector<SharingJob> jobs(1 + random.Below(4));
    for (SharingJob& job : jobs) {
      job.compute = 0.01 + random.Uniform();
      job.link = random.Below(3) == 0 ? 0 : random.Uniform();
      job.alone = job.compute + (random.Below(3) == 0 ? 0 : random.Uniform());
    }
    for (const Sharing sharing : {Sharing::kAtOnce, Sharing::kTurns}) {
      const std::vector<double> steps = PlayShared(jobs, sharing);
      double device = 0;
      double link = 0;
      for (size_t i = 0; i < jobs.size(); ++i) {
        EXPECT_GE(steps[i], 0.99 * std::max(jobs[i].alone, jobs[i].link));
        device += jobs[i].compute / steps[i];
        link += jobs[i].link / steps[i];
      }
      EXPECT_LE(device, 1.02);
      EXPECT_LE(link, 1.02);
    }
  }
}

}  // namespace
}  // namespace nereus
