// A layer through the servers from one epoch to the next: what is asked
// for and contributed again, and how a worker that joins gets its first values.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/machine_harness.h"
#include "tests/worker/worker_under_test.h"
#include "worker/machine/server_exchange.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Elements of three chunks on two shards; the last chunk has two frames.
constexpr int64_t kElements = 2 * kChunkElementsMax + kFrameElementsMax + 1;

JobOptions OptimizerAt(OptimizerPlace place) {
  JobOptions options;
  options.optimizer_place = place;
  return options;
}

JobPtr LargeJob(OptimizerPlace place = OptimizerPlace::kServer,
                int workers = 2) {
  return TestJob(workers, 2, {VectorLayer("large", kElements)},
                 OptimizerAt(place));
}

JobPtr SmallJob(OptimizerPlace place, int workers = 2) {
  return TestJob(workers, 1, {VectorLayer("scale", 3)}, OptimizerAt(place));
}

// Returns the chunks of the frames of `kind` in `effects`, each once,
// ascending.
std::vector<int> ChunksIn(const Effects& effects, FrameKind kind) {
  std::vector<int> chunks;
  for (const auto& sent : effects.sent) {
    const auto chunk = static_cast<int>(sent.frame.header.chunk);
    if (sent.frame.header.kind != kind) continue;
    if (chunks.empty() || chunks.back() != chunk) chunks.push_back(chunk);
  }
  return chunks;
}

class PlacesTest : public testing::TestWithParam<OptimizerPlace> {};

std::string PlaceName(const testing::TestParamInfo<OptimizerPlace>& info) {
  return std::string(OptimizerPlaceName(info.param));
}

TEST_P(PlacesTest, OnlyChunksWithoutAResultAreContributedAgain) {
  WorkerUnderTest worker(LargeJob(GetParam()), 1);
  worker.Start();
  worker.ReceiveResults(kInitialRound, IntegerValues(kElements, 0));
  const auto gradient = IntegerValues(kElements, 1);
  worker.Push(0, FloatBuffer(gradient));
  const auto result = IntegerValues(kElements, 2);
  worker.ReceiveChunk(1, 0, result);
  // A chunk of two frames has got one.
  DeliverAll(worker.machine(), worker.ShardOf(2),
             {worker.ResultFrames(2, 0, result)[1]});

  const Effects again = worker.Enter(EpochAfter(*worker.job()));
  EXPECT_THAT(ChunksIn(again, FrameKind::kContribution), ElementsAre(0, 2));
  // The shards may have closed the round, and the results are lost.
  EXPECT_THAT(ChunksIn(again, FrameKind::kPull), ElementsAre(0, 2));
  for (const auto& sent : again.sent) {
    const FrameHeader& header = sent.frame.header;
    EXPECT_EQ(sent.to, worker.ShardOf(header.chunk));
    EXPECT_EQ(header.epoch, worker.job()->epoch);
    EXPECT_EQ(header.round, 0);
  }
  const Chunk first = worker.job()->placement.layer_chunks(0)[0];
  EXPECT_EQ(
      ValuesIn(again.sent, FrameKind::kContribution, 0, 0, 0, first.length),
      std::vector<float>(gradient.begin() + first.offset,
                         gradient.begin() + first.offset + first.length));
  EXPECT_THAT(again.done, IsEmpty());

  // Frames that have come stay, and the rest completes the round.
  worker.ReceiveChunk(0, 0, result);
  EXPECT_EQ(worker.syncer().Missing(),
            PeerName(worker.ShardOf(2)) + " (chunk 2)");
  EXPECT_EQ(DeliverAll(worker.machine(), worker.ShardOf(2),
                       {worker.ResultFrames(2, 0, result)[0]})
                .done.size(),
            1u);
  if (GetParam() == OptimizerPlace::kServer) {
    EXPECT_EQ(FloatsOf(worker.parameters()), result);
  }
}

TEST_P(PlacesTest, ARoundThatIsDoneIsNotContributedAgain) {
  WorkerUnderTest worker(SmallJob(GetParam()), 1);
  worker.Start();
  worker.ReceiveResults(kInitialRound, {0, 0, 0});
  EXPECT_THAT(worker.Enter(EpochAfter(*worker.job())).sent, IsEmpty());
  worker.Push(0, FloatBuffer({1, 2, 3}));
  worker.ReceiveResults(0, {4, 5, 6});
  EXPECT_THAT(worker.Enter(EpochAfter(*worker.job())).sent, IsEmpty());
  EXPECT_EQ(worker.syncer().done_round(), 0);
}

TEST_P(PlacesTest, AFrozenWorkerSendsAPushInTheNextEpoch) {
  WorkerUnderTest worker(SmallJob(GetParam()), 0);
  worker.Start();
  worker.ReceiveResults(kInitialRound, {0, 0, 0});
  worker.machine().Freeze();
  EXPECT_THAT(worker.Push(0, FloatBuffer({1, 2, 3})).sent, IsEmpty());
  const Effects entered = worker.Enter(EpochAfter(*worker.job()));
  // The question comes first: a contribution to a closed round is discarded.
  ASSERT_EQ(entered.sent.size(), 2u);
  EXPECT_EQ(entered.sent[0].frame.header.kind, FrameKind::kPull);
  EXPECT_EQ(entered.sent[0].frame.header.round, 0);
  EXPECT_THAT(ValuesIn(entered.sent, FrameKind::kContribution, 0, 0, 0, 3),
              ElementsAre(1, 2, 3));
  EXPECT_EQ(worker.ReceiveResults(0, {7, 7, 7}).done.size(), 1u);
  // Later rounds of the epoch cannot close without this worker.
  EXPECT_EQ(worker.Push(1, FloatBuffer({1, 2, 3})).sent.size(), 1u);
}

TEST_P(PlacesTest, AFrozenWorkerStillTakesResults) {
  WorkerUnderTest worker(SmallJob(GetParam()), 0);
  worker.Start();
  worker.ReceiveResults(kInitialRound, {0, 0, 0});
  worker.Push(0, FloatBuffer({1, 2, 3}));
  worker.machine().Freeze();
  EXPECT_EQ(worker.ReceiveResults(0, {7, 7, 7}).done.size(), 1u);
  EXPECT_THAT(worker.Enter(EpochAfter(*worker.job())).sent, IsEmpty());
}

TEST_P(PlacesTest, MissingInitialValuesAreAskedForAgain) {
  for (const int rank : {0, 1}) {
    WorkerUnderTest worker(LargeJob(GetParam()), rank);
    worker.Start();
    const auto initial = IntegerValues(kElements, 5);
    worker.ReceiveChunk(1, kInitialRound, initial);
    const Effects again = worker.Enter(EpochAfter(*worker.job()));
    EXPECT_THAT(ChunksIn(again, FrameKind::kPull), ElementsAre(0, 2));
    // The first worker also sends them again.
    const std::vector<int> given = ChunksIn(again, FrameKind::kContribution);
    EXPECT_EQ(given, rank == 0 ? (std::vector<int>{0, 2}) : std::vector<int>{});
    worker.ReceiveChunk(0, kInitialRound, initial);
    EXPECT_EQ(worker.ReceiveChunk(2, kInitialRound, initial).done.size(), 1u);
    EXPECT_EQ(FloatsOf(worker.parameters()), initial);
  }
}

TEST_P(PlacesTest, IfTheFirstWorkerDiesTheNextGivesTheInitialValues) {
  WorkerUnderTest worker(SmallJob(GetParam(), 3), 1);
  EXPECT_THAT(ChunksIn(worker.Start(), FrameKind::kContribution), IsEmpty());
  const Effects first = worker.Enter(EpochAfter(*worker.job(), [](Job& job) {
    job.workers = {{1, 0}, {2, 0}};
  }));
  EXPECT_EQ(
      ValuesIn(first.sent, FrameKind::kContribution, 0, 0, kInitialRound, 3),
      IntegerValues(3, 1001));
  EXPECT_THAT(ChunksIn(first, FrameKind::kPull), ElementsAre(0));
}

INSTANTIATE_TEST_SUITE_P(All, PlacesTest,
                         testing::Values(OptimizerPlace::kServer,
                                         OptimizerPlace::kWorker),
                         PlaceName);

// Frames of a contribution to a round that was closed may still be on their way
// when the next round's gradient is made.
TEST(ServerExchangeEpochTest, FramesSentAgainKeepTheProductOfTheirFactors) {
  // 300 x 300 values: two frames.
  const JobPtr job = TestJob(2, 1, {FactorLayer("fc", 300, 300, false, 1)}, {});
  WorkerUnderTest worker(job, 1);
  worker.Start();
  worker.ReceiveResults(kInitialRound, IntegerValues(90000, 0));
  const auto factors = [](float value) {
    return FactorBuffers{FloatBuffer(std::vector<float>(300, value)),
                         FloatBuffer(std::vector<float>(300, 1.0f)), Buffer()};
  };
  worker.PushFactors(0, factors(2));
  const Effects again = worker.Enter(EpochAfter(*job));
  ASSERT_EQ(again.sent.size(), 3u);  // A question and two frames.
  EXPECT_EQ(worker.ReceiveResults(0, IntegerValues(90000, 1)).done.size(), 1u);
  worker.PushFactors(1, factors(9));
  EXPECT_EQ(ValuesIn(again.sent, FrameKind::kContribution, 0, 0, 0, 90000),
            std::vector<float>(90000, 2.0f));
}

// Returns a job in which rank 5 joins workers 0 and 1; its first step is 8.
JobPtr WithJoiner(OptimizerPlace place, int donor = 0) {
  return EpochAfter(*SmallJob(place), [&](Job& job) {
    job.workers = {{0, 0}, {1, 0}, {5, 8}};
    job.history.first_step = 8;
    job.history.donor = donor;
  });
}

TEST(ServerExchangeJoinTest, AJoinerFetchesLayersOfTheShardsFromThem) {
  WorkerUnderTest worker(WithJoiner(OptimizerPlace::kServer), 5);
  const Effects started = worker.Start();
  ASSERT_EQ(started.sent.size(), 1u);
  EXPECT_EQ(started.sent[0].to, PeerId::Shard(0));
  EXPECT_EQ(started.sent[0].frame.header.kind, FrameKind::kPull);
  EXPECT_EQ(started.sent[0].frame.header.round, 7);
  EXPECT_TRUE(worker.machine().Report().fetching);

  const Effects received = worker.ReceiveResults(7, {1, 2, 3});
  ASSERT_EQ(received.done.size(), 1u);
  EXPECT_EQ(received.done[0].round, 7);
  EXPECT_THAT(FloatsOf(worker.parameters()), ElementsAre(1, 2, 3));
  EXPECT_FALSE(worker.machine().Report().fetching);

  Outbox out;
  for (const int64_t round : {0, 7, 9}) {
    EXPECT_EQ(
        worker.machine().OnPush(0, round, FloatBuffer({0, 0, 0}), out).code(),
        absl::StatusCode::kInvalidArgument);
  }
  // The contribution, and a question: the round may have closed before.
  EXPECT_EQ(worker.Push(8, FloatBuffer({0, 0, 0})).sent.size(), 2u);
}

TEST(ServerExchangeJoinTest, AJoinerFetchesWorkerOwnedLayersFromTheDonor) {
  WorkerUnderTest worker(WithJoiner(OptimizerPlace::kWorker), 5,
                         /*state_arrays=*/2);
  const Effects started = worker.Start();
  ASSERT_EQ(started.sent.size(), 1u);
  EXPECT_EQ(started.sent[0].to, PeerId::Worker(0));
  EXPECT_EQ(started.sent[0].frame.header.kind, FrameKind::kPull);
  EXPECT_EQ(started.sent[0].frame.header.round, 7);
  EXPECT_EQ(worker.syncer().Missing(), "worker 0");

  // The shards' result of that round is not what the joiner asked for.
  EXPECT_THAT(worker.ReceiveResults(7, {9, 9, 9}).done, IsEmpty());
  const Effects received =
      worker.ReceiveOwned(0, 7, {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}});
  ASSERT_EQ(received.done.size(), 1u);
  EXPECT_EQ(received.done[0].round, 7);
  EXPECT_THAT(FloatsOf(worker.parameters()), ElementsAre(1, 2, 3));
  EXPECT_THAT(FloatsOf(worker.state()), ElementsAre(4, 5, 6, 7, 8, 9));

  // From then on its rounds are those of all workers.
  const Buffer gradient = FloatBuffer({0, 0, 0});
  worker.Push(8, gradient);
  EXPECT_EQ(worker.ReceiveResults(8, {5, 5, 5}).done.size(), 1u);
  EXPECT_THAT(FloatsOf(gradient), ElementsAre(5, 5, 5));
}

TEST(ServerExchangeJoinTest, WhenTheDonorDiesTheNextDonorIsAsked) {
  WorkerUnderTest worker(WithJoiner(OptimizerPlace::kWorker), 5,
                         /*state_arrays=*/1);
  worker.Start();
  worker.ReceiveOwned(0, 7, {{1, 2, 3}});
  const Effects entered = worker.Enter(EpochAfter(*worker.job(), [](Job& job) {
    job.workers = {{1, 0}, {5, 8}};
    job.history.donor = 1;
  }));
  ASSERT_EQ(entered.sent.size(), 1u);
  EXPECT_EQ(entered.sent[0].to, PeerId::Worker(1));
  EXPECT_EQ(entered.sent[0].frame.header.round, 7);
  EXPECT_EQ(worker.ReceiveOwned(1, 7, {{1, 2, 3}, {4, 5, 6}}).done.size(), 1u);
  EXPECT_THAT(FloatsOf(worker.state()), ElementsAre(4, 5, 6));
}

// The report said that the joiner has no values yet.
TEST(ServerExchangeJoinTest, AFrozenJoinerTakesNothingFromTheDonor) {
  WorkerUnderTest worker(WithJoiner(OptimizerPlace::kWorker), 5);
  worker.Start();
  worker.machine().Freeze();
  EXPECT_TRUE(worker.machine().Report().fetching);
  EXPECT_THAT(worker.ReceiveOwned(0, 7, {{1, 2, 3}}).done, IsEmpty());
  EXPECT_TRUE(worker.syncer().fetching());
  worker.Enter(EpochAfter(*worker.job()));
  EXPECT_EQ(worker.ReceiveOwned(0, 7, {{1, 2, 3}}).done.size(), 1u);
}

// The shards have all layers as of a checkpoint.
TEST(ServerExchangeJoinTest, TheShardsGiveTheBaseRoundOfEveryLayer) {
  const JobPtr job =
      EpochAfter(*SmallJob(OptimizerPlace::kWorker), [](Job& restored) {
        restored.workers = {{3, 5}, {4, 5}};
        restored.history.first_step = 5;
        restored.history.base_round = 4;
      });
  for (const int rank : {3, 4}) {
    WorkerUnderTest worker(job, rank);
    const Effects started = worker.Start();
    ASSERT_EQ(started.sent.size(), 1u);
    EXPECT_EQ(started.sent[0].to, PeerId::Shard(0));
    EXPECT_EQ(started.sent[0].frame.header.kind, FrameKind::kPull);
    EXPECT_EQ(started.sent[0].frame.header.round, 4);
    EXPECT_EQ(worker.ReceiveResults(4, {1, 2, 3}).done.size(), 1u);
  }
}

// Worker that will be the donor, with round 6 done.
struct Donor {
  explicit Donor(int rank = 0)
      : worker(SmallJob(OptimizerPlace::kWorker), rank, /*state_arrays=*/1) {
    worker.Start();
    worker.ReceiveResults(kInitialRound, {0, 0, 0});
    for (int64_t round = 0; round < 7; ++round) {
      worker.Push(round, FloatBuffer({1, 1, 1}));
      worker.ReceiveResults(round, {2, 2, 2});
    }
  }
  // Does the update of the caller's own optimizer.
  void Update(float value) {
    for (int i = 0; i < 3; ++i) {
      worker.parameters().floats()[i] = value;
      worker.state().floats()[i] = value + 100;
    }
  }
  WorkerUnderTest worker;
};

// If the caller updates the parameters, they are as of a round once the next
// round is pushed.
TEST(LayerDonorTest, AJoinerIsServedWhenTheNextStepIsPushed) {
  Donor donor;
  WorkerUnderTest& worker = donor.worker;
  worker.Push(7, FloatBuffer({1, 1, 1}));
  EXPECT_EQ(worker.Enter(WithJoiner(OptimizerPlace::kWorker)).sent.size(), 2u);
  auto pulled = worker.Pull(5, 7);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_THAT(pulled->effects.sent, IsEmpty());
  // The last round is done, but the update may be under way.
  EXPECT_THAT(worker.ReceiveResults(7, {3, 3, 3}).sent, IsEmpty());
  donor.Update(42);
  const Effects pushed = worker.Push(8, FloatBuffer({1, 1, 1}));
  const auto sent = SentTo(pushed.sent, PeerId::Worker(5));
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].frame.header.epoch, worker.job()->epoch);
  EXPECT_THAT(ValuesIn(sent, FrameKind::kResult, 0, 0, 7, 3),
              ElementsAre(42, 42, 42));
  EXPECT_THAT(ValuesIn(sent, FrameKind::kResult, 0, 0, 7, 3, /*part=*/1),
              ElementsAre(142, 142, 142));

  // A joiner is served once in an epoch.
  pulled = worker.Pull(5, 7);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->landing, Landing::Kind::kDiscard);
  worker.Enter(EpochAfter(*worker.job()));
  pulled = worker.Pull(5, 7);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(SentTo(pulled->effects.sent, PeerId::Worker(5)).size(), 2u);
}

TEST(LayerDonorTest, AFrozenDonorServesInTheNextEpoch) {
  Donor donor;
  WorkerUnderTest& worker = donor.worker;
  worker.Push(7, FloatBuffer({1, 1, 1}));
  worker.Enter(WithJoiner(OptimizerPlace::kWorker));
  worker.machine().Freeze();
  const auto pulled = worker.Pull(5, 7);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->landing, Landing::Kind::kDiscard);
}

TEST(LayerDonorTest, AWorkerThatMayNotAskIsRefused) {
  Donor donor;
  WorkerUnderTest& worker = donor.worker;
  worker.Enter(WithJoiner(OptimizerPlace::kWorker));
  const auto refused = [&](int rank, int64_t round) {
    const absl::Status status = worker.Pull(rank, round).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("joining"));
  };
  for (const int64_t round : {-1, 6, 8}) refused(5, round);
  refused(1, kInitialRound);  // The shards have it.
  refused(1, 7);              // Worker 1 does not join.
  // Another worker is the donor now.
  worker.Enter(
      EpochAfter(*worker.job(), [](Job& job) { job.history.donor = 1; }));
  refused(5, 7);
}

TEST(LayerDonorTest, LayersThatShardsUpdateHaveNoDonor) {
  WorkerUnderTest worker(SmallJob(OptimizerPlace::kServer), 0);
  worker.Start();
  worker.ReceiveResults(kInitialRound, {0, 0, 0});
  worker.Enter(WithJoiner(OptimizerPlace::kServer));
  EXPECT_EQ(worker.Pull(5, 7).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// The last worker leaves just as another worker joins: it pushes no more.
TEST(LayerDonorTest, ADonorThatHasLeftServesItsLastRound) {
  Donor donor;
  WorkerUnderTest& worker = donor.worker;
  donor.Update(42);
  Outbox out;
  worker.machine().OnLeave(out);
  EXPECT_THAT(Carry(out).sent, IsEmpty());
  const Effects entered = worker.Enter(EpochAfter(*worker.job(), [](Job& job) {
    job.workers = {{5, 7}};
    job.crew.left_workers = {0};
    job.history.first_step = 7;
    job.history.donor = 0;
  }));
  EXPECT_THAT(entered.sent, IsEmpty());
  const auto pulled = worker.Pull(5, 6);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  const auto sent = SentTo(pulled->effects.sent, PeerId::Worker(5));
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_THAT(ValuesIn(sent, FrameKind::kResult, 0, 0, 6, 3),
              ElementsAre(42, 42, 42));
}

TEST(LayerDonorTest, AWorkerThatLeftWithAnOpenRoundContributesNoMore) {
  WorkerUnderTest worker(SmallJob(OptimizerPlace::kServer), 1);
  worker.Start();
  worker.ReceiveResults(kInitialRound, {0, 0, 0});
  worker.Push(0, FloatBuffer({1, 1, 1}));
  EXPECT_THAT(worker
                  .Enter(EpochAfter(*worker.job(),
                                    [](Job& job) {
                                      job.workers = {{0, 0}};
                                      job.crew.left_workers = {1};
                                    }))
                  .sent,
              IsEmpty());
}

}  // namespace
}  // namespace nereus
