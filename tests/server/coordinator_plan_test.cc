// Tests of a coordinator that leads its members to another plan.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Measurements of a worker. The first plan sends layer fc by factors; their
// products take so long that any other scheme is better.
Measured SlowProducts() {
  Measured measured;
  measured.times = {{absl::Seconds(1), absl::Seconds(1)},
                    {absl::Seconds(10), absl::Seconds(20)}};
  measured.step_time = absl::Seconds(45);
  measured.link = {1e6, absl::Milliseconds(1), absl::Milliseconds(1)};
  return measured;
}

// A job of two workers and two shards. Layer 1, fc, may go by factors.
class SwitchTest : public testing::Test {
 protected:
  explicit SwitchTest(CoordinatorOptions options)
      : driver_(std::move(options)) {}

  // All members but `silent` say that they are ready to switch. Returns the
  // last reaction.
  Reaction Settle(SessionId silent = -1) {
    Reaction last;
    for (const SessionId session : all_) {
      if (session == silent) continue;
      last = driver_.Say(session, ReadyToSwitch{driver_.job().epoch});
    }
    return last;
  }

  // All members report that they are ready to switch. Returns the last
  // reaction.
  Reaction ReportSettled(int64_t round) {
    const bool by_factor = scheme() == Scheme::kFactor;
    Reaction last;
    for (const SessionId session : all_) {
      MachineReport report;
      report.ready_to_switch = true;
      if (session < kWorker0) {
        report.closed_rounds[static_cast<int>(session)] = round;
      } else {
        report.begun_step = round;
        if (by_factor) report.peer_layers = {{1, round, 2}};
      }
      last = driver_.Report(session, report);
    }
    return last;
  }

  Scheme scheme() const { return driver_.job().routes[1].scheme; }

  const std::vector<SessionId> all_ = {kShard0, kShard1, kWorker0, kWorker1};
  CoordinatorDriver driver_;
};

// A job with a plan by time.
class CoordinatorPlanTest : public SwitchTest {
 protected:
  explicit CoordinatorPlanTest(CoordinatorOptions options = Options())
      : SwitchTest(std::move(options)) {
    driver_.Gather();
  }

  static CoordinatorOptions Options() {
    CoordinatorOptions options = OptionsOf(2, 2, /*max_workers=*/3);
    options.spec.rules.cost = CostKind::kTime;
    return options;
  }

  // Both workers report slow products. Returns the reaction to the second
  // report.
  Reaction Measure() {
    driver_.Say(kWorker0, SlowProducts());
    return driver_.Say(kWorker1, SlowProducts());
  }
};

TEST_F(CoordinatorPlanTest, GoesFromMeasuringToAnotherPlan) {
  EXPECT_TRUE(driver_.job().options.measure);
  EXPECT_EQ(scheme(), Scheme::kFactor);
  EXPECT_THAT(driver_.Say(kWorker0, SlowProducts()).sent, IsEmpty());
  const Reaction measured = driver_.Say(kWorker1, SlowProducts());
  EXPECT_THAT(measured.announced,
              Contains(HasSubstr("links of 1e+06 bytes/s")));
  EXPECT_THAT(HearersOf<PrepareEpoch>(measured), SizeIs(4));

  const Reaction ends = driver_.ReportRest(/*begun_step=*/3);
  EXPECT_EQ(Heard<EpochStart>(ends, kWorker1).job->switch_round, 4);
  EXPECT_EQ(scheme(), Scheme::kFactor);

  EXPECT_THAT(HearersOf<PrepareEpoch>(Settle()), SizeIs(4));
  const Reaction changed = ReportSettled(4);
  EXPECT_NE(scheme(), Scheme::kFactor);
  EXPECT_EQ(driver_.job().history.base_round, 4);
  EXPECT_EQ(driver_.job().history.first_step, 5);
  EXPECT_THAT(changed.announced, Contains(HasSubstr("with a new plan")));
  const EpochStart start = Heard<EpochStart>(changed, kWorker0);
  EXPECT_THAT(start.explanations[1].reason, HasSubstr("s an iteration"));
  // State that a restarted coordinator finds.
  ASSERT_THAT(changed.saved, SizeIs(1));
  EXPECT_EQ(changed.saved[0].epoch.job->routes, driver_.job().routes);
  EXPECT_EQ(changed.saved[0].epoch.explanations[1].reason,
            start.explanations[1].reason);
}

// A job that tunes fusion too.
class CoordinatorTunedPlanTest : public CoordinatorPlanTest {
 protected:
  CoordinatorTunedPlanTest() : CoordinatorPlanTest(Tuned()) {}

  static CoordinatorOptions Tuned() {
    CoordinatorOptions options = Options();
    options.spec.options.fusion_bytes = 1 << 16;
    options.spec.options.tune_fusion = true;
    return options;
  }
};

TEST_F(CoordinatorTunedPlanTest, FusionIsTunedAnewForAnotherPlan) {
  Measure();
  const Reaction ends = driver_.ReportRest(3);
  const SetFusion before = Heard<SetFusion>(ends, kWorker0);
  EXPECT_GT(before.steps, 0);
  Settle();
  const Reaction changed = ReportSettled(4);
  ASSERT_NE(scheme(), Scheme::kFactor);
  const SetFusion anew = Heard<SetFusion>(changed, kWorker0);
  EXPECT_GT(anew.trial, before.trial);
  EXPECT_GT(anew.from_step, 4);
  EXPECT_EQ(Heard<SetFusion>(changed, kWorker1), anew);
  // Answers to trials of the old plan do not count.
  for (const SessionId session : {kWorker0, kWorker1}) {
    EXPECT_THAT(HearersOf<SetFusion>(
                    driver_.Say(session, FusionTimed{before.trial, 20, 0.1})),
                IsEmpty());
  }
}

TEST_F(CoordinatorPlanTest, PlanChangesOnceTheLastMemberIsReadyToSwitch) {
  Measure();
  driver_.ReportRest(3);
  EXPECT_THAT(HearersOf<PrepareEpoch>(Settle(/*silent=*/kShard1)), IsEmpty());
  // A ReadyToSwitch of another epoch does not count.
  EXPECT_THAT(driver_.Say(kShard1, ReadyToSwitch{1}).sent, IsEmpty());
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver_.Say(kShard1, ReadyToSwitch{2})),
              SizeIs(4));
}

TEST_F(CoordinatorPlanTest, NoChangeOfPlansBeginsWhileALeaverIsAMember) {
  driver_.Say(kWorker1, Leave{3});
  const Reaction measured = Measure();
  EXPECT_THAT(HearersOf<PrepareEpoch>(measured), IsEmpty());
}

// Measurements that bring one better plan after the other (seed 15167).
class CoordinatorSavedPlanTest : public CoordinatorPlanTest {
 protected:
  CoordinatorSavedPlanTest() : CoordinatorPlanTest(Saved()) {}

  static CoordinatorOptions Saved() {
    CoordinatorOptions options = Options();
    options.has_checkpoints = true;
    return options;
  }
};

TEST_F(CoordinatorSavedPlanTest, WantedCheckpointComesBeforeABetterPlan) {
  driver_.RequestCheckpoint();
  driver_.ReportRest(3);
  ASSERT_EQ(driver_.job().checkpoint_round, 4);
  EXPECT_THAT(HearersOf<PrepareEpoch>(Measure()), IsEmpty());
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver_.MakeCheckpoint(4)), SizeIs(4));
}

// Backups lack the values that workers hand over until they have been sent
// them.
TEST(CoordinatorPlanWithBackupsTest, ChangeOfPlansNeedsACheckpoint) {
  for (const bool has_checkpoints : {false, true}) {
    CoordinatorOptions options = OptionsOf(2, 2);
    options.spec.rules.cost = CostKind::kTime;
    options.spec.options.backup = true;
    options.has_checkpoints = has_checkpoints;
    RunningDriver driver(options);
    driver.Say(kWorker0, SlowProducts());
    const Reaction measured = driver.Say(kWorker1, SlowProducts());
    EXPECT_EQ(HearersOf<PrepareEpoch>(measured).empty(), !has_checkpoints);
  }
}

TEST_F(CoordinatorPlanTest, ImpossibleMeasurementsCostTheSenderItsMembership) {
  Measured wrong = SlowProducts();
  wrong.link->rate = -1;
  const Reaction reaction = driver_.Say(kWorker1, wrong);
  EXPECT_THAT(std::string(RefusalIn(reaction, kWorker1).message()),
              HasSubstr("rate is -1"));
  EXPECT_EQ(driver_.state(), JobState::kRunning);
}

TEST_F(CoordinatorPlanTest, MeasurementsOfAShardAreIgnored) {
  driver_.Say(kShard0, SlowProducts());
  EXPECT_THAT(driver_.Say(kWorker0, SlowProducts()).sent, IsEmpty());
}

// Workers that come and go would otherwise count, and take memory, for ever.
TEST_F(CoordinatorPlanTest, AWorkerThatHasLeftDoesNotCountInTimesOfLayers) {
  const auto say = [&](SessionId session, absl::Duration time) {
    Measured measured = SlowProducts();
    measured.times[1] = measured.times[0];  // No plan is better.
    measured.sync_times = {time, time};
    driver_.Say(session, measured);
  };
  const auto sync_time = [&] {
    return driver_.Status().plan.layers[0].sync_time;
  };
  EXPECT_EQ(sync_time(), std::nullopt);
  say(kWorker0, absl::Milliseconds(9));
  EXPECT_EQ(sync_time(), absl::Milliseconds(9));
  say(kWorker1, absl::Milliseconds(1));
  EXPECT_EQ(sync_time(), absl::Milliseconds(1));
  driver_.Say(kWorker1, Leave{3, 1, /*early=*/true});
  driver_.ReportRest(/*begun_step=*/3);
  driver_.Beat(kWorker0, 4, 3);
  EXPECT_THAT(driver_.Status().members, SizeIs(3));
  EXPECT_EQ(sync_time(), absl::Milliseconds(9));
}

// ---- Turns at devices that jobs share.

// A job of two workers, one of which shares its device.
class CoordinatorTurnTest : public testing::Test {
 protected:
  CoordinatorTurnTest() : driver_(OptionsOf(2, 1)) {
    driver_.Say(kShard0, ShardRequest(0));
    JoinRequest shares = WorkerRequest("w0");
    shares.turn_base = 12.5;
    driver_.Say(kWorker0, shares);
    begun_ = driver_.Say(kWorker1, WorkerRequest("w1"));
  }

  // A worker has measured that a step takes so long.
  Reaction Measure(SessionId worker, absl::Duration computing) {
    Measured measured;
    measured.times = {{computing / 4, computing / 4},
                      {computing / 4, computing / 4}};
    measured.step_time = 2 * computing;
    return driver_.Say(worker, measured);
  }

  CoordinatorDriver driver_;
  Reaction begun_;  // Reaction to the last worker.
};

TEST_F(CoordinatorTurnTest, AllWorkersHearTheRuleWithTheEpoch) {
  EXPECT_TRUE(driver_.job().options.measure);
  for (const SessionId worker : {kWorker0, kWorker1}) {
    EXPECT_EQ(Heard<TurnRule>(begun_, worker), (TurnRule{12.5}));
  }
  EXPECT_EQ(HearersOf<TurnRule>(begun_).size(), 2);
}

TEST_F(CoordinatorTurnTest, KeysGoOnWhenTheTimeOfATurnChanges) {
  EXPECT_THAT(Measure(kWorker0, absl::Seconds(1)).sent, IsEmpty());
  const Reaction known = Measure(kWorker1, absl::Seconds(2));
  const TurnRule first = Heard<TurnRule>(known, kWorker0);
  EXPECT_EQ(first.cost, absl::Seconds(2));
  EXPECT_EQ(first.KeyOf(1, 1), 12.5);
  ASSERT_EQ(known.saved.size(), 1);
  EXPECT_EQ(known.saved[0].epoch.turns, first);
  driver_.Beat(kWorker0, 9, 8);
  // Small changes are noise, and no worker hears of them.
  EXPECT_THAT(Measure(kWorker0, absl::Seconds(2.3)).sent, IsEmpty());
  const Reaction changed = Measure(kWorker0, absl::Seconds(4));
  const TurnRule second = Heard<TurnRule>(changed, kWorker1);
  EXPECT_EQ(second.cost, absl::Seconds(4));
  EXPECT_DOUBLE_EQ(second.KeyOf(10, 1), first.KeyOf(10, 1));
  EXPECT_DOUBLE_EQ(second.KeyOf(11, 2), first.KeyOf(10, 2) + 2);
}

TEST_F(CoordinatorTurnTest, AWorkerThatComesBackHearsTheRule) {
  const Reaction back = driver_.ResumeIn(kNew, kWorker1);
  EXPECT_EQ(Heard<TurnRule>(back, kNew), (TurnRule{12.5}));
}

TEST_F(CoordinatorPlanTest, AJobThatSharesNothingHearsNoRule) {
  EXPECT_THAT(HearersOf<TurnRule>(Measure()), IsEmpty());
}

// ---- Rows that workers learn, and factors that they lose.

JoinRequest LearningRequest(const std::string& name) {
  JoinRequest request = WorkerRequest(name);
  request.layers[1].rows = kRowsNotKnown;
  return request;
}

// A job with a plan by bytes, whose workers do not know their rows.
class CoordinatorFactorTest : public SwitchTest {
 protected:
  explicit CoordinatorFactorTest(CoordinatorOptions options = Options())
      : SwitchTest(std::move(options)) {
    driver_.Say(kShard0, ShardRequest(0));
    driver_.Say(kShard1, ShardRequest(1));
    driver_.Say(kWorker0, LearningRequest("w0"));
    driver_.Say(kWorker1, LearningRequest("w1"));
  }

  static CoordinatorOptions Options() { return OptionsOf(2, 2, 3); }

  // Both workers say their rows, and the job switches after step 0.
  Reaction Learn() {
    driver_.Say(kWorker0, FactorRows{{0, 2}});
    driver_.Say(kWorker1, FactorRows{{0, 3}});
    EXPECT_THAT(HearersOf<PrepareEpoch>(Settle()), SizeIs(4));
    return ReportSettled(0);
  }

  int64_t rows() const { return driver_.job().layers[1].rows; }
  std::string reason() const {
    return driver_.coordinator().epochs().in_force().explanations[1].reason;
  }
};

TEST_F(CoordinatorFactorTest, SecondStepGoesByTheRowsOfTheFirst) {
  EXPECT_EQ(driver_.job().epoch, kFirstEpoch);
  EXPECT_EQ(driver_.job().switch_round, 0);
  EXPECT_EQ(scheme(), Scheme::kServer);
  EXPECT_THAT(reason(), HasSubstr("its rows are not known yet"));
  const Reaction begins = Learn();
  EXPECT_EQ(driver_.job().epoch, kFirstEpoch + 1);
  EXPECT_EQ(scheme(), Scheme::kFactor);
  EXPECT_EQ(rows(), 3);
  EXPECT_EQ(driver_.job().history.first_step, 1);
  EXPECT_FALSE(driver_.job().switches());
  EXPECT_THAT(begins.announced,
              Contains(HasSubstr("workers have said the rows of 1 layer; 1 of "
                                 "2 layers by factor")));
  EXPECT_EQ(Heard<EpochStart>(begins, kWorker1).job->layers[1].rows, 3);
  ASSERT_THAT(begins.saved, SizeIs(1));
  EXPECT_EQ(begins.saved[0].epoch.job->layers[1].rows, 3);
  // More rows are no news.
  EXPECT_THAT(
      HearersOf<PrepareEpoch>(driver_.Say(kWorker0, FactorRows{{0, 9}})),
      IsEmpty());
}

TEST_F(CoordinatorFactorTest, NothingWaitsForRows) {
  driver_.Say(kWorker0, FactorRows{{0, 2}});
  EXPECT_THAT(HearersOf<PrepareEpoch>(Settle()), SizeIs(4));
  ReportSettled(0);
  EXPECT_EQ(scheme(), Scheme::kServer);
  EXPECT_FALSE(driver_.job().switches());
  // Rows that come later begin an ordinary switch.
  const Reaction late = driver_.Say(kWorker1, FactorRows{{0, 2}});
  EXPECT_THAT(HearersOf<PrepareEpoch>(late), SizeIs(4));
  driver_.ReportRest(/*begun_step=*/4);
  EXPECT_EQ(driver_.job().switch_round, 5);
  Settle();
  ReportSettled(5);
  EXPECT_EQ(scheme(), Scheme::kFactor);
  EXPECT_EQ(rows(), 2);
}

TEST_F(CoordinatorFactorTest, LostFactorsMakeTheLayerDenseForTheRestOfTheJob) {
  Learn();
  const Reaction lost = driver_.Say(kWorker1, FactorRows{{0, kFactorsLost}});
  EXPECT_THAT(lost.announced,
              Contains("worker w1 says that the gradient of layer fc is no "
                       "product of factors: it goes dense from now on"));
  EXPECT_THAT(HearersOf<PrepareEpoch>(lost), SizeIs(4));
  // A coordinator that is restarted now still knows it.
  ASSERT_THAT(lost.saved, SizeIs(1));
  EXPECT_EQ(lost.saved[0].lost_factors,
            (FactorReports::Lost{{1, "worker w1"}}));
  driver_.ReportRest(/*begun_step=*/6);
  EXPECT_EQ(scheme(), Scheme::kFactor);
  EXPECT_EQ(driver_.job().switch_round, 7);
  Settle();
  ReportSettled(7);
  EXPECT_EQ(scheme(), Scheme::kServer);
  EXPECT_EQ(rows(), kFactorsLost);
  EXPECT_THAT(reason(), HasSubstr("worker w1 says that its gradient is no "
                                  "product of factors"));
  // Not even the worker itself can take it back.
  EXPECT_THAT(
      HearersOf<PrepareEpoch>(driver_.Say(kWorker1, FactorRows{{0, 2}})),
      IsEmpty());
  // A worker that does not know it may join.
  const Reaction joins = driver_.Say(kWorker2, LearningRequest("w2"));
  EXPECT_TRUE(RefusalIn(joins, kWorker2).ok()) << RefusalIn(joins, kWorker2);
}

TEST_F(CoordinatorFactorTest,
       RestartedCoordinatorRemembersALossAndAsksForRows) {
  driver_.Say(kWorker0, FactorRows{{0, 2}});
  const Reaction lost = driver_.Say(kWorker1, FactorRows{{0, kFactorsLost}});
  ASSERT_THAT(lost.saved, SizeIs(1));
  driver_.Restart(lost.saved[0]);
  driver_.ResumeAll(all_);
  EXPECT_TRUE(driver_.coordinator().epochs().factors().lost().contains(1));
  driver_.ReportRest(/*begun_step=*/0);
  // The interrupted first switch is tried again.
  EXPECT_EQ(driver_.job().switch_round, 1);
}

TEST_F(CoordinatorFactorTest, ReportThatDoesNotFitTheModelDropsItsSender) {
  const Reaction bad = driver_.Say(kWorker1, FactorRows{{4, 0}});
  EXPECT_THAT(std::string(RefusalIn(bad, kWorker1).message()),
              HasSubstr("layer scale has 4 rows of factors"));
}

TEST_F(CoordinatorFactorTest, ReportOfAProcessThatWaitsIsIgnored) {
  driver_.Say(kWorker2, LearningRequest("w2"));
  driver_.Say(kWorker2, FactorRows{{0, kFactorsLost}});
  EXPECT_THAT(driver_.coordinator().epochs().factors().lost(), IsEmpty());
}

// ---- Jobs with other rules.

class DeterministicFactorTest : public CoordinatorFactorTest {
 protected:
  DeterministicFactorTest() : CoordinatorFactorTest(Deterministic()) {}
  static CoordinatorOptions Deterministic() {
    CoordinatorOptions options = Options();
    options.spec.options.deterministic = true;
    return options;
  }
};

TEST_F(DeterministicFactorTest, RowsCountInTheFirstSwitch) {
  Learn();
  EXPECT_EQ(scheme(), Scheme::kFactor);
  // Lost factors change the plan here, too.
  EXPECT_THAT(HearersOf<PrepareEpoch>(
                  driver_.Say(kWorker1, FactorRows{{0, kFactorsLost}})),
              SizeIs(4));
}

TEST_F(DeterministicFactorTest, LaterRowsDoNotCount) {
  Settle();
  ReportSettled(0);
  driver_.Say(kWorker0, FactorRows{{0, 2}});
  EXPECT_THAT(
      HearersOf<PrepareEpoch>(driver_.Say(kWorker1, FactorRows{{0, 2}})),
      IsEmpty());
}

class DenseJobTest : public CoordinatorFactorTest {
 protected:
  DenseJobTest() : CoordinatorFactorTest(ByServers()) {}
  static CoordinatorOptions ByServers() {
    CoordinatorOptions options = Options();
    options.spec.rules.forced = Scheme::kServer;
    return options;
  }
};

TEST_F(DenseJobTest, JobThatSendsNoFactorsDoesNotSwitchForThem) {
  EXPECT_FALSE(driver_.job().switches());
  driver_.Say(kWorker0, FactorRows{{0, 2}});
  EXPECT_THAT(
      HearersOf<PrepareEpoch>(driver_.Say(kWorker1, FactorRows{{0, 2}})),
      IsEmpty());
  EXPECT_THAT(HearersOf<PrepareEpoch>(
                  driver_.Say(kWorker1, FactorRows{{0, kFactorsLost}})),
              IsEmpty());
}

// With backups and without checkpoints.
class UnsafeJobTest : public CoordinatorFactorTest {
 protected:
  UnsafeJobTest() : CoordinatorFactorTest(WithBackups()) {}
  static CoordinatorOptions WithBackups() {
    CoordinatorOptions options = Options();
    options.spec.options.backup = true;
    return options;
  }
};

TEST_F(UnsafeJobTest, FirstSwitchIsAllowedAndALaterOneIsNot) {
  Learn();
  EXPECT_EQ(scheme(), Scheme::kFactor);
  const Reaction lost = driver_.Say(kWorker1, FactorRows{{0, kFactorsLost}});
  EXPECT_THAT(HearersOf<PrepareEpoch>(lost), IsEmpty());
  EXPECT_THAT(lost.announced,
              Contains(HasSubstr("workers send each other dense gradients")));
}

}  // namespace
}  // namespace nereus
