#include "server/shard/votes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const PeerId kWorker0 = PeerId::Worker(0);
const PeerId kWorker1 = PeerId::Worker(1);

JobPtr VotingJob(int workers = 2) {
  JobOptions options;
  options.nan = NanPolicy::kSkip;
  return TestJob(workers, 1, {VectorLayer("scale", 4)}, options);
}

FrameHeader VoteOf(const Job& job, int rank, int64_t step, bool skipped) {
  FrameHeader vote = MakeHeader(job, PeerId::Worker(rank), FrameKind::kVote,
                                /*layer=*/0, /*chunk=*/0, step);
  vote.part = skipped ? kSkipped : kGood;
  return vote;
}

// A vote that must be accepted.
std::optional<StepVerdict> Cast(Votes& votes, const Job& job, int rank,
                                int64_t step, bool skipped = false) {
  const FrameHeader vote = VoteOf(job, rank, step, skipped);
  const auto landing = votes.OnHeader(PeerId::Worker(rank), vote);
  EXPECT_TRUE(landing.ok()) << landing.status();
  EXPECT_EQ(landing->kind, Landing::Kind::kScratch);
  return votes.OnFrame(PeerId::Worker(rank), vote);
}

bool IsDiscarded(const Votes& votes, const FrameHeader& vote) {
  const auto landing = votes.OnHeader(vote.sender, vote);
  EXPECT_TRUE(landing.ok()) << landing.status();
  return landing->kind == Landing::Kind::kDiscard;
}

TEST(VotesTest, LastVoteBringsTheVerdict) {
  const JobPtr job = VotingJob();
  Votes votes(job, /*server=*/0);
  EXPECT_EQ(Cast(votes, *job, 1, 0), std::nullopt);
  EXPECT_EQ(Cast(votes, *job, 0, 0), (StepVerdict{0, false}));
  EXPECT_EQ(votes.verdicts().Skipped(0), false);
}

// A worker that has heard a verdict from another server.
TEST(VotesTest, WorkerMayBeAStepAhead) {
  const JobPtr job = VotingJob();
  Votes votes(job, /*server=*/0);
  EXPECT_EQ(Cast(votes, *job, 0, 0), std::nullopt);
  EXPECT_EQ(Cast(votes, *job, 0, 1, /*skipped=*/true), std::nullopt);
  EXPECT_EQ(Cast(votes, *job, 1, 0), (StepVerdict{0, false}));
  EXPECT_EQ(Cast(votes, *job, 1, 1), (StepVerdict{1, true}));
}

// Nothing holds up a worker that is ahead of a server without rounds: its votes
// must not be refused.
TEST(VotesTest, AServerWithoutRoundsCountsNoVotes) {
  JobOptions options;
  options.nan = NanPolicy::kSkip;
  for (const Scheme scheme : {Scheme::kRing, Scheme::kServer}) {
    const JobPtr job = TestJob(2, 2, {VectorLayer("a", 4), VectorLayer("b", 4)},
                               options, scheme);
    Votes first(job, /*server=*/0);
    Votes second(job, /*server=*/1);
    EXPECT_FALSE(IsDiscarded(first, VoteOf(*job, 0, 0, false)));
    EXPECT_EQ(IsDiscarded(second, VoteOf(*job, 0, 0, false)),
              scheme == Scheme::kRing);
    const FrameHeader ahead = VoteOf(*job, 0, 7, false);
    EXPECT_FALSE(first.OnHeader(kWorker0, ahead).ok());
    EXPECT_EQ(second.OnHeader(kWorker0, ahead).ok(), scheme == Scheme::kRing);
  }
}

TEST(VotesTest, VoteCountsOnce) {
  const JobPtr job = VotingJob();
  Votes votes(job, /*server=*/0);
  Cast(votes, *job, 0, 0);
  EXPECT_TRUE(IsDiscarded(votes, VoteOf(*job, 0, 0, true)));
  Cast(votes, *job, 1, 0);
  EXPECT_TRUE(IsDiscarded(votes, VoteOf(*job, 1, 0, true)));
  EXPECT_EQ(votes.verdicts().Skipped(0), false);
}

TEST(VotesTest, StepWithAVerdictTakesNoVotes) {
  const JobPtr job = EpochAfter(*VotingJob(), [](Job& late) {
    late.history.verdicts = {{6, true}};
  });
  Votes votes(job, /*server=*/0);
  EXPECT_EQ(votes.verdicts().Skipped(6), true);
  EXPECT_TRUE(IsDiscarded(votes, VoteOf(*job, 0, 6, false)));
  EXPECT_EQ(Cast(votes, *job, 0, 7), std::nullopt);
}

TEST(VotesTest, OnlyContributorsVote) {
  const JobPtr job = EpochAfter(*VotingJob(), [](Job& late) {
    late.workers = {{0, 0}, {1, 0}, {2, 1}};
  });
  Votes votes(job, /*server=*/0);
  Cast(votes, *job, 0, 0);
  EXPECT_FALSE(
      votes.OnHeader(PeerId::Worker(2), VoteOf(*job, 2, 0, true)).ok());
  EXPECT_EQ(Cast(votes, *job, 1, 0), (StepVerdict{0, false}));
  EXPECT_EQ(Cast(votes, *job, 2, 1), std::nullopt);
}

TEST(VotesTest, WrongVotesAreRefused) {
  const JobPtr job = VotingJob();
  const Votes votes(job, /*server=*/0);
  const auto refusal = [&](PeerId from, auto edit) {
    FrameHeader vote = VoteOf(*job, from.rank, 0, false);
    edit(vote);
    return std::string(votes.OnHeader(from, vote).status().message());
  };
  const char* const why = "a vote must come from a contributor";
  EXPECT_THAT(refusal(kWorker0, [](auto& vote) { vote.round = -1; }),
              HasSubstr(why));
  EXPECT_THAT(refusal(kWorker0, [](auto& vote) { vote.round = 2; }),
              HasSubstr(why));
  EXPECT_THAT(refusal(kWorker1, [](auto& vote) { vote.part = 2; }),
              HasSubstr(why));
  EXPECT_THAT(refusal(kWorker1, [](auto& vote) { vote.chunk = 1; }),
              HasSubstr(why));
  EXPECT_THAT(refusal(kWorker1, [](auto& vote) { vote.payload_bytes = 4; }),
              HasSubstr(why));
  EXPECT_THAT(refusal(PeerId::Shard(0), [](auto&) {}), HasSubstr(why));
  EXPECT_THAT(refusal(PeerId::Worker(7), [](auto&) {}), HasSubstr(why));
}

TEST(VotesTest, VotesAreRefusedInAJobWithoutVotes) {
  const JobPtr job = TestJob(1, 1, {VectorLayer("scale", 4)});
  const Votes votes(job, /*server=*/0);
  EXPECT_FALSE(votes.OnHeader(kWorker0, VoteOf(*job, 0, 0, false)).ok());
}

TEST(VerdictsTest, LastVerdictsAreKeptInOrder) {
  Verdicts verdicts;
  const std::vector<StepVerdict> some = {{3, false}, {5, true}, {4, true}};
  verdicts.Add(some);
  EXPECT_THAT(verdicts.all(),
              ElementsAre(StepVerdict{3, false}, StepVerdict{4, true},
                          StepVerdict{5, true}));
  // Known verdicts stay.
  const std::vector<StepVerdict> more = {{5, false}, {6, false}, {7, true}};
  verdicts.Add(more);
  EXPECT_EQ(verdicts.Skipped(3), std::nullopt);
  EXPECT_EQ(verdicts.Skipped(5), true);
  EXPECT_EQ(verdicts.Skipped(7), true);
  EXPECT_EQ(verdicts.all().size(), static_cast<size_t>(kVerdictsMax));
}

}  // namespace
}  // namespace nereus
