#include "server/coordinator/replanner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::HasSubstr;

// Two servers have a chunk each of the layer's, four workers would use four
// links on a ring; and a layer that goes by factors with two workers, and
// through the servers with four.
std::vector<LayerSpec> SomeLayers() {
  return {VectorLayer("large", 1 << 20), FactorLayer("fc", 64, 64, true, 26)};
}

JobPtr SomeJob(int workers, JobOptions options = {}) {
  return TestJob(workers, 2, SomeLayers(), options);
}

PlanRules ByTime() {
  PlanRules rules;
  rules.cost = CostKind::kTime;
  return rules;
}

// Iterations that wait for the network.
Measured SomeMeasured(double rate = 125e6) {
  Measured measured;
  measured.times.resize(2, {absl::Milliseconds(1), absl::Milliseconds(2)});
  measured.step_time = absl::Milliseconds(100);
  measured.link = {rate, absl::Microseconds(50), absl::Microseconds(10)};
  return measured;
}

constexpr absl::Time kStart = absl::UnixEpoch();

// No change of plans follows from measurements alone.
Replanner Eager() { return Replanner(ByTime(), absl::ZeroDuration()); }

TEST(ReplannerTest, JobBeginsWithThePlanByBytes) {
  const auto plan =
      Replanner(ByTime()).FirstPlan(SomeLayers(), {2, 2}, JobOptions());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->routes[0].scheme, Scheme::kServer);
  EXPECT_EQ(plan->routes[1].scheme, Scheme::kFactor);
}

// With backups and without checkpoints, such a plan could not change when
// another worker joins. A deterministic job keeps its plan in any case.
TEST(ReplannerTest, GradientsOfALoneWorkerStayIfItsCallerUpdates) {
  const auto scheme = [](const JobOptions& options) {
    const auto plan =
        Replanner(ByTime()).FirstPlan(SomeLayers(), {1, 2}, options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan->routes[0].scheme;
  };
  JobOptions options;
  EXPECT_EQ(scheme(options), Scheme::kServer);
  options.optimizer_place = OptimizerPlace::kWorker;
  EXPECT_EQ(scheme(options), Scheme::kRing);
  options.backup = true;
  EXPECT_EQ(scheme(options), Scheme::kServer);
  options.has_checkpoints = true;
  EXPECT_EQ(scheme(options), Scheme::kRing);
  options.deterministic = true;
  EXPECT_EQ(scheme(options), Scheme::kServer);
}

TEST(ReplannerTest, PlanByTimeNeedsMeasurementsOfAllWorkers) {
  Replanner replanner = Eager();
  const JobPtr job = SomeJob(4);
  EXPECT_FALSE(replanner.Better(*job, 4).has_value());
  for (const int worker : {0, 1, 2}) {
    EXPECT_FALSE(replanner.OnMeasured(worker, SomeMeasured(), *job, kStart));
    EXPECT_FALSE(replanner.Better(*job, 4).has_value());
  }
  // Measurements of other workers do not count.
  EXPECT_FALSE(replanner.OnMeasured(7, SomeMeasured(), *job, kStart));
  EXPECT_TRUE(replanner.OnMeasured(3, SomeMeasured(), *job, kStart));
  const auto better = replanner.Better(*job, 4);
  ASSERT_TRUE(better.has_value());
  EXPECT_EQ(better->plan.routes[0].scheme, Scheme::kRing);
  EXPECT_THAT(better->why, HasSubstr("s an iteration with 4 workers"));
}

TEST(ReplannerTest, SlowestWorkerCounts) {
  Replanner replanner = Eager();
  const JobPtr job = SomeJob(2);
  Measured slow = SomeMeasured(10e6);
  slow.times[1].backward = absl::Milliseconds(9);
  replanner.OnMeasured(0, slow, *job, kStart);
  Measured other = SomeMeasured();
  other.link->latency = absl::Milliseconds(2);
  other.step_time = absl::Milliseconds(300);
  replanner.OnMeasured(1, other, *job, kStart);
  const auto known = replanner.known(*job, {});
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(known->measured.link->rate, 10e6);
  EXPECT_EQ(known->measured.link->latency, absl::Milliseconds(2));
  EXPECT_EQ(known->measured.times[1].backward, absl::Milliseconds(9));
  EXPECT_EQ(known->measured.step_time, absl::Milliseconds(300));
  // 4 MiB each way at 10 MB/s.
  EXPECT_GT(known->predicted, absl::Milliseconds(300));
}

// A step is as long as that of the worker that waits for all layers at its end.
TEST(ReplannerTest, AllWorkersMustWaitInForward) {
  Replanner replanner = Eager();
  const JobPtr job = SomeJob(2);
  Measured waits = SomeMeasured();
  waits.waits_in_forward = true;
  replanner.OnMeasured(0, waits, *job, kStart);
  replanner.OnMeasured(1, SomeMeasured(), *job, kStart);
  EXPECT_FALSE(replanner.known(*job, {})->measured.waits_in_forward);
  // The change alone is worth a search.
  EXPECT_TRUE(replanner.OnMeasured(1, waits, *job, kStart));
  EXPECT_TRUE(replanner.known(*job, {})->measured.waits_in_forward);
}

// The link of a host is measured by one worker, its memory by another one.
TEST(ReplannerTest, LinkAndMemoryCanBeMeasuredByDifferentWorkers) {
  Replanner replanner = Eager();
  const JobPtr job = SomeJob(3);
  Measured neither = SomeMeasured();
  neither.link.reset();
  Measured memory = neither;
  memory.memory_rate = 3e9;
  EXPECT_FALSE(replanner.OnMeasured(0, neither, *job, kStart));
  EXPECT_FALSE(replanner.OnMeasured(1, memory, *job, kStart));
  // No worker has measured the link.
  EXPECT_FALSE(replanner.OnMeasured(2, neither, *job, kStart));
  EXPECT_FALSE(replanner.known(*job, {}).has_value());
  EXPECT_TRUE(replanner.OnMeasured(0, SomeMeasured(), *job, kStart));
  auto known = replanner.known(*job, {});
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(known->measured.link->rate, 125e6);
  EXPECT_EQ(known->measured.memory_rate, 3e9);
  EXPECT_THAT(Replanner::Describe(*known), HasSubstr("memory of 3e+09 bytes"));
  // The slower memory counts, and only a noticeable change.
  memory.memory_rate = 2.8e9;
  EXPECT_FALSE(replanner.OnMeasured(1, memory, *job, kStart));
  memory.memory_rate = 1e9;
  EXPECT_TRUE(replanner.OnMeasured(1, memory, *job, kStart));
  known = replanner.known(*job, {});
  EXPECT_EQ(known->measured.memory_rate, 1e9);
}

// Worker 1 has measured the memory. Its successor has no result yet.
TEST(ReplannerTest, MemoryIsNotForgottenWhenItsWorkerLeaves) {
  Replanner replanner = Eager();
  const JobPtr job = SomeJob(3);
  Measured memory = SomeMeasured();
  memory.link.reset();
  memory.memory_rate = 3e9;
  replanner.OnMeasured(0, SomeMeasured(), *job, kStart);
  replanner.OnMeasured(1, memory, *job, kStart);
  replanner.OnMeasured(2, SomeMeasured(), *job, kStart);
  ASSERT_EQ(replanner.known(*job, {})->measured.memory_rate, 3e9);
  const JobPtr two = EpochAfter(*job, [](Job& next) {
    next.workers = {{0, 0}, {2, 0}};
  });
  replanner.OnEpoch(*two, /*changed=*/false);
  replanner.OnMeasured(0, SomeMeasured(), *two, kStart);
  EXPECT_EQ(replanner.known(*two, {})->measured.memory_rate, 3e9);
  memory.memory_rate = 1e9;
  replanner.OnMeasured(2, memory, *two, kStart);
  EXPECT_EQ(replanner.known(*two, {})->measured.memory_rate, 1e9);
}

TEST(ReplannerTest, SlowMemoryOfAHostMakesAnIterationLonger) {
  const JobPtr singles = SomeJob(4);
  const JobPtr job = EpochAfter(*singles, [](Job& next) {
    for (EpochWorker& worker : next.workers) worker.host = worker.rank / 2;
  });
  Replanner replanner = Eager();
  Measured measured = SomeMeasured(1e12);
  for (const int rank : {0, 1, 2, 3}) {
    replanner.OnMeasured(rank, measured, *job, kStart);
  }
  const absl::Duration fast = replanner.known(*job, {})->predicted;
  measured.memory_rate = 1e6;
  EXPECT_TRUE(replanner.OnMeasured(1, measured, *job, kStart));
  EXPECT_GT(replanner.known(*job, {})->predicted, 10 * fast);
}

TEST(ReplannerTest, SearchesAgainWhenMeasurementsHaveChanged) {
  Replanner replanner = Eager();
  const JobPtr job = SomeJob(2);
  replanner.OnMeasured(0, SomeMeasured(), *job, kStart);
  EXPECT_TRUE(replanner.OnMeasured(1, SomeMeasured(), *job, kStart));
  EXPECT_FALSE(replanner.OnMeasured(0, SomeMeasured(110e6), *job, kStart));
  EXPECT_FALSE(replanner.OnMeasured(0, SomeMeasured(140e6), *job, kStart));
  EXPECT_TRUE(replanner.OnMeasured(0, SomeMeasured(90e6), *job, kStart));
  Measured busy = SomeMeasured(90e6);
  busy.times[0].forward = absl::Milliseconds(5);
  EXPECT_TRUE(replanner.OnMeasured(1, busy, *job, kStart));
  // Each frame costs that much.
  busy.link->message_time = absl::Microseconds(15);
  EXPECT_FALSE(replanner.OnMeasured(1, busy, *job, kStart));
  busy.link->message_time = absl::Microseconds(60);
  EXPECT_TRUE(replanner.OnMeasured(1, busy, *job, kStart));
}

TEST(ReplannerTest, FlickeringMeasurementsLeadToFewSearches) {
  Replanner replanner(ByTime(), absl::Seconds(10));
  const JobPtr job = SomeJob(2);
  int looks = 0;
  absl::Time now = kStart;
  const auto flicker = [&] {
    for (int i = 0; i < 1000; ++i) {
      now += absl::Milliseconds(100);
      const Measured figures = SomeMeasured(i % 2 == 0 ? 10e6 : 125e6);
      looks += replanner.OnMeasured(0, figures, *job, now);
      looks += replanner.OnMeasured(1, figures, *job, now);
    }
  };
  flicker();  // For 100 seconds.
  EXPECT_GE(looks, 2);
  EXPECT_LE(looks, 11);
  // Each change of plans makes them rarer.
  for (int i = 0; i < 3; ++i) replanner.OnEpoch(*job, /*changed=*/true);
  looks = 0;
  flicker();
  EXPECT_LE(looks, 2);
  // A lasting change of the measurements is noticed later.
  now += absl::Minutes(5);
  replanner.OnMeasured(0, SomeMeasured(1e6), *job, now);
  EXPECT_EQ(replanner.known(*job, {})->measured.link->rate, 1e6);
}

TEST(ReplannerTest, WorkersThatAreGoneDoNotCount) {
  Replanner replanner = Eager();
  const JobPtr job = SomeJob(3);
  replanner.OnMeasured(0, SomeMeasured(), *job, kStart);
  replanner.OnMeasured(1, SomeMeasured(), *job, kStart);
  replanner.OnMeasured(2, SomeMeasured(1e6), *job, kStart);
  EXPECT_EQ(replanner.known(*job, {})->measured.link->rate, 1e6);
  const JobPtr two = EpochAfter(*job, [](Job& next) {
    next.workers = {{0, 0}, {1, 0}};
  });
  replanner.OnEpoch(*two, /*changed=*/false);
  EXPECT_TRUE(replanner.OnMeasured(0, SomeMeasured(), *two, kStart));
  EXPECT_EQ(replanner.known(*two, {})->measured.link->rate, 125e6);
}

TEST(ReplannerTest, ByBytesThePlanFollowsTheNumberOfWorkers) {
  Replanner replanner((PlanRules()));
  const JobPtr two = TestJob(2, 2, {SomeLayers()[1]}, {}, Scheme::kFactor);
  EXPECT_FALSE(replanner.Better(*two, 2).has_value());
  const auto better = replanner.Better(*two, 4);
  ASSERT_TRUE(better.has_value());
  EXPECT_EQ(better->plan.routes[0].scheme, Scheme::kServer);
  EXPECT_THAT(better->why, HasSubstr("bytes a node and step with 4 workers"));
}

TEST(ReplannerTest, SmallGainIsNotWorthAChange) {
  // 46 rows are 4 % cheaper by factors than by servers, 47 rows 2 %.
  const auto better = [](int64_t rows) {
    return Replanner(PlanRules())
        .Better(*TestJob(2, 2, {FactorLayer("fc", 96, 96, false, rows)}), 2)
        .has_value();
  };
  EXPECT_TRUE(better(46));
  EXPECT_FALSE(better(47));
}

// 16 bits gain nothing any more, though float32 gains nothing either.
TEST(ReplannerTest, WiresBecomeWideAgain) {
  PlanRules rules = ByTime();
  rules.choose_wire = true;
  Replanner replanner(rules, absl::ZeroDuration());
  Job job = *SomeJob(2);
  const auto measure = [&](double rate) {
    for (const int worker : {0, 1}) {
      replanner.OnMeasured(worker, SomeMeasured(rate), job, kStart);
    }
  };
  measure(1e6);
  const auto narrow = replanner.Better(job, 2);
  ASSERT_TRUE(narrow.has_value());
  EXPECT_EQ(narrow->plan.routes[0].wire, WireType::kBfloat16);
  job.routes = narrow->plan.routes;
  EXPECT_FALSE(replanner.Better(job, 2).has_value());
  measure(1e12);
  const auto wide = replanner.Better(job, 2);
  ASSERT_TRUE(wide.has_value());
  for (const Route& route : wide->plan.routes) {
    EXPECT_EQ(route.wire, WireType::kFloat32);
  }
  job.routes = wide->plan.routes;
  EXPECT_FALSE(replanner.Better(job, 2).has_value());
}

TEST(ReplannerTest, FixedPlanNeedsNoMeasurements) {
  const auto better = [](PlanRules rules, JobOptions options, int workers) {
    Replanner replanner(RulesFor(options, rules));
    const JobPtr job = SomeJob(4, options);
    for (int i = 0; i < 4; ++i)
      replanner.OnMeasured(i, SomeMeasured(), *job, kStart);
    EXPECT_EQ(replanner.measures(options),
              replanner.Better(*job, 4).has_value());
    return replanner.Better(*job, workers).has_value();
  };
  EXPECT_TRUE(better(ByTime(), {}, 4));
  EXPECT_FALSE(better(ByTime(), {}, 1));
  PlanRules forced = ByTime();
  forced.forced = Scheme::kServer;
  EXPECT_FALSE(better(forced, {}, 4));
  JobOptions deterministic;
  deterministic.deterministic = true;
  EXPECT_FALSE(better(ByTime(), deterministic, 4));
  JobOptions solo;
  solo.rounds.quorum = Quorum::kSolo;
  EXPECT_FALSE(better(ByTime(), solo, 4));
}

TEST(ReplannerTest, ImpossibleMeasurementsAreRefused) {
  const JobPtr job = SomeJob(2);
  EXPECT_TRUE(Replanner::Check(SomeMeasured(), *job).ok());
  const auto refusal = [&](const std::function<void(Measured&)>& edit) {
    Measured measured = SomeMeasured();
    edit(measured);
    const absl::Status status = Replanner::Check(measured, *job);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](Measured& m) { m.times.pop_back(); }),
              HasSubstr("times has 1 layers, the model 2"));
  EXPECT_THAT(refusal([](Measured& m) { m.link->rate = 0; }),
              HasSubstr("rate is 0"));
  EXPECT_THAT(refusal([](Measured& m) {
                m.link->rate = std::numeric_limits<double>::infinity();
              }),
              HasSubstr("the rate of its host's link is inf, not from 1 to"));
  EXPECT_THAT(refusal([](Measured& m) { m.link->latency = -absl::Seconds(1); }),
              HasSubstr("latency is -1s"));
  EXPECT_THAT(
      refusal([](Measured& m) { m.times[0].forward = -absl::Seconds(1); }),
      HasSubstr("computes for -1s"));
  EXPECT_THAT(refusal([](Measured& m) { m.memory_rate = 0; }),
              HasSubstr("the rate of its host's memory is 0"));
  EXPECT_THAT(refusal([](Measured& m) { m.step_time = absl::ZeroDuration(); }),
              HasSubstr("an iteration takes 0"));
}

}  // namespace
}  // namespace nereus
