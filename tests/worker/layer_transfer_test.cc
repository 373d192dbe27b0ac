// State of a layer between rounds: fetched values, the donor of a worker that
// joins, worker-owned layers in a checkpoint, checksums and samples of
// replicas, and a layer that gets another route. replica_check_test.cc tests
// how the coordinator compares checksums.

#include "worker/machine/layer_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "tests/testing/machine_harness.h"
#include "tests/worker/worker_under_test.h"
#include "worker/machine/worker_machine.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kElements = 6;

std::vector<float> All(float value) {
  return std::vector<float>(kElements, value);
}

std::vector<Effects::Sent> Kind(const Effects& effects, FrameKind kind) {
  std::vector<Effects::Sent> found;
  for (const auto& sent : effects.sent) {
    if (sent.frame.header.kind == kind) found.push_back(sent);
  }
  return found;
}
std::vector<Effects::Sent> Owned(const Effects& effects) {
  return Kind(effects, FrameKind::kOwned);
}

// Options of an exact update: v = v / 2 + mean gradient, parameters -= v.
JobOptions SaveEvery(int64_t steps,
                     OptimizerPlace place = OptimizerPlace::kServer) {
  JobOptions options;
  options.optimizer.learning_rate = 1.0f;
  options.optimizer.momentum = 0.5f;
  options.optimizer_place = place;
  options.checkpoint_every = steps;
  return options;
}

JobPtr SmallJob(OptimizerPlace place) {
  JobOptions options;
  options.optimizer_place = place;
  return TestJob(2, 1, {VectorLayer("scale", 3)}, options);
}

// Returns a job in which rank 5 joins workers 0 and 1; its first step is 8.
JobPtr WithJoiner(OptimizerPlace place) {
  return EpochAfter(*SmallJob(place), [](Job& job) {
    job.workers = {{0, 0}, {1, 0}, {5, 8}};
    job.history.first_step = 8;
    job.history.donor = 0;
  });
}

TEST(LayerJoinTest, AJoinerFetchesLayersOfTheShardsFromThem) {
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

TEST(LayerJoinTest, AJoinerFetchesWorkerOwnedLayersFromTheDonor) {
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

// Worker that will be the donor, with round 6 done.
struct Donor {
  Donor() : worker(SmallJob(OptimizerPlace::kWorker), 0, /*state_arrays=*/1) {
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

std::vector<float> PartIn(const std::vector<Effects::Sent>& sent,
                          uint8_t part) {
  return ValuesIn(sent, FrameKind::kOwned, 0, 0, /*round=*/0, kElements, part);
}

// Worker with one layer, 2 x 3, that goes by factors of one row.
class FactorWorker {
 public:
  // Starts with zeros, so that every product adds up exactly.
  explicit FactorWorker(JobPtr job, int rank = 0)
      : worker_(std::move(job), rank) {
    worker_.Start();
    worker_.ReceiveResults(kInitialRound, All(0));
  }
  // Does round `round`. All elements of both workers' gradients are `value`.
  Effects Round(int64_t round, float value) {
    Effects effects = worker_.PushFactors(
        round, {FloatBuffer({value, value}), FloatBuffer({1, 1, 1}), Buffer()});
    const int other = 1 - worker_.rank();
    const PeerId peer = PeerId::Worker(other);
    for (const auto& [matrix, values] :
         std::vector<std::pair<uint8_t, std::vector<float>>>{
             {kOutputGradientMatrix, {value, value}},
             {kInputMatrix, {1, 1, 1}}}) {
      const Effects received =
          DeliverAll(worker_.machine(), peer,
                     FramesOf(*worker_.job(), peer, FrameKind::kFactors, 0,
                              /*chunk=*/other, round, values, matrix));
      effects.sent.insert(effects.sent.end(), received.sent.begin(),
                          received.sent.end());
      effects.done.insert(effects.done.end(), received.done.begin(),
                          received.done.end());
    }
    EXPECT_THAT(effects.done, SizeIs(1)) << "round " << round;
    return effects;
  }
  WorkerUnderTest& worker() { return worker_; }

 private:
  WorkerUnderTest worker_;
};

JobPtr FactorJob(const JobOptions& options = SaveEvery(1)) {
  return TestJob(2, 1, {FactorLayer("fc", 2, 3, false, 1)}, options,
                 Scheme::kFactor);
}

TEST(OwnedCheckpointTest, TheFirstWorkerSendsTheLayerAndItsStateAfterTheRound) {
  FactorWorker first(FactorJob());
  const auto sent = Owned(first.Round(0, 4));
  first.Round(1, 8);  // Does not change the values that are sent.
  EXPECT_EQ(FloatsOf(first.worker().parameters()), All(-4 - (2 + 8)));
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].to, PeerId::Shard(0));
  EXPECT_EQ(PartIn(sent, 0), All(-4));
  EXPECT_EQ(PartIn(sent, 1), All(4));
  FactorWorker second(FactorJob(), 1);
  EXPECT_THAT(Owned(second.Round(0, 4)), IsEmpty());
}

// There is no next push after the last step.
TEST(OwnedCheckpointTest, LayersThatTheCallerUpdatesAreSentWhenItLeaves) {
  FactorWorker first(FactorJob(SaveEvery(1, OptimizerPlace::kWorker)));
  first.Round(0, 4);
  std::fill_n(first.worker().parameters().floats(), kElements, 42.0f);
  Outbox out;
  first.worker().machine().OnLeave(out);
  EXPECT_EQ(PartIn(Owned(Carry(out)), 0), All(42));
  const Effects entered =
      first.worker().Enter(EpochAfter(*first.worker().job()));
  EXPECT_EQ(PartIn(Owned(entered), 0), All(42));
}

TEST(OwnedCheckpointTest, OnlyRoundsOfCheckpointsAreSent) {
  FactorWorker first(EpochAfter(*FactorJob(SaveEvery(3)),
                                [](Job& made) { made.checkpoint_round = 3; }));
  std::vector<int64_t> rounds;
  for (int64_t round = 0; round < 7; ++round) {
    if (!Owned(first.Round(round, 1)).empty()) rounds.push_back(round);
  }
  EXPECT_THAT(rounds, ElementsAre(2, 3, 5));
}

TEST(OwnedCheckpointTest, ALayerThatTheShardsUpdateIsNotSent) {
  const JobPtr job =
      TestJob(1, 1, {VectorLayer("scale", kElements)}, SaveEvery(1));
  WorkerUnderTest worker(job, 0);
  worker.Start();
  worker.ReceiveResults(kInitialRound, All(0));
  EXPECT_THAT(Owned(worker.Push(0, FloatBuffer(All(1)))), IsEmpty());
  EXPECT_THAT(Owned(worker.ReceiveResults(0, All(2))), IsEmpty());
  EXPECT_THAT(Owned(worker.Push(1, FloatBuffer(All(1)))), IsEmpty());
}

// Worker on which the caller's optimizer runs, with two arrays of state.
class CallersOptimizerTest : public testing::TestWithParam<int64_t> {
 protected:
  CallersOptimizerTest()
      : worker_(TestJob(1, 2, {VectorLayer("scale", GetParam())},
                        SaveEvery(1, OptimizerPlace::kWorker)),
                0, /*state_arrays=*/2) {
    worker_.Start();
    worker_.ReceiveResults(kInitialRound, Values(0));
  }
  static std::vector<float> Values(int64_t salt) {
    return IntegerValues(GetParam(), salt);
  }
  // Updates parameters and state as the caller's optimizer does.
  void Update(int64_t round) {
    const auto fill = [&](float* into, int64_t salt) {
      const std::vector<float> values = Values(salt);
      absl::c_copy(values, into);
    };
    fill(worker_.parameters().floats(), round * 10);
    fill(worker_.state().floats(), round * 10 + 1);
    fill(worker_.state().floats() + GetParam(), round * 10 + 2);
  }
  Effects Push(int64_t round) {
    return worker_.Push(round, FloatBuffer(Values(7)));
  }
  void ExpectSent(const std::vector<Effects::Sent>& sent, int64_t round) {
    for (const int part : {0, 1, 2}) {
      std::vector<float> found;
      for (const Chunk& chunk : worker_.job()->placement.layer_chunks(0)) {
        const auto values = ValuesIn(SentTo(sent, PeerId::Shard(chunk.shard)),
                                     FrameKind::kOwned, 0, chunk.index, round,
                                     chunk.length, static_cast<uint8_t>(part));
        found.insert(found.end(), values.begin(), values.end());
      }
      EXPECT_EQ(found, Values(round * 10 + part)) << "part " << part;
    }
  }
  WorkerUnderTest worker_;
};

TEST_P(CallersOptimizerTest, EveryLayerIsSentWhenTheNextStepIsPushed) {
  // The initial values belong to no checkpoint.
  EXPECT_THAT(Owned(Push(0)), IsEmpty());
  EXPECT_THAT(Owned(worker_.ReceiveResults(0, Values(1))), IsEmpty());
  // The caller may be writing the parameters.
  EXPECT_THAT(Owned(worker_.Enter(EpochAfter(*worker_.job()))), IsEmpty());
  Update(0);
  const auto sent = Owned(Push(1));
  worker_.ReceiveResults(1, Values(1));
  Update(1);
  ExpectSent(sent, 0);
  ExpectSent(Owned(Push(2)), 1);
}

TEST_P(CallersOptimizerTest,
       WorkerSendsTheLastRoundsCheckpointUnderTheNextPlan) {
  Push(0);
  worker_.ReceiveResults(0, Values(1));
  Update(0);
  worker_.Enter(EpochAfter(*worker_.job(), [](Job& next) {
    next.routes[0].scheme = Scheme::kRing;
    next.history.first_step = 1;
  }));
  ExpectSent(Owned(Push(1)), 0);
}

TEST_P(CallersOptimizerTest, FetchedValuesAreNotSent) {
  const JobPtr job = EpochAfter(*worker_.job(), [](Job& restored) {
    restored.workers = {{0, 5}};
    restored.history.first_step = 5;
    restored.history.donor = 0;
  });
  WorkerUnderTest joined(job, 0, /*state_arrays=*/2);
  joined.Start();
  // Round 4 is a checkpoint. The worker that gave the values has sent them.
  for (const int part : {0, 1, 2}) {
    for (const Chunk& chunk : job->placement.layer_chunks(0)) {
      DeliverAll(joined.machine(), PeerId::Worker(0),
                 FramesOf(*job, PeerId::Worker(0), FrameKind::kResult, 0,
                          chunk.index, 4, IntegerValues(chunk.length, part),
                          static_cast<uint8_t>(part)));
    }
  }
  ASSERT_FALSE(joined.syncer().fetching());
  EXPECT_THAT(Owned(joined.Push(5, FloatBuffer(Values(1)))), IsEmpty());
  joined.ReceiveResults(5, Values(1));
  EXPECT_THAT(Owned(joined.Push(6, FloatBuffer(Values(1)))),
              testing::Not(IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(Sizes, CallersOptimizerTest,
                         testing::Values(3, kFrameElementsMax + 1,
                                         kChunkElementsMax + 5));

// Worker, of two, with the layer "scale", which goes through the server. Each
// round sets its parameters to `round + 1`.
class ChecksumWorker {
 public:
  explicit ChecksumWorker(const JobOptions& options, int rank = 0)
      : worker_(TestJob(2, 1, {VectorLayer("scale", kElements)}, options),
                rank) {
    worker_.Start();
    worker_.ReceiveResults(kInitialRound, All(0));
  }
  std::vector<ChecksumValues> Push(int64_t round) {
    return worker_.Push(round, FloatBuffer(All(1))).checksums;
  }
  std::vector<ChecksumValues> Receive(int64_t round) {
    const std::vector<float> values = All(static_cast<float>(round + 1));
    std::vector<ChecksumValues> checksums;
    for (const Frame& frame : worker_.ResultFrames(0, round, values)) {
      const auto delivery =
          Deliver(worker_.machine(), worker_.ShardOf(0), frame);
      EXPECT_TRUE(delivery.ok()) << delivery.status();
      if (!delivery.ok()) continue;
      const auto& found = delivery->effects.checksums;
      checksums.insert(checksums.end(), found.begin(), found.end());
    }
    return checksums;
  }
  // Pushes `round` and receives its results. Returns the checksums that the
  // machine asks for meanwhile.
  std::vector<ChecksumValues> Round(int64_t round) {
    std::vector<ChecksumValues> checksums = Push(round);
    const auto more = Receive(round);
    checksums.insert(checksums.end(), more.begin(), more.end());
    return checksums;
  }
  // Does `round`, and returns the samples for which the machine asks.
  std::vector<ChecksumValues> Samples(int64_t round) {
    auto samples = worker_.Push(round, FloatBuffer(All(1))).samples;
    // The results of the round change the values.
    for (ChecksumValues& sample : samples) {
      sample.values = FloatBuffer(FloatsOf(sample.values));
    }
    Receive(round);
    return samples;
  }
  std::vector<ChecksumValues> Leave() {
    Outbox out;
    worker_.machine().OnLeave(out);
    return Carry(out).checksums;
  }
  // Changes the parameters, as the caller's own optimizer does.
  void Update(float value) {
    std::fill_n(worker_.parameters().floats(), kElements, value);
  }
  WorkerUnderTest& worker() { return worker_; }

 private:
  WorkerUnderTest worker_;
};

// Expects one checksum for `round`, over all parameters of the layer, which are
// `value`.
void ExpectChecksum(const std::vector<ChecksumValues>& checksums, int64_t round,
                    float value) {
  ASSERT_THAT(checksums, SizeIs(1));
  EXPECT_EQ(checksums[0].layer, 0);
  EXPECT_EQ(checksums[0].round, round);
  EXPECT_EQ(FloatsOf(checksums[0].values), All(value));
}

TEST(ReplicaChecksumsTest, EachWorkerChecksumsTheRoundsOfCheckpoints) {
  for (const int rank : {0, 1}) {
    ChecksumWorker worker(SaveEvery(3), rank);
    std::vector<int64_t> rounds;
    for (int64_t round = 0; round < 7; ++round) {
      for (const ChecksumValues& sum : worker.Round(round)) {
        rounds.push_back(sum.round);
      }
    }
    EXPECT_THAT(rounds, ElementsAre(2, 5));
  }
}

TEST(ReplicaChecksumsTest, LastRoundHasAChecksumWhenTheWorkerLeaves) {
  for (const bool plan_ends : {false, true}) {
    ChecksumWorker worker(SaveEvery(0));
    if (plan_ends) {
      worker.worker().Enter(EpochAfter(
          *worker.worker().job(), [](Job& next) { next.switch_round = 1; }));
    }
    EXPECT_THAT(worker.Round(0), IsEmpty());
    EXPECT_THAT(worker.Round(1), IsEmpty());
    ExpectChecksum(worker.Leave(), 1, 2);
  }
}

TEST(ReplicaChecksumsTest, SavedLastRoundHasOneChecksum) {
  ChecksumWorker worker(SaveEvery(1));
  ExpectChecksum(worker.Round(0), 0, 1);
  EXPECT_THAT(worker.Leave(), IsEmpty());
}

// The caller updates the parameters between a round and the layer's next push.
TEST(ReplicaChecksumsTest,
     LayersThatTheCallerUpdatesHaveAChecksumAtTheNextPush) {
  ChecksumWorker worker(SaveEvery(1, OptimizerPlace::kWorker));
  EXPECT_THAT(worker.Round(0), IsEmpty());
  worker.Update(42);
  ExpectChecksum(worker.Push(1), 0, 42);
  EXPECT_THAT(worker.Receive(1), IsEmpty());
  worker.Update(43);
  ExpectChecksum(worker.Leave(), 1, 43);
}

// Initial values came from no round, so they are not checked.
TEST(ReplicaChecksumsTest, InitialValuesHaveNoChecksum) {
  ChecksumWorker worker(SaveEvery(1));
  EXPECT_THAT(worker.Leave(), IsEmpty());
}

// A report may have been lost at the end of the last epoch.
TEST(ReplicaChecksumsTest, NewEpochChecksumsTheRoundAgain) {
  ChecksumWorker worker(SaveEvery(1));
  worker.Round(0);
  ExpectChecksum(
      worker.worker().Enter(EpochAfter(*worker.worker().job())).checksums, 0,
      1);
}

void ExpectSample(const std::vector<ChecksumValues>& samples, int64_t round,
                  float value) {
  ASSERT_THAT(samples, SizeIs(1));
  EXPECT_EQ(samples[0].layer, 0);
  EXPECT_EQ(samples[0].round, round);
  ASSERT_TRUE(samples[0].sampled.has_value());
  EXPECT_EQ(samples[0].sampled->count(), kElements);
  EXPECT_EQ(FloatsOf(samples[0].values), All(value));
}

TEST(ReplicaSamplesTest, RoundIsSampledWhenTheNextOneIsPushed) {
  for (const auto place : {OptimizerPlace::kServer, OptimizerPlace::kWorker}) {
    ChecksumWorker worker(SaveEvery(0, place));
    EXPECT_THAT(worker.Samples(0), IsEmpty());
    worker.Update(42);
    // Without a heartbeat the worker does not know how long its steps take.
    EXPECT_THAT(worker.Samples(1), IsEmpty());
    worker.worker().machine().OnHeartbeat();
    worker.Update(43);
    // Two steps since the first one: the stride is 2.
    EXPECT_THAT(worker.Samples(2), IsEmpty());
    worker.Update(44);
    ExpectSample(worker.Samples(3), 2, 44);
  }
}

// A worker that goes on in another epoch has values that it has made.
TEST(ReplicaSamplesTest, FetchedAndInitialValuesAreNotSampled) {
  ChecksumWorker worker(SaveEvery(0));
  worker.worker().machine().OnHeartbeat();
  EXPECT_THAT(worker.Samples(0), IsEmpty());
  ExpectSample(worker.Samples(1), 0, 1);
}

// Single worker of a job. Its plan uses servers and ends with round 0.
class RerouteTest : public testing::Test {
 protected:
  RerouteTest()
      : worker(EpochAfter(*TestJob(1, 1, {VectorLayer("scale", kElements)}),
                          [](Job& job) { job.switch_round = 0; }),
               0) {
    worker.Start();
    worker.ReceiveResults(kInitialRound, {1, 2, 3, 4, 5, 6});
    EXPECT_TRUE(Begin(0).begun);
    worker.Push(0, FloatBuffer(All(0)));
    EXPECT_FALSE(worker.machine().Report().ready_to_switch);
    last_step = worker.ReceiveResults(0, {1, 2, 3, 4, 5, 6});
  }
  // Returns the job in the next epoch, whose plan uses a ring. The servers have
  // updated the layer so far, and have it as of round 0.
  JobPtr Rerouted() const {
    return EpochAfter(*worker.job(), [](Job& next) {
      next.switch_round = kInitialRound;
      next.routes[0].scheme = Scheme::kRing;
      next.history.first_step = 1;
      next.history.base_round = 0;
      next.workers = {{0, 1}};
    });
  }
  struct Begun {
    bool begun = false;
    Effects effects;
  };
  Begun Begin(int64_t step) {
    Outbox out;
    const bool begun = worker.machine().BeginStep(step, out);
    return {begun, Carry(out)};
  }

  WorkerUnderTest worker;
  Effects last_step;  // Effects of the end of step 0.
};

// A worker that has left stays in the job until no other worker needs its
// layers.
TEST_F(RerouteTest, LeaverFetchesNothingInANewPlan) {
  Outbox out;
  worker.machine().OnLeave(out);
  Carry(out);
  const Effects entered = worker.Enter(EpochAfter(*Rerouted(), [](Job& job) {
    job.workers = {{1, 1}};
    job.crew.left_workers = {0};
  }));
  EXPECT_THAT(entered.sent, IsEmpty());
  EXPECT_EQ(worker.syncer().Missing(), "");
  EXPECT_EQ(worker.syncer().done_round(), 0);
}

TEST_F(RerouteTest, NoStepBeginsAfterThePlansLast) {
  ASSERT_THAT(last_step.messages, SizeIs(1));
  EXPECT_EQ(std::get<ReadyToSwitch>(last_step.messages[0]).epoch,
            worker.job()->epoch);
  EXPECT_TRUE(worker.machine().Report().ready_to_switch);
  EXPECT_FALSE(Begin(1).begun);
}

TEST_F(RerouteTest, LayersThatServersUpdatedAreFetchedWhenTheNextStepBegins) {
  // Entering the epoch fetches nothing, because the caller may be using the
  // parameters.
  const Effects entered = worker.Enter(Rerouted());
  EXPECT_THAT(entered.sent, IsEmpty());
  EXPECT_FALSE(worker.machine().Report().fetching);
  EXPECT_FALSE(worker.machine().Report().ready_to_switch);

  const Begun first = Begin(1);
  EXPECT_FALSE(first.begun);
  const auto pulls = Kind(first.effects, FrameKind::kPull);
  ASSERT_THAT(pulls, SizeIs(1));
  EXPECT_EQ(pulls[0].frame.header.round, 0);
  EXPECT_EQ(pulls[0].to, worker.ShardOf(0));
  EXPECT_TRUE(worker.machine().Report().fetching);
  EXPECT_FALSE(Begin(1).begun);

  worker.ReceiveResults(0, {6, 5, 4, 3, 2, 1});
  const Effects state =
      DeliverAll(worker.machine(), worker.ShardOf(0),
                 FramesOf(*worker.job(), worker.ShardOf(0), FrameKind::kResult,
                          0, 0, 0, {7, 8, 9, 10, 11, 12}, /*part=*/1));
  ASSERT_THAT(state.done, SizeIs(1));
  EXPECT_EQ(state.done[0].round, 0);
  EXPECT_EQ(FloatsOf(worker.parameters())[0], 6);
  EXPECT_TRUE(Begin(1).begun);
  // A single worker on a ring is done with the round at once.
  EXPECT_THAT(worker.Push(1, FloatBuffer(All(0))).done, SizeIs(1));
  // The velocity comes from the server: 0.9 * 7, times the learning rate 0.01.
  EXPECT_NEAR(FloatsOf(worker.parameters())[0], 6 - 0.063, 0.01);
}

}  // namespace
}  // namespace nereus
