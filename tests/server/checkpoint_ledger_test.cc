#include "server/coordinator/checkpoint_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

// Epoch 5: two workers, and a layer on each of two shards.
JobPtr SomeJob(int shards = 2) {
  return TestJob(2, shards, {VectorLayer("a", 4), VectorLayer("b", 4)});
}

CheckpointPart PartOf(int64_t round, uint64_t epoch, int shard) {
  CheckpointPart part;
  part.epoch = epoch;
  part.shard = shard;
  part.round = round;
  part.file = absl::StrCat("file-", shard, "-", epoch);
  part.bytes = 10 + shard;
  part.crc = static_cast<uint32_t>(shard);
  return part;
}

// Both parts, in the job's epoch.
std::optional<CheckpointRecord> Both(CheckpointLedger& ledger, const Job& job,
                                     int64_t round) {
  EXPECT_FALSE(ledger.OnPart(job, PartOf(round, job.epoch, 1)).has_value());
  return ledger.OnPart(job, PartOf(round, job.epoch, 0));
}

int64_t ContributionsOf(CheckpointLedger& ledger, const Job& job,
                        int64_t round) {
  const auto record = Both(ledger, job, round);
  EXPECT_TRUE(record.has_value()) << "round " << round;
  return record.has_value() ? record->contributions : -1;
}

// Ledger of a job in its first epoch.
struct CheckpointLedgerTest : testing::Test {
  CheckpointLedgerTest() { ledger.OnEpoch(*job, /*restarted=*/false); }

  const JobPtr job = SomeJob();
  CheckpointLedger ledger;
};

// The choice of blocks has a shard to itself, and is not saved.
TEST(EmptyCheckpointLedgerTest, ShardWithoutSavedChunksIsNotAwaited) {
  JobOptions options;
  options.sparsity.share = 0.5;
  const JobPtr job =
      TestJob(2, 2, {FactorLayer("fc", 40, 40, false, 2)}, options);
  ASSERT_EQ(job->placement.layer_chunks(1)[0].shard, 0);
  CheckpointLedger ledger;
  ledger.OnEpoch(*job, /*restarted=*/false);
  EXPECT_TRUE(ledger.OnPart(*job, PartOf(3, job->epoch, 1)).has_value());
}

TEST_F(CheckpointLedgerTest, CheckpointIsCompleteWithAllItsParts) {
  const auto record = Both(ledger, *job, 3);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->round, 3);
  EXPECT_EQ(record->contributions, 4 * 2);
  // Files are in the order of the shards.
  ASSERT_THAT(record->files, SizeIs(2));
  EXPECT_EQ(record->files[0].name, "file-0-1");
  EXPECT_EQ(record->files[0].bytes, 10);
  EXPECT_EQ(record->files[1].name, "file-1-1");
  EXPECT_EQ(record->files[1].crc, 1u);
  EXPECT_EQ(record->bytes(), 21);
  // A checkpoint is complete only with its manifest.
  EXPECT_FALSE(ledger.newest().has_value());
  ledger.OnComplete(*record);
  EXPECT_EQ(ledger.newest()->round, 3);
}

TEST_F(CheckpointLedgerTest, RoundsAreCollectedSideBySide) {
  EXPECT_FALSE(ledger.OnPart(*job, PartOf(3, 1, 0)).has_value());
  EXPECT_FALSE(ledger.OnPart(*job, PartOf(4, 1, 0)).has_value());
  // Said again in a new session.
  EXPECT_FALSE(ledger.OnPart(*job, PartOf(4, 1, 0)).has_value());
  EXPECT_TRUE(ledger.OnPart(*job, PartOf(4, 1, 1)).has_value());
  EXPECT_TRUE(ledger.OnPart(*job, PartOf(3, 1, 1)).has_value());
}

TEST_F(CheckpointLedgerTest, NewestCheckpointDoesNotGoBack) {
  const auto older = Both(ledger, *job, 3);
  const auto newer = Both(ledger, *job, 4);
  EXPECT_FALSE(ledger.OnPart(*job, PartOf(2, 1, 0)).has_value());
  ledger.OnComplete(*newer);
  ledger.OnComplete(*older);
  EXPECT_EQ(ledger.newest()->round, 4);
  // Parts of older rounds are of no use.
  EXPECT_FALSE(ledger.OnPart(*job, PartOf(2, 1, 1)).has_value());
  EXPECT_FALSE(Both(ledger, *job, 4).has_value());
  EXPECT_TRUE(Both(ledger, *job, 5).has_value());
}

// nereusctl would report a checkpoint that is complete as failed.
TEST_F(CheckpointLedgerTest, FailureEndsWithALaterCheckpoint) {
  ledger.OnFailure(3, "the disk is full", *job);
  EXPECT_EQ(ledger.failure(), "the disk is full");
  ASSERT_TRUE(Both(ledger, *job, 4).has_value());
  ledger.OnWritten(4, absl::OkStatus(), *job);
  EXPECT_EQ(ledger.failure(), "");
}

// nereusctl would report the older checkpoint as the one that it has requested.
TEST_F(CheckpointLedgerTest, FailureOutlivesTheCheckpointOfAnEarlierRound) {
  ASSERT_TRUE(Both(ledger, *job, 3).has_value());
  ledger.OnFailure(4, "the disk is full", *job);
  ledger.OnWritten(3, absl::OkStatus(), *job);
  EXPECT_EQ(ledger.newest()->round, 3);
  EXPECT_EQ(ledger.failure(), "the disk is full");
}

TEST(EmptyCheckpointLedgerTest, ShardsWithoutChunksHaveNoPart) {
  const JobPtr job = SomeJob(/*shards=*/3);
  std::vector<bool> holds(3);
  for (const Chunk& chunk : job->placement.chunks()) holds[chunk.shard] = true;
  ASSERT_EQ(holds, (std::vector<bool>{true, true, false}));
  CheckpointLedger ledger;
  ledger.OnEpoch(*job, false);
  const auto record = Both(ledger, *job, 3);
  ASSERT_TRUE(record.has_value());
  EXPECT_THAT(record->files, SizeIs(2));
}

TEST_F(CheckpointLedgerTest, ContributionsCountTheWorkersOfEachStep) {
  // Steps 0 to 9 have two workers, 10 to 14 three, and from 15 on one.
  const JobPtr second = EpochAfter(*job, [](Job& job) {
    job.workers = {{0, 0}, {1, 0}, {2, 10}};
    job.history.first_step = 10;
    job.history.contributions_before = 20;
  });
  ledger.OnEpoch(*second, false);
  const JobPtr third = EpochAfter(*second, [](Job& job) {
    job.workers = {{2, 10}};
    job.history.first_step = 15;
    job.history.contributions_before = 35;
  });
  ledger.OnEpoch(*third, false);
  EXPECT_EQ(ContributionsOf(ledger, *third, 0), 2);
  EXPECT_EQ(ContributionsOf(ledger, *third, 8), 18);
  EXPECT_EQ(ContributionsOf(ledger, *third, 9), 20);
  EXPECT_EQ(ContributionsOf(ledger, *third, 10), 23);
  EXPECT_EQ(ContributionsOf(ledger, *third, 14), 35);
  EXPECT_EQ(ContributionsOf(ledger, *third, 15), 36);
  EXPECT_EQ(ContributionsOf(ledger, *third, 20), 41);
}

// An epoch that ended before any worker began its first step.
TEST_F(CheckpointLedgerTest, LastEpochOfAStepCounts) {
  const auto next = [&](const Job& before, std::vector<EpochWorker> workers) {
    const JobPtr job = EpochAfter(before, [&](Job& made) {
      made.workers = std::move(workers);
      made.history.first_step = 10;
      made.history.contributions_before = 20;
    });
    ledger.OnEpoch(*job, false);
    return job;
  };
  const JobPtr second = next(*job, {{0, 0}, {1, 0}, {2, 10}});
  const JobPtr third = next(*second, {{0, 0}});
  EXPECT_EQ(ContributionsOf(ledger, *third, 10), 21);
}

TEST(EmptyCheckpointLedgerTest,
     StretchesBeforeTheNewestCheckpointAreForgotten) {
  JobPtr job = SomeJob();
  CheckpointLedger ledger;
  ledger.OnEpoch(*job, false);
  for (int64_t step = 10; step < 1000; step += 10) {
    job = EpochAfter(*job, [&](Job& made) {
      made.history.first_step = step;
      made.history.contributions_before = 2 * step;
    });
    ledger.OnEpoch(*job, false);
    const auto record = Both(ledger, *job, step + 5);
    ASSERT_TRUE(record.has_value());
    EXPECT_EQ(record->contributions, 2 * (step + 6));
    ledger.OnComplete(*record);
  }
  EXPECT_LE(ledger.state().stretches.size(), 3u);
}

TEST_F(CheckpointLedgerTest, EpochMayEndWhileACheckpointIsWritten) {
  EXPECT_FALSE(ledger.OnPart(*job, PartOf(3, 1, 0)).has_value());
  const JobPtr next = EpochAfter(*job, [](Job& made) {
    made.history.first_step = 6;
    made.history.contributions_before = 12;
  });
  ledger.OnEpoch(*next, false);
  const auto record = ledger.OnPart(*next, PartOf(3, 2, 1));
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->contributions, 8);
  EXPECT_EQ(record->files[0].name, "file-0-1");
  EXPECT_EQ(record->files[1].name, "file-1-2");
}

TEST_F(CheckpointLedgerTest, PlanMayChangeWhileACheckpointIsWritten) {
  EXPECT_FALSE(ledger.OnPart(*job, PartOf(3, 1, 0)).has_value());
  const JobPtr next = EpochAfter(*job, [](Job& made) {
    made.workers = {{0, 5}, {1, 5}};
    made.history.base_round = 4;
    made.history.first_step = 5;
    made.history.contributions_before = 10;
  });
  ledger.OnEpoch(*next, /*restarted=*/false);
  const auto record = ledger.OnPart(*next, PartOf(3, 1, 1));
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->contributions, 8);
}

class RestartedLedgerTest : public testing::Test {
 protected:
  // Round 3 is whole; shard 0 has written round 5 when the job goes back, and
  // has three workers now.
  RestartedLedgerTest() {
    const JobPtr job = SomeJob();
    ledger_.OnEpoch(*job, false);
    ledger_.OnComplete(*Both(ledger_, *job, 3));
    EXPECT_FALSE(ledger_.OnPart(*job, PartOf(5, 1, 0)).has_value());
    job_ = EpochAfter(*job, [](Job& made) {
      made.workers = {{0, 4}, {1, 4}, {2, 4}};
      made.history.base_round = 3;
      made.history.first_step = 4;
      made.history.contributions_before = 8;
    });
    ledger_.OnEpoch(*job_, /*restarted=*/true);
  }
  CheckpointLedger ledger_;
  JobPtr job_;
};

TEST_F(RestartedLedgerTest, PartsFromBeforeARestartDoNotCount) {
  EXPECT_FALSE(ledger_.OnPart(*job_, PartOf(5, 2, 1)).has_value());
  // Written before the job went back, and heard of only now.
  EXPECT_FALSE(ledger_.OnPart(*job_, PartOf(5, 1, 0)).has_value());
  const auto record = ledger_.OnPart(*job_, PartOf(5, 2, 0));
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->files[0].name, "file-0-2");
}

// The coordinator asks before it notes a failure, too: a slow disk reports it
// after the job has gone back.
TEST_F(RestartedLedgerTest, OnlyPartsSinceTheRestartCount) {
  EXPECT_FALSE(ledger_.Counts(*job_, PartOf(5, 1, 0)));
  EXPECT_TRUE(ledger_.Counts(*job_, PartOf(5, job_->epoch, 0)));
}

TEST_F(RestartedLedgerTest, PartsOfLaterEpochsDoNotCount) {
  EXPECT_FALSE(ledger_.OnPart(*job_, PartOf(5, 2, 1)).has_value());
  EXPECT_FALSE(ledger_.OnPart(*job_, PartOf(5, 7, 0)).has_value());
}

TEST_F(RestartedLedgerTest, BaseRoundIsNotMadeAgain) {
  EXPECT_FALSE(Both(ledger_, *job_, 3).has_value());
  EXPECT_FALSE(Both(ledger_, *job_, 2).has_value());
}

TEST_F(RestartedLedgerTest, ContributionsCountFromTheBaseRound) {
  EXPECT_EQ(ContributionsOf(ledger_, *job_, 4), 8 + 3);
  EXPECT_EQ(ContributionsOf(ledger_, *job_, 6), 8 + 9);
}

TEST_F(RestartedLedgerTest, DamagedCheckpointIsReplacedByTheOlderOne) {
  EXPECT_FALSE(ledger_.BeginLook().has_value());
  ledger_.OnDamaged(3, "torn");
  ledger_.OnDamaged(3, "torn too");
  EXPECT_EQ(ledger_.BeginLook(), 3);
  EXPECT_FALSE(ledger_.BeginLook().has_value());
  // The disk fails, and is asked again.
  ledger_.EndLook();
  EXPECT_EQ(ledger_.BeginLook(), 3);
  const CheckpointNews news = ledger_.OnSetAside(
      {"set-aside-3", CheckpointRecord{2, 6, {{"old", 1, 2}}}, {}});
  EXPECT_TRUE(news.saves);
  EXPECT_EQ(ledger_.newest()->round, 2);
  EXPECT_EQ(ledger_.DescribeDamaged(), "that of round 3: torn");
  EXPECT_FALSE(ledger_.setting_aside().has_value());
  EXPECT_FALSE(ledger_.BeginLook().has_value());
}

TEST_F(RestartedLedgerTest, AbandonedManifestCountsOnceAndForNothing) {
  ASSERT_TRUE(Both(ledger_, *job_, 4).has_value());
  EXPECT_THAT(ledger_.Abandon(), ElementsAre(3, 4));
  EXPECT_FALSE(ledger_.is_completing());
  EXPECT_TRUE(ledger_.IsAbandoned(4));
  EXPECT_FALSE(ledger_.TakeAbandoned(5).has_value());
  EXPECT_EQ(ledger_.TakeAbandoned(4)->round, 4);
  EXPECT_FALSE(ledger_.TakeAbandoned(4).has_value());
  EXPECT_EQ(ledger_.newest()->round, 3);
}

TEST_F(RestartedLedgerTest, LedgerIsRestoredFromItsState) {
  CheckpointLedger other(ledger_.state());
  EXPECT_EQ(other.newest()->round, 3);
  EXPECT_FALSE(other.OnPart(*job_, PartOf(5, 1, 0)).has_value());
  EXPECT_EQ(ContributionsOf(other, *job_, 6), 8 + 9);
}

TEST(EmptyCheckpointLedgerTest, RestoredCheckpointIsNotMadeAgain) {
  const JobPtr job = EpochAfter(*SomeJob(), [](Job& made) {
    made.workers = {{0, 4}, {1, 4}};
    made.history.base_round = 3;
    made.history.first_step = 4;
  });
  CheckpointLedger ledger;
  ledger.OnEpoch(*job, true);
  EXPECT_FALSE(Both(ledger, *job, 3).has_value());
  EXPECT_TRUE(Both(ledger, *job, 4).has_value());
}

// The first checkpoint of an epoch is newer than all requests before the epoch.
TEST(EmptyCheckpointLedgerTest, SecondRequestIsMetByTheRoundOfTheNextEpoch) {
  const JobPtr job = EpochAfter(*SomeJob(), [](Job& made) {
    made.checkpoint_round = made.history.first_step;
  });
  CheckpointLedger ledger;
  ledger.Request(/*has_begun=*/false);
  ledger.OnEpoch(*job, false);
  ledger.Request(/*has_begun=*/true);
  const JobPtr next = EpochAfter(*job, [](Job& made) {
    made.workers = {{0, 4}, {1, 4}};
    made.history.first_step = 4;
    made.checkpoint_round = 4;
  });
  ledger.OnEpoch(*next, false);
  ASSERT_TRUE(Both(ledger, *next, 4).has_value());
  ledger.OnWritten(4, absl::OkStatus(), *next);
  EXPECT_FALSE(ledger.wanted());
}

// Round 6 may fail while round 4 is still being written.
TEST(EmptyCheckpointLedgerTest, FailureOfALaterRoundDoesNotEndTheRequest) {
  const JobPtr job =
      EpochAfter(*SomeJob(), [](Job& made) { made.checkpoint_round = 4; });
  CheckpointLedger ledger;
  ledger.Request(/*has_begun=*/false);
  ledger.OnEpoch(*job, false);
  ledger.OnFailure(6, "disk full", *job);
  EXPECT_TRUE(ledger.wanted());
  ASSERT_TRUE(Both(ledger, *job, 4).has_value());
  ledger.OnWritten(4, absl::OkStatus(), *job);
  EXPECT_FALSE(ledger.wanted());
}

// Rounds that some shard never writes are forgotten at last.
TEST_F(CheckpointLedgerTest, IncompleteRoundsAreBounded) {
  for (int64_t round = 0; round < 20; ++round) {
    ledger.OnPart(*job, PartOf(round, 1, 0));
  }
  EXPECT_FALSE(ledger.OnPart(*job, PartOf(0, 1, 1)).has_value());
  EXPECT_TRUE(ledger.OnPart(*job, PartOf(19, 1, 1)).has_value());
}

}  // namespace
}  // namespace nereus
