// A coordinator whose workers do not know the rows of their factors when they
// join, and may lose the factors later.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

JoinRequest LearningRequest(const std::string& name) {
  JoinRequest request = WorkerRequest(name);
  request.layers[1].rows = kRowsNotKnown;
  return request;
}

// Two workers and two shards, by bytes. Layer 1, fc, may go by factors.
class CoordinatorFactorTest : public testing::Test {
 protected:
  explicit CoordinatorFactorTest(CoordinatorOptions options = Options())
      : driver_(std::move(options)) {
    driver_.Say(kShard0, ShardRequest(0));
    driver_.Say(kShard1, ShardRequest(1));
    driver_.Say(kWorker0, LearningRequest("w0"));
    driver_.Say(kWorker1, LearningRequest("w1"));
  }

  static CoordinatorOptions Options() { return OptionsOf(2, 2, 3); }

  // All members are ready to switch. Returns the last reaction.
  Reaction Settle() {
    Reaction last;
    for (const SessionId session : {kShard0, kShard1, kWorker0, kWorker1}) {
      last = driver_.Say(session, ReadyToSwitch{driver_.job().epoch});
    }
    return last;
  }

  // All members report that they are ready to switch.
  Reaction ReportSettled(int64_t round) {
    const bool by_factor = scheme() == Scheme::kFactor;
    Reaction last;
    for (const SessionId session : {kShard0, kShard1, kWorker0, kWorker1}) {
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

  // Both workers say their rows, and the job switches after step 0.
  Reaction Learn() {
    driver_.Say(kWorker0, FactorRows{{0, 2}});
    driver_.Say(kWorker1, FactorRows{{0, 3}});
    EXPECT_THAT(HearersOf<PrepareEpoch>(Settle()), SizeIs(4));
    return ReportSettled(0);
  }

  Scheme scheme() const { return driver_.job().routes[1].scheme; }
  int64_t rows() const { return driver_.job().layers[1].rows; }
  std::string reason() const {
    return driver_.coordinator().epochs().in_force().explanations[1].reason;
  }

  CoordinatorDriver driver_;
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

TEST_F(CoordinatorFactorTest, LossBeforeTheFirstSwitchBecomesPartOfIt) {
  driver_.Say(kWorker0, FactorRows{{0, 2}});
  driver_.Say(kWorker1, FactorRows{{0, kFactorsLost}});
  Settle();
  ReportSettled(0);
  EXPECT_EQ(driver_.job().epoch, kFirstEpoch + 1);
  EXPECT_EQ(rows(), kFactorsLost);
}

TEST_F(CoordinatorFactorTest,
       RestartedCoordinatorRemembersALossAndAsksForRows) {
  driver_.Say(kWorker0, FactorRows{{0, 2}});
  const Reaction lost = driver_.Say(kWorker1, FactorRows{{0, kFactorsLost}});
  ASSERT_THAT(lost.saved, SizeIs(1));
  driver_.Restart(lost.saved[0]);
  driver_.ResumeIn(20, kShard0);
  driver_.ResumeIn(21, kShard1);
  driver_.ResumeIn(22, kWorker0);
  driver_.ResumeIn(23, kWorker1);
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
