#include "server/report/job_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/metrics/process_pages.h"
#include "server/process/server_metrics.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);

std::string TextOf(const JobStatus& status) {
  MetricList metrics;
  AddJobMetrics(status, kNow, metrics);
  return metrics.ToText();
}

JobStatus Running() {
  JobStatus status;
  status.state = JobState::kRunning;
  status.workers = 4;
  status.shards = 2;
  status.steps = {41, 10, absl::Seconds(2), absl::Milliseconds(98), false};
  status.counts.epochs = 3;
  status.counts.epochs_by_reason = {{"start", 1}, {"lost", 2}};
  status.counts.plan_changes = 1;
  status.counts.workers_lost = 2;
  status.counts.workers_replaced.Add(absl::Milliseconds(1500));
  status.counts.workers_replaced.Add(absl::Milliseconds(400));
  status.counts.checkpoints = 7;
  status.counts.checkpoints_failed = 1;
  return status;
}

TEST(JobMetricsTest, TellsStateAndSteps) {
  EXPECT_THAT(
      TextOf(Running()),
      AllOf(HasSubstr("nereus_job_state{state=\"running\"} 1\n"),
            HasSubstr("nereus_job_state{state=\"failed\"} 0\n"),
            HasSubstr("nereus_members{role=\"worker\",state=\"expected\"} 4\n"),
            HasSubstr("nereus_members{role=\"server\",state=\"live\"} 0\n"),
            HasSubstr("nereus_members_lost_total{role=\"worker\"} 2\n"),
            HasSubstr("nereus_step 41\n"),
            HasSubstr("nereus_last_step_timestamp_seconds 999998\n"),
            HasSubstr("nereus_step_predicted_seconds 0.098"),
            HasSubstr("nereus_step_measured_seconds 0.1"),
            HasSubstr("# TYPE nereus_epochs_total counter\n"),
            HasSubstr("nereus_epochs_total{reason=\"lost\"} 2\n"),
            HasSubstr("# TYPE nereus_member_replacement_seconds histogram\n"),
            HasSubstr("_bucket{role=\"worker\",le=\"0.3\"} 0\n"),
            HasSubstr("_bucket{role=\"worker\",le=\"1\"} 1\n"),
            HasSubstr("_bucket{role=\"worker\",le=\"3\"} 2\n"),
            HasSubstr("_bucket{role=\"worker\",le=\"+Inf\"} 2\n"),
            HasSubstr("_seconds_sum{role=\"worker\"} 1.9\n"),
            HasSubstr("_seconds_count{role=\"server\"} 0\n"),
            HasSubstr("nereus_checkpoint_failures_total 1\n")));
}

TEST(JobMetricsTest, WhatIsNotKnownIsLeftOut) {
  EXPECT_THAT(TextOf(JobStatus()),
              AllOf(Not(HasSubstr("timestamp")),
                    Not(HasSubstr("nereus_step_predicted_seconds")),
                    Not(HasSubstr("nereus_step_measured_seconds")),
                    Not(HasSubstr("nereus_checkpoint_bytes"))));
}

TEST(JobMetricsTest, TheLatestWorkersHaveASeriesEach) {
  JobStatus status = Running();
  for (int rank = 0; rank < 1024; ++rank) {
    JobStatus::Member& worker = status.members.emplace_back();
    worker.id = PeerId::Worker(rank);
    worker.late_total = absl::Seconds(rank);
  }
  const std::string text = TextOf(status);
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("nereus_worker_late_seconds_total{rank=\"1023\"} 1023\n"),
            HasSubstr("{rank=\"960\"}"), Not(HasSubstr("{rank=\"959\"}"))));
}

// Server 0 is often the coordinator, too. Prometheus takes no page on which a
// metric is described twice.
TEST(JobMetricsTest, NoMetricIsAlsoOneOfAServer) {
  JobStatus status = Running();
  status.members.emplace_back().id = PeerId::Worker(0);
  MetricList metrics;
  AddProcessMetrics(metrics);
  metrics.Append(ServerMetrics().Make(Heartbeat(), ConnectionCounts()));
  AddJobMetrics(status, kNow, metrics);
  std::set<std::string> described;
  for (const absl::string_view line : absl::StrSplit(metrics.ToText(), '\n')) {
    if (!absl::StartsWith(line, "# TYPE ")) continue;
    EXPECT_TRUE(described.emplace(line).second) << line;
  }
  EXPECT_GT(described.size(), 20u);
}

TEST(JobMetricsTest, NamesOfLayersAreEscaped) {
  JobStatus status = Running();
  PlanStatus::Layer& layer = status.plan.layers.emplace_back();
  layer.name = "a\"b\\c\nd";
  EXPECT_THAT(TextOf(status), HasSubstr("layer=\"a\\\"b\\\\c\\nd\""));
}

// The largest status that a coordinator makes.
TEST(JobMetricsTest, MetricsOfAThousandWorkersAreSmall) {
  JobStatus status = Running();
  for (int rank = 0; rank < 1024; ++rank) {
    JobStatus::Member& worker = status.members.emplace_back();
    worker.id = PeerId::Worker(rank);
    worker.late_total = absl::Seconds(rank);
  }
  for (int i = 0; i < kStatusLayersMax; ++i) {
    PlanStatus::Layer& layer = status.plan.layers.emplace_back();
    layer.name = absl::StrCat("transformer.block.", i, ".mlp.projection");
  }
  for (int i = 0; i < 64; ++i) status.shard_servers.push_back({i, i, true});
  EXPECT_LT(TextOf(status).size(), 100'000u);
}

}  // namespace
}  // namespace nereus
