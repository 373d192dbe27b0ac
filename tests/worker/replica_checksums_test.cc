// Checksums of a worker's replica: their rounds, their values, and the time
// when the worker reports them. replica_check_test.cc tests how the coordinator
// compares them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tests/testing/machine_harness.h"
#include "tests/worker/worker_under_test.h"
#include "worker/machine/worker_machine.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kElements = 6;

std::vector<float> All(float value) {
  return std::vector<float>(kElements, value);
}

JobOptions SaveEvery(int64_t steps,
                     OptimizerPlace place = OptimizerPlace::kServer) {
  JobOptions options;
  options.checkpoint_every = steps;
  options.optimizer_place = place;
  return options;
}

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

TEST(ReplicaChecksumsTest, EveryWorkerChecksumsEachRoundThatIsACheckpoint) {
  for (const int rank : {0, 1}) {
    ChecksumWorker worker(SaveEvery(1), rank);
    for (int64_t round = 0; round < 3; ++round) {
      ExpectChecksum(worker.Round(round), round, static_cast<float>(round + 1));
    }
  }
}

TEST(ReplicaChecksumsTest, OtherRoundsHaveNoChecksum) {
  ChecksumWorker worker(SaveEvery(3));
  std::vector<int64_t> rounds;
  for (int64_t round = 0; round < 7; ++round) {
    for (const ChecksumValues& sum : worker.Round(round)) {
      rounds.push_back(sum.round);
    }
  }
  EXPECT_THAT(rounds, ElementsAre(2, 5));
}

TEST(ReplicaChecksumsTest, LastRoundHasAChecksumWhenTheWorkerLeaves) {
  ChecksumWorker worker(SaveEvery(0));
  EXPECT_THAT(worker.Round(0), IsEmpty());
  EXPECT_THAT(worker.Round(1), IsEmpty());
  ExpectChecksum(worker.Leave(), 1, 2);
}

TEST(ReplicaChecksumsTest, SavedLastRoundHasOneChecksum) {
  ChecksumWorker worker(SaveEvery(1));
  ExpectChecksum(worker.Round(0), 0, 1);
  EXPECT_THAT(worker.Leave(), IsEmpty());
}

TEST(ReplicaChecksumsTest, LastRoundBeforeAnotherPlanHasAChecksum) {
  ChecksumWorker worker(SaveEvery(0));
  worker.worker().Enter(EpochAfter(*worker.worker().job(),
                                   [](Job& next) { next.switch_round = 1; }));
  EXPECT_THAT(worker.Round(0), IsEmpty());
  EXPECT_THAT(worker.Round(1), IsEmpty());
  ExpectChecksum(worker.Leave(), 1, 2);
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

// With --quorum=solo workers may be several steps apart, so replicas may
// differ.
TEST(ReplicaChecksumsTest, ReplicasThatMayDifferHaveNoChecksum) {
  JobOptions options = SaveEvery(1);
  options.rounds.quorum = Quorum::kSolo;
  ChecksumWorker worker(options);
  EXPECT_THAT(worker.Round(0), IsEmpty());
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

// Samples.

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

TEST(ReplicaSamplesTest, ReplicasThatMayDifferHaveNoSamples) {
  JobOptions options = SaveEvery(0);
  options.rounds.quorum = Quorum::kSolo;
  ChecksumWorker worker(options);
  worker.worker().machine().OnHeartbeat();
  worker.Samples(0);
  EXPECT_THAT(worker.Samples(1), IsEmpty());
}

// Machine of three layers, not started.
struct ThreeLayerMachine {
  static JobPtr MakeTestJob() {
    return TestJob(
        2, 1, {VectorLayer("a", 1), VectorLayer("b", 1), VectorLayer("c", 1)});
  }
  ThreeLayerMachine() {
    std::vector<LayerMemory> memory;
    for (int layer = 0; layer < 3; ++layer) {
      memory.push_back({Buffer::AllocateZeroed(4), Buffer()});
    }
    machine.emplace(job, 0, std::move(memory));
  }
  // Gives the machine the checksum of a layer, or of a sample of the layer.
  std::optional<ReplicaChecksums> Sum(int layer, int64_t round, uint32_t crc,
                                      bool is_sample = false) {
    ChecksumValues checked = {layer, round, Buffer()};
    if (is_sample) checked.sampled = SampledElementsOf(layer, round, 1);
    return machine->OnChecksum(checked, crc);
  }
  JobPtr job = MakeTestJob();
  std::optional<WorkerMachine> machine;
};

TEST(ReplicaChecksumsTest, RoundIsReportedWhenTheLastChecksumComes) {
  ThreeLayerMachine three;
  EXPECT_EQ(three.Sum(2, 7, 12), std::nullopt);
  EXPECT_EQ(three.Sum(0, 7, 10), std::nullopt);
  const auto all = three.Sum(1, 7, 11);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->round, 7);
  EXPECT_THAT(all->layers, ElementsAre(10, 11, 12));
  // The report clears the checksums, so round 7 begins again.
  EXPECT_EQ(three.Sum(0, 7, 10), std::nullopt);
}

TEST(ReplicaChecksumsTest, RoundsAreKeptApart) {
  ThreeLayerMachine three;
  three.Sum(0, 7, 10);
  three.Sum(0, 8, 20);
  three.Sum(1, 7, 11);
  three.Sum(1, 8, 21);
  EXPECT_THAT(three.Sum(2, 7, 12)->layers, ElementsAre(10, 11, 12));
  EXPECT_THAT(three.Sum(2, 8, 22)->layers, ElementsAre(20, 21, 22));
}

// A worker that reports round 8 forgets the checksums of round 7.
TEST(ReplicaChecksumsTest, LateChecksumOfAnOlderRoundDoesNotCompleteIt) {
  ThreeLayerMachine three;
  three.Sum(0, 7, 10);
  three.Sum(1, 7, 11);
  for (const int layer : {0, 1, 2}) three.Sum(layer, 8, 20);
  EXPECT_EQ(three.Sum(2, 7, 12), std::nullopt);
}

TEST(ReplicaChecksumsTest, NewEpochForgetsChecksums) {
  ThreeLayerMachine three;
  three.Sum(0, 7, 10);
  three.Sum(1, 7, 11);
  Outbox out;
  three.machine->OnEpoch(EpochAfter(*three.job), out);
  EXPECT_EQ(three.Sum(2, 7, 12), std::nullopt);
}

TEST(ReplicaSamplesTest, SampleIsApartFromTheChecksumsOfItsRound) {
  ThreeLayerMachine three;
  for (const int layer : {0, 1}) {
    EXPECT_EQ(three.Sum(layer, 7, 10), std::nullopt);
    EXPECT_EQ(three.Sum(layer, 7, 20, /*is_sample=*/true), std::nullopt);
  }
  const auto sample = three.Sum(2, 7, 22, /*is_sample=*/true);
  ASSERT_TRUE(sample.has_value());
  EXPECT_TRUE(sample->is_sample);
  EXPECT_THAT(sample->layers, ElementsAre(20, 20, 22));
  const auto all = three.Sum(2, 7, 12);
  ASSERT_TRUE(all.has_value());
  EXPECT_FALSE(all->is_sample);
  EXPECT_THAT(all->layers, ElementsAre(10, 10, 12));
}

// A layer whose values cannot be read has no checksum, so its rounds stay
// incomplete.
TEST(ReplicaSamplesTest, FewIncompleteSamplesAreKept) {
  ThreeLayerMachine three;
  for (int64_t round = 0; round < 6; ++round) {
    three.Sum(0, round, 10, /*is_sample=*/true);
    three.Sum(1, round, 10, /*is_sample=*/true);
  }
  EXPECT_EQ(three.Sum(2, 1, 10, /*is_sample=*/true), std::nullopt);
  EXPECT_TRUE(three.Sum(2, 5, 10, /*is_sample=*/true).has_value());
}

}  // namespace
}  // namespace nereus
