// Reports of workers about their factors, and the model that follows from them.

#include "server/coordinator/factor_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

LayerSpec Unknown(const char* name) {
  LayerSpec layer = FactorLayer(name, 64, 64, true, 2);
  layer.rows = kRowsNotKnown;
  return layer;
}

// Two workers; the rows of the first layer are known, those of two are not.
JobPtr SomeJob(int workers = 2) {
  return TestJob(workers, 1,
                 {FactorLayer("known", 64, 64, true, 2), Unknown("a"),
                  Unknown("b"), VectorLayer("scale", 7)});
}

std::vector<int64_t> RowsOf(const FactorReports& reports, const Job& job,
                            int workers_max = 2) {
  std::vector<int64_t> rows;
  for (const LayerSpec& layer : reports.Learnt(job, workers_max)) {
    rows.push_back(layer.rows);
  }
  return rows;
}

TEST(FactorReportsTest, RowsAreKnownOnceEachWorkerHasSaidThem) {
  const JobPtr job = SomeJob();
  FactorReports reports({});
  EXPECT_THAT(RowsOf(reports, *job), ElementsAre(2, 0, 0, 1));
  EXPECT_THAT(reports.OnReport(0, "worker a", {{9, 4, 4, 0}}), IsEmpty());
  EXPECT_THAT(RowsOf(reports, *job), ElementsAre(2, 0, 0, 1));
  reports.OnReport(1, "worker b", {{9, 7, 0, 0}});
  // The largest number counts, and known rows stay as they are.
  EXPECT_THAT(RowsOf(reports, *job), ElementsAre(2, 7, 0, 1));
}

TEST(FactorReportsTest, OneWorkerIsEnoughToLoseFactors) {
  const JobPtr job = SomeJob();
  FactorReports reports({});
  EXPECT_THAT(reports.OnReport(1, "worker b", {{kFactorsLost, 7, -1, 0}}),
              ElementsAre(0, 2));
  EXPECT_THAT(reports.OnReport(0, "worker a", {{0, 7, -1, 0}}), IsEmpty());
  EXPECT_THAT(RowsOf(reports, *job), ElementsAre(-1, 7, -1, 1));
  EXPECT_THAT(reports.lost(),
              ElementsAre(std::pair(0, "worker b"), std::pair(2, "worker b")));
  // The worker leaves, and the coordinator is restarted.
  const JobPtr alone = SomeJob(1);
  reports.OnEpoch(*alone);
  EXPECT_THAT(RowsOf(reports, *alone), ElementsAre(-1, 7, -1, 1));
  EXPECT_THAT(RowsOf(FactorReports(reports.lost()), *alone),
              ElementsAre(-1, 0, -1, 1));
}

TEST(FactorReportsTest, WorkersThatAreGoneDoNotCount) {
  const JobPtr job = SomeJob();
  FactorReports reports({});
  reports.OnReport(0, "worker a", {{0, 4, 4, 0}});
  reports.OnReport(1, "worker b", {{0, 7, 7, 0}});
  reports.OnEpoch(*SomeJob(1));
  EXPECT_THAT(RowsOf(reports, *SomeJob(1)), ElementsAre(2, 4, 4, 1));
  // The successor of worker b has said nothing yet.
  EXPECT_THAT(RowsOf(reports, *job), ElementsAre(2, 0, 0, 1));
}

TEST(FactorReportsTest, FactorsThatFramesCannotAddressStayUnknown) {
  const JobPtr job = SomeJob(1);
  FactorReports reports({});
  const int64_t most = (int64_t{1} << 32) / 4 / 64;
  reports.OnReport(0, "worker a", {{0, most, most + 1, 0}});
  EXPECT_THAT(RowsOf(reports, *job, /*workers_max=*/4),
              ElementsAre(2, most, 0, 1));
}

TEST(FactorReportsTest, ReasonsNameTheWorkerThatHasLostFactors) {
  FactorReports reports({});
  reports.OnReport(1, "worker b", {{-1, 0, 0, 0}});
  const JobPtr job = SomeJob();
  const std::vector<LayerSpec> layers = reports.Learnt(*job, 2);
  PlanOptions options;
  options.cluster = {2, 1};
  auto plan = MakePlan(layers, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  reports.Explain(layers, plan->explanations);
  EXPECT_THAT(plan->explanations[0].reason,
              testing::StartsWith("worker b says that its gradient is no "
                                  "product of factors"));
  EXPECT_THAT(plan->explanations[1].reason,
              testing::StartsWith("its rows are not known yet"));
}

}  // namespace
}  // namespace nereus
