// The tuning of fusion, both sides: FusionTuning, the coordinator around it,
// and the workers' FusionSwitch.

#include "server/coordinator/fusion_tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "tests/server/coordinator_driver.h"
#include "worker/machine/caller.h"

namespace nereus {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Seconds of a step: least at 2^14 bytes.
double StepSeconds(int64_t bytes) {
  const double x = std::log2(static_cast<double>(bytes)) - 14;
  return 0.02 + 0.001 * x * x;
}

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

TEST(FusionTuningTest, TrialsFollowEachOtherWhenAllHaveAnswered) {
  FusionTuning tuning(/*on=*/true);
  auto set = tuning.OnEpoch({0, 3}, /*begun_step=*/-1);
  ASSERT_TRUE(set.has_value());
  EXPECT_EQ(set->trial, 0);
  EXPECT_EQ(set->bytes, FusionTuner::kBytesFirst);
  EXPECT_GT(set->from_step, 0);
  int64_t begun = 0;
  while (!tuning.done()) {
    EXPECT_EQ(set->bytes, tuning.bytes());
    EXPECT_GT(set->steps, 0);
    EXPECT_GT(set->from_step, begun);
    begun = set->from_step + 10;
    const double seconds = StepSeconds(set->bytes);
    EXPECT_EQ(tuning.OnTimed(0, {set->trial, begun, seconds * 0.5}),
              std::nullopt);
    set = tuning.OnTimed(3, {set->trial, begun + 1, seconds});
    ASSERT_TRUE(set.has_value());
  }
  EXPECT_EQ(set->steps, 0);
  EXPECT_EQ(set->bytes, tuning.tuner().best());
  EXPECT_LE(StepSeconds(set->bytes), 1.05 * StepSeconds(1 << 14));
  // The slowest counts.
  EXPECT_EQ(tuning.tuner().best_seconds(), StepSeconds(set->bytes));
}

// Workers that hear of it 0.1 s late still switch with the others.
TEST(FusionTuningTest, SwitchLiesAheadOfAllWorkers) {
  for (const double seconds : {0.0001, 0.01, 0.5}) {
    FusionTuning tuning(true);
    const auto first = tuning.OnEpoch({0}, -1);
    const auto second = tuning.OnTimed(0, {first->trial, 50, seconds});
    ASSERT_TRUE(second.has_value());
    const double ahead = static_cast<double>(second->from_step - 50) * seconds;
    EXPECT_TRUE(ahead >= 0.1 || second->from_step == 150) << seconds;
  }
}

TEST(FusionTuningTest, AnswersToOtherTrialsAndOfOtherWorkersAreIgnored) {
  FusionTuning tuning(true);
  const auto set = tuning.OnEpoch({0, 1}, -1);
  EXPECT_EQ(tuning.OnTimed(0, {set->trial + 1, 10, 0.1}), std::nullopt);
  EXPECT_EQ(tuning.OnTimed(7, {set->trial, 10, 0.1}), std::nullopt);
  EXPECT_EQ(tuning.OnTimed(0, {set->trial, 10, 0.1}), std::nullopt);
  EXPECT_EQ(tuning.OnTimed(0, {set->trial, 10, 0.1}), std::nullopt);  // Again.
  EXPECT_EQ(tuning.tuner().trials(), 0);
  EXPECT_NE(tuning.OnTimed(1, {set->trial, 10, 0.1}), std::nullopt);
  EXPECT_EQ(tuning.tuner().trials(), 1);
}

TEST(FusionTuningTest, EpochBeginsTheTrialAnew) {
  FusionTuning tuning(true);
  const auto set = tuning.OnEpoch({0, 1}, -1);
  tuning.OnTimed(0, {set->trial, 10, 0.1});
  const auto again = tuning.OnEpoch({1, 2}, 30);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->bytes, set->bytes);
  EXPECT_GT(again->from_step, 30);
  EXPECT_EQ(tuning.OnTimed(1, {again->trial, 40, 0.1}), std::nullopt);
  EXPECT_NE(tuning.OnTimed(2, {again->trial, 40, 0.1}), std::nullopt);
}

TEST(FusionTuningTest, SaysNothingIfFusionIsNotTuned) {
  FusionTuning tuning(/*on=*/false);
  EXPECT_EQ(tuning.OnEpoch({0}, -1), std::nullopt);
  EXPECT_EQ(tuning.OnTimed(0, {0, 10, 0.1}), std::nullopt);
  EXPECT_EQ(tuning.bytes(), std::nullopt);
  EXPECT_FALSE(tuning.done());
}

TEST(FusionTuningTest, RestartForgetsAllMeasurements) {
  FusionTuning tuning(/*on=*/true);
  auto set = tuning.OnEpoch({0, 1}, -1);
  tuning.OnTimed(0, {set->trial, 20, 0.1});
  set = tuning.Restart(1 << 20, 30);
  ASSERT_TRUE(set.has_value());
  EXPECT_EQ(set->bytes, 1 << 20);
  EXPECT_EQ(tuning.first(), 1 << 20);
  EXPECT_GT(set->from_step, 30);
  // Answers to the trial before.
  EXPECT_EQ(tuning.OnTimed(1, {set->trial - 1, 40, 0.1}), std::nullopt);
  EXPECT_EQ(tuning.OnTimed(1, {set->trial, 40, 0.1}), std::nullopt);
  EXPECT_EQ(tuning.tuner().trials(), 0);
  EXPECT_TRUE(tuning.OnTimed(0, {set->trial, 40, 0.1}).has_value());
  EXPECT_EQ(tuning.tuner().trials(), 1);
  EXPECT_EQ(FusionTuning(/*on=*/false).Restart(1 << 20, 30), std::nullopt);
}

TEST(FusionTuningTest, ImpossibleTimesAreRefused) {
  EXPECT_TRUE(FusionTuning::Check({0, 1, 0.5}).ok());
  for (const FusionTimed& timed :
       {FusionTimed{0, 1, 0.0}, FusionTimed{0, 1, -1.0},
        FusionTimed{0, 1, std::nan("")}, FusionTimed{0, 1, HUGE_VAL},
        FusionTimed{0, -1, 0.5}, FusionTimed{0, kStepMax + 1, 0.5}}) {
    EXPECT_EQ(FusionTuning::Check(timed).code(),
              absl::StatusCode::kInvalidArgument)
        << timed.step_seconds << ", " << timed.begun_step;
  }
}

// The coordinator.

CoordinatorOptions TunedOptions() {
  CoordinatorOptions options = OptionsOf(2, 1, /*max_workers=*/3);
  options.spec.options.fusion_bytes = FusionTuner::kBytesFirst;
  options.spec.options.tune_fusion = true;
  return options;
}

TEST(CoordinatorFusionTest, WorkersAreToldUntilTheBestIsFound) {
  CoordinatorDriver driver(TunedOptions());
  Reaction reaction = driver.Gather();
  EXPECT_THAT(HearersOf<SetFusion>(reaction), ElementsAre(kWorker0, kWorker1));
  SetFusion set = Heard<SetFusion>(reaction, kWorker0);
  for (int trial = 0; set.steps > 0; ++trial) {
    ASSERT_LT(trial, FusionTuner::kTrialsMax);
    const FusionTimed timed{set.trial, set.from_step + 12,
                            StepSeconds(set.bytes)};
    EXPECT_THAT(HearersOf<SetFusion>(driver.Say(kWorker1, timed)), IsEmpty());
    reaction = driver.Say(kWorker0, timed);
    EXPECT_THAT(HearersOf<SetFusion>(reaction),
                ElementsAre(kWorker0, kWorker1));
    set = Heard<SetFusion>(reaction, kWorker1);
  }
  ASSERT_EQ(reaction.announced.size(), 1u);
  EXPECT_THAT(reaction.announced[0],
              HasSubstr(absl::StrCat("fusion of ", set.bytes, " bytes")));
  EXPECT_LE(StepSeconds(set.bytes), 1.05 * StepSeconds(1 << 14));
  // Workers that join later begin with this threshold.
  reaction = driver.Say(kWorker2, WorkerRequest("c"));
  const Reaction changed = driver.ReportRest(1);
  EXPECT_EQ(Heard<EpochStart>(changed, kWorker2).job->options.fusion_bytes,
            set.bytes);
}

TEST(CoordinatorFusionTest, TrialsRestartFromAPredictedBetterThreshold) {
  CoordinatorOptions options = TunedOptions();
  options.spec.rules.cost = CostKind::kTime;
  options.spec.rules.forced = Scheme::kRing;
  CoordinatorDriver driver(options);
  const SetFusion first = Heard<SetFusion>(driver.Gather(), kWorker0);
  EXPECT_EQ(first.bytes, FusionTuner::kBytesFirst);
  EXPECT_TRUE(driver.job().options.measure);
  // The second layer takes 17 s to send, and the first one 20 to compute.
  Measured measured;
  measured.times = {{absl::Seconds(1), absl::Seconds(20)},
                    {absl::Seconds(1), absl::Seconds(1)}};
  measured.step_time = absl::Seconds(45);
  measured.link = {1000, absl::Milliseconds(1), absl::ZeroDuration()};
  driver.Say(kWorker0, measured);
  const Reaction reaction = driver.Say(kWorker1, measured);
  const SetFusion anew = Heard<SetFusion>(reaction, kWorker0);
  EXPECT_EQ(Heard<SetFusion>(reaction, kWorker1), anew);
  EXPECT_GT(anew.trial, first.trial);
  EXPECT_LT(anew.bytes, first.bytes);
  EXPECT_THAT(reaction.announced, Contains(HasSubstr("tunes fusion from")));
  // Equal figures, and a trial goes on.
  driver.Say(kWorker0, measured);
  EXPECT_THAT(HearersOf<SetFusion>(driver.Say(kWorker1, measured)), IsEmpty());
}

// The message to the worker, or its answer, may be lost with its session.
TEST(CoordinatorFusionTest, WorkerThatResumesIsToldAgain) {
  CoordinatorDriver driver(TunedOptions());
  const SetFusion set = Heard<SetFusion>(driver.Gather(), kWorker0);
  driver.Break(kWorker0);
  EXPECT_EQ(Heard<SetFusion>(driver.ResumeIn(77, kWorker0), 77), set);
}

TEST(CoordinatorFusionTest, WrongAnswerCostsTheMembership) {
  RunningDriver driver(TunedOptions());
  const Reaction reaction = driver.Say(kWorker1, FusionTimed{0, 5, -2.0});
  EXPECT_THAT(RefusalIn(reaction, kWorker1).message(),
              HasSubstr("-2 seconds a step"));
}

TEST(CoordinatorFusionTest, WithoutTuningNoWorkerHearsOfFusion) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  EXPECT_THAT(HearersOf<SetFusion>(driver.Gather()), IsEmpty());
  EXPECT_THAT(
      HearersOf<SetFusion>(driver.Say(kWorker0, FusionTimed{0, 5, 1.0})),
      IsEmpty());
}

// The workers.

TEST(FusionSwitchTest, SwitchesInTheGivenStep) {
  FusionSwitch fusion;
  EXPECT_EQ(fusion.OnBegin(1), std::nullopt);
  fusion.OnSet({0, 4096, /*from_step=*/3, 0});
  EXPECT_EQ(fusion.OnBegin(2), std::nullopt);
  EXPECT_EQ(fusion.OnBegin(3), 4096);
  EXPECT_EQ(fusion.OnBegin(4), std::nullopt);  // Once.
  EXPECT_EQ(fusion.OnBegin(4, At(1)), std::nullopt);
}

TEST(FusionSwitchTest, LateMessageCountsAtOnce) {
  FusionSwitch fusion;
  fusion.OnSet({0, 4096, 3, 0});
  EXPECT_EQ(fusion.OnBegin(9), 4096);
}

TEST(FusionSwitchTest, MeasuresAfterTheFirstSteps) {
  FusionSwitch fusion;
  fusion.OnSet({7, 4096, 10, /*steps=*/5});
  std::optional<FusionTimed> timed;
  int64_t answered_in = 0;
  for (int64_t step = 8; step < 30; ++step) {
    fusion.OnBegin(step);
    // Slow at first, then a quarter of a second each.
    const double now = step < 12 ? static_cast<double>(step) * 10
                                 : 120 + 0.25 * static_cast<double>(step - 12);
    const auto answer = fusion.OnBegin(step, At(now));
    if (!answer.has_value()) continue;
    EXPECT_FALSE(timed.has_value()) << "it answers once";
    timed = answer;
    answered_in = step;
  }
  ASSERT_TRUE(timed.has_value());
  EXPECT_EQ(timed->trial, 7);
  EXPECT_EQ(timed->begun_step, answered_in);
  EXPECT_EQ(answered_in, 17);
  EXPECT_DOUBLE_EQ(timed->step_seconds, 0.25);
}

TEST(FusionSwitchTest, RepeatedMessageIsAnsweredAgain) {
  FusionSwitch fusion;
  const SetFusion set = {3, 4096, 0, 2};
  fusion.OnSet(set);
  std::optional<FusionTimed> first;
  int64_t step = 0;
  for (; !first.has_value(); ++step) {
    fusion.OnBegin(step);
    first = fusion.OnBegin(step, At(static_cast<double>(step)));
  }
  EXPECT_EQ(fusion.OnBegin(step, At(50)), std::nullopt);
  fusion.OnSet(set);
  const auto again = fusion.OnBegin(step + 1, At(51));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->step_seconds, first->step_seconds);
  EXPECT_EQ(fusion.OnBegin(step + 2, At(52)), std::nullopt);
}

TEST(FusionSwitchTest, NewMessageEndsTheTrial) {
  FusionSwitch fusion;
  fusion.OnSet({0, 4096, 0, 5});
  for (int64_t step = 0; step < 5; ++step) {
    fusion.OnBegin(step);
    EXPECT_EQ(fusion.OnBegin(step, At(static_cast<double>(step))),
              std::nullopt);
  }
  fusion.OnSet({1, 8192, 6, 0});
  EXPECT_EQ(fusion.OnBegin(6), 8192);
  for (int64_t step = 6; step < 30; ++step) {
    EXPECT_EQ(fusion.OnBegin(step, At(static_cast<double>(step))),
              std::nullopt);
  }
}

}  // namespace
}  // namespace nereus
