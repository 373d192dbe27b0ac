// Order of sending and gathering on one worker's machine: Overlap::kNone and
// kDecoupled, and fusion. send_plan_test.cc tests the plan by itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/machine_harness.h"
#include "worker/machine/worker_machine.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// Number of elements of a layer; four layers fill the window of gathering.
constexpr int64_t kElements = int64_t{1} << 22;

JobOptions Options(Overlap overlap) {
  JobOptions options;
  options.overlap = overlap;
  options.optimizer.momentum = 0.0f;
  return options;
}

JobPtr ServerJob(Overlap overlap, int layers, int64_t elements = kElements) {
  std::vector<LayerSpec> specs;
  for (int i = 0; i < layers; ++i) {
    specs.push_back(VectorLayer("layer" + std::to_string(i), elements));
  }
  return TestJob(2, 1, std::move(specs), Options(overlap));
}

JobPtr PeerJob(Overlap overlap, Scheme scheme, int layers) {
  std::vector<LayerSpec> specs;
  for (int i = 0; i < layers; ++i) {
    specs.push_back(FactorLayer("fc" + std::to_string(i), 5, 7, true, 2));
  }
  return TestJob(2, 1, std::move(specs), Options(overlap), scheme);
}

// Worker that has got its first values.
class Worker {
 public:
  Worker(JobPtr job, int rank) : job_(std::move(job)), rank_(rank) {
    std::vector<LayerMemory> memory;
    for (const LayerSpec& layer : job_->layers) {
      memory.push_back(
          {Buffer::AllocateZeroed(layer.parameters * 4), Buffer()});
    }
    machine_ = std::make_unique<WorkerMachine>(job_, rank, std::move(memory));
    Outbox out;
    machine_->Start(out);
    Carry(out);
    for (size_t layer = 0; layer < job_->layers.size(); ++layer) {
      ReceiveResult(static_cast<int>(layer), kInitialRound);
    }
  }

  Effects Push(int layer, int64_t round) {
    const LayerSpec& spec = job_->layers[layer];
    Outbox out;
    const absl::Status status =
        job_->routes[layer].scheme == Scheme::kFactor
            ? machine_->OnPushFactors(
                  layer, round,
                  {FloatBuffer(IntegerValues(spec.rows * spec.m, rank_)),
                   FloatBuffer(IntegerValues(spec.rows * spec.n, round)),
                   Buffer()},
                  out)
            : machine_->OnPush(layer, round,
                               Buffer::AllocateZeroed(spec.parameters * 4),
                               out);
    EXPECT_TRUE(status.ok()) << status;
    return Carry(out);
  }
  // Pushes all layers, last first. Returns the effects of the last push.
  Effects PushAll(int64_t round) {
    Effects last;
    for (int i = static_cast<int>(job_->layers.size()) - 1; i >= 0; --i) {
      last = Push(i, round);
    }
    return last;
  }
  Effects Wait(int layer) {
    Outbox out;
    machine_->OnWait(layer, out);
    return Carry(out);
  }
  Effects Enter(JobPtr job) {
    job_ = std::move(job);
    Outbox out;
    machine_->OnEpoch(job_, out);
    return Carry(out);
  }
  Effects ReceiveResult(int layer, int64_t round) {
    Effects all;
    for (const Chunk& chunk : job_->placement.layer_chunks(layer)) {
      all = DeliverAll(
          *machine_, PeerId::Shard(0),
          FramesOf(*job_, PeerId::Shard(0), FrameKind::kResult, layer,
                   chunk.index, round, std::vector<float>(chunk.length)));
    }
    return all;
  }

  WorkerMachine& machine() { return *machine_; }
  const Job& job() const { return *job_; }
  int64_t done(int layer) { return machine_->syncer(layer).done_round(); }

 private:
  JobPtr job_;
  const int rank_;
  std::unique_ptr<WorkerMachine> machine_;
};

// Returns the layers of the frames of a kind, in order, without repetitions.
std::vector<int> LayersIn(const Effects& effects, FrameKind kind) {
  std::vector<int> layers;
  for (const auto& sent : effects.sent) {
    const auto layer = static_cast<int>(sent.frame.header.layer);
    if (sent.frame.header.kind != kind) continue;
    if (layers.empty() || layers.back() != layer) layers.push_back(layer);
  }
  return layers;
}

// Delivers to `to` what `from` sent. Returns the effects.
Effects Bring(Worker& to, int from, const Effects& effects) {
  Effects all;
  for (const auto& sent : effects.sent) {
    if (sent.to.has_value() && sent.to->role == Role::kShard) continue;
    const auto delivery =
        Deliver(to.machine(), PeerId::Worker(from), sent.frame);
    EXPECT_TRUE(delivery.ok()) << delivery.status();
    for (const auto& each : delivery->effects.sent) all.sent.push_back(each);
    for (const auto& each : delivery->effects.done) all.done.push_back(each);
  }
  return all;
}

TEST(OverlapTest, WithoutOverlapTheStepGoesAsAWhole) {
  Worker worker(ServerJob(Overlap::kNone, 3, 10), 0);
  for (int64_t round = 0; round < 2; ++round) {
    EXPECT_THAT(worker.Push(2, round).sent, IsEmpty());
    EXPECT_THAT(worker.Push(0, round).sent, IsEmpty());
    EXPECT_THAT(LayersIn(worker.Push(1, round), FrameKind::kContribution),
                ElementsAre(2, 0, 1));
    for (int layer = 0; layer < 3; ++layer) worker.ReceiveResult(layer, round);
  }
}

JobPtr FusedJob(int64_t fusion_bytes, int layers,
                Overlap overlap = Overlap::kWaitFree) {
  JobOptions options = Options(overlap);
  options.fusion_bytes = fusion_bytes;
  std::vector<LayerSpec> specs;
  for (int i = 0; i < layers; ++i) {
    specs.push_back(VectorLayer("layer" + std::to_string(i), 10));
  }
  return TestJob(2, 1, std::move(specs), options);
}

TEST(FusionTest, LayersAreDeferredUntilThereAreEnoughBytes) {
  Worker worker(FusedJob(100, 8), 0);
  for (int64_t round = 0; round < 2; ++round) {
    std::vector<std::vector<int>> sent;
    for (int layer = 7; layer >= 0; --layer) {
      sent.push_back(
          LayersIn(worker.Push(layer, round), FrameKind::kContribution));
    }
    // A layer has 40 bytes. The rest goes with the last layer.
    EXPECT_THAT(sent, ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(7, 6, 5),
                                  IsEmpty(), IsEmpty(), ElementsAre(4, 3, 2),
                                  IsEmpty(), ElementsAre(1, 0)));
    for (int layer = 0; layer < 8; ++layer) worker.ReceiveResult(layer, round);
  }
}

TEST(FusionTest, WithoutAThresholdLayersGoAtOnce) {
  for (const int64_t bytes : {kNoFusion, int64_t{0}, int64_t{40}}) {
    Worker worker(FusedJob(bytes, 3), 0);
    EXPECT_THAT(LayersIn(worker.Push(2, 0), FrameKind::kContribution),
                ElementsAre(2));
    EXPECT_THAT(LayersIn(worker.Push(1, 0), FrameKind::kContribution),
                ElementsAre(1));
  }
}

// No wait lasts for ever, in whatever order the caller pushes and waits.
TEST(FusionTest, ALayerThatTheCallerWaitsForIsNotDeferred) {
  for (const Overlap overlap :
       {Overlap::kWaitFree, Overlap::kDecoupled, Overlap::kNone}) {
    Worker worker(FusedJob(1000, 3, overlap), 0);
    EXPECT_THAT(worker.Push(2, 0).sent, IsEmpty());
    EXPECT_THAT(worker.Push(1, 0).sent, IsEmpty());
    EXPECT_THAT(LayersIn(worker.Wait(0), FrameKind::kContribution), IsEmpty());
    EXPECT_THAT(LayersIn(worker.Wait(1), FrameKind::kContribution),
                ElementsAre(2, 1));
    EXPECT_THAT(LayersIn(worker.Push(0, 0), FrameKind::kContribution),
                ElementsAre(0));
  }
}

TEST(FusionTest, ADeferredLayerStaysDeferredInTheNextEpoch) {
  Worker worker(FusedJob(80, 3), 0);
  worker.Push(2, 0);
  EXPECT_THAT(LayersIn(worker.Enter(EpochAfter(worker.job())),
                       FrameKind::kContribution),
              IsEmpty());
  worker.machine().Freeze();
  EXPECT_THAT(worker.Push(1, 0).sent, IsEmpty());
  EXPECT_THAT(LayersIn(worker.Enter(EpochAfter(worker.job())),
                       FrameKind::kContribution),
              ElementsAre(2, 1));
}

// A layer sends two rows of five and seven values, as 16 bits.
TEST(FusionTest, TheThresholdCountsBytesOnTheWire) {
  JobOptions options = Options(Overlap::kWaitFree);
  options.fusion_bytes = 2 * 2 * (5 + 7) * 2;
  const JobPtr job =
      TestJob(2, 1,
              {FactorLayer("a", 5, 7, true, 2), FactorLayer("b", 5, 7, true, 2),
               FactorLayer("c", 5, 7, true, 2)},
              options, Scheme::kFactor, WireType::kBfloat16);
  Worker worker(job, 0);
  EXPECT_THAT(worker.Push(2, 0).sent, IsEmpty());
  EXPECT_THAT(LayersIn(worker.Push(1, 0), FrameKind::kFactors),
              ElementsAre(2, 1));
}

TEST(OverlapTest, WithoutOverlapANewEpochSendsNoHalfStep) {
  Worker worker(ServerJob(Overlap::kNone, 2, 10), 0);
  worker.Push(1, 0);
  EXPECT_THAT(worker.Enter(EpochAfter(worker.job())).sent, IsEmpty());
  EXPECT_THAT(LayersIn(worker.Push(0, 0), FrameKind::kContribution),
              ElementsAre(1, 0));
  // A step that an epoch has interrupted goes again as a whole.
  EXPECT_THAT(LayersIn(worker.Enter(EpochAfter(worker.job())),
                       FrameKind::kContribution),
              ElementsAre(0, 1));
}

TEST(OverlapTest, WithoutOverlapAStepPushedWhileFrozenGoesInTheNextEpoch) {
  Worker worker(ServerJob(Overlap::kNone, 2, 10), 0);
  worker.Push(1, 0);
  worker.machine().Freeze();
  EXPECT_THAT(worker.Push(0, 0).sent, IsEmpty());
  EXPECT_THAT(LayersIn(worker.Enter(EpochAfter(worker.job())),
                       FrameKind::kContribution),
              ElementsAre(1, 0));
}

// Other workers may be faster: their factors come before this worker has sent
// its own, which they need.
TEST(OverlapTest, WithoutOverlapNoRoundIsDoneBeforeItIsSent) {
  Worker a(PeerJob(Overlap::kNone, Scheme::kFactor, 2), 0);
  Worker b(PeerJob(Overlap::kNone, Scheme::kFactor, 2), 1);
  a.Push(1, 0);
  const Effects from_a = a.Push(0, 0);
  b.Push(1, 0);
  EXPECT_THAT(Bring(b, 0, from_a).done, IsEmpty());
  const Effects from_b = b.Push(0, 0);
  EXPECT_THAT(from_b.done, SizeIs(2));
  EXPECT_THAT(Bring(a, 1, from_b).done, SizeIs(2));
}

TEST(OverlapTest, WaitFreeBackpropagationAsksForNoResults) {
  Worker worker(ServerJob(Overlap::kWaitFree, 3), 0);
  for (const int layer : {2, 1, 0}) {
    const Effects effects = worker.Push(layer, 0);
    EXPECT_THAT(LayersIn(effects, FrameKind::kContribution),
                ElementsAre(layer));
    EXPECT_THAT(LayersIn(effects, FrameKind::kPull), IsEmpty());
  }
  EXPECT_THAT(worker.Wait(0).sent, IsEmpty());
}

TEST(OverlapTest, DecoupledGathersInForwardOrderAWindowAhead) {
  Worker worker(ServerJob(Overlap::kDecoupled, 7), 0);
  for (int64_t round = 0; round < 2; ++round) {
    for (int layer = 6; layer > 0; --layer) {
      EXPECT_THAT(LayersIn(worker.Push(layer, round), FrameKind::kPull),
                  IsEmpty());
    }
    EXPECT_THAT(LayersIn(worker.Push(0, round), FrameKind::kPull),
                ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(LayersIn(worker.ReceiveResult(1, round), FrameKind::kPull),
                ElementsAre(4));
    EXPECT_THAT(LayersIn(worker.ReceiveResult(0, round), FrameKind::kPull),
                ElementsAre(5));
    EXPECT_THAT(LayersIn(worker.ReceiveResult(2, round), FrameKind::kPull),
                ElementsAre(6));
    for (const int layer : {3, 4, 5, 6}) worker.ReceiveResult(layer, round);
    EXPECT_EQ(worker.done(6), round);
  }
}

TEST(OverlapTest, ALayerThatTheCallerWaitsForIsGatheredAtOnce) {
  Worker worker(ServerJob(Overlap::kDecoupled, 7), 0);
  EXPECT_THAT(worker.Wait(3).sent, IsEmpty());  // The layer is not pushed.
  worker.Push(6, 0);
  EXPECT_THAT(LayersIn(worker.Wait(6), FrameKind::kPull), ElementsAre(6));
  EXPECT_THAT(worker.Wait(6).sent, IsEmpty());
  worker.ReceiveResult(6, 0);
  for (int layer = 5; layer > 0; --layer) worker.Push(layer, 0);
  EXPECT_THAT(LayersIn(worker.Push(0, 0), FrameKind::kPull),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(LayersIn(worker.Wait(5), FrameKind::kPull), ElementsAre(5));
}

// The caller begins the next step without waiting for all layers.
TEST(OverlapTest, ANewStepGathersTheOpenLayersOfTheLast) {
  Worker worker(ServerJob(Overlap::kDecoupled, 7), 0);
  worker.PushAll(0);
  worker.ReceiveResult(0, 0);
  worker.ReceiveResult(1, 0);
  EXPECT_THAT(LayersIn(worker.Push(0, 1), FrameKind::kPull), ElementsAre(6));
}

TEST(OverlapTest, ANewEpochAsksAgainForMissingResults) {
  Worker worker(ServerJob(Overlap::kDecoupled, 4), 0);
  worker.PushAll(0);
  worker.ReceiveResult(0, 0);
  worker.machine().Freeze();
  EXPECT_THAT(worker.Wait(3).sent, IsEmpty());
  const Effects entered = worker.Enter(EpochAfter(worker.job()));
  EXPECT_THAT(LayersIn(entered, FrameKind::kContribution),
              ElementsAre(1, 2, 3));
  EXPECT_THAT(LayersIn(entered, FrameKind::kPull), ElementsAre(1, 2, 3));
}

// Results come in any order. Each is asked for once.
TEST(OverlapTest, ManySmallLayersAreAllGathered) {
  constexpr int kLayers = 100;  // Layers of 1 MiB.
  Worker worker(ServerJob(Overlap::kDecoupled, kLayers, 1 << 18), 0);
  std::multiset<int> asked;
  const auto count = [&](const Effects& effects) {
    for (const int layer : LayersIn(effects, FrameKind::kPull)) {
      asked.insert(layer);
    }
  };
  count(worker.PushAll(0));
  EXPECT_EQ(asked.size(), 64u);
  for (int i = 0; i < kLayers; ++i) {
    count(worker.ReceiveResult(i % 2 == 0 ? i + 1 : i - 1, 0));
  }
  EXPECT_EQ(asked.size(), size_t{kLayers});
  EXPECT_EQ(std::set<int>(asked.begin(), asked.end()).size(), asked.size());
}

TEST(OverlapTest, FactorsAreMultipliedWhenTheyAreNeeded) {
  Worker a(PeerJob(Overlap::kDecoupled, Scheme::kFactor, 2), 0);
  Worker b(PeerJob(Overlap::kDecoupled, Scheme::kFactor, 2), 1);
  Bring(b, 0, a.Push(1, 0));
  EXPECT_THAT(b.Push(1, 0).done, IsEmpty());  // All factors have come.
  EXPECT_EQ(b.done(1), kInitialRound);
  EXPECT_THAT(b.Wait(1).done, SizeIs(1));
  // When the last layer is pushed, all layers are gathered.
  Bring(b, 0, a.Push(0, 0));
  EXPECT_THAT(b.Push(0, 0).done, SizeIs(1));
  EXPECT_EQ(b.done(0), 0);
}

TEST(OverlapTest, MeansGoAroundARingOnceAWorkerNeedsThem) {
  Worker a(PeerJob(Overlap::kDecoupled, Scheme::kRing, 2), 0);
  Worker b(PeerJob(Overlap::kDecoupled, Scheme::kRing, 2), 1);
  Effects from_a = a.Push(1, 0);
  Effects from_b = b.Push(1, 0);
  EXPECT_THAT(Bring(b, 0, from_a).sent, IsEmpty());
  EXPECT_THAT(Bring(a, 1, from_b).sent, IsEmpty());
  EXPECT_EQ(a.done(1), kInitialRound);
  // Worker 0 waits: its mean makes worker 1 send its own.
  const Effects asked = a.Wait(1);
  EXPECT_THAT(LayersIn(asked, FrameKind::kMean), ElementsAre(1));
  const Effects answered = Bring(b, 0, asked);
  EXPECT_EQ(b.done(1), 0);
  Bring(a, 1, answered);
  EXPECT_EQ(a.done(1), 0);
}

}  // namespace
}  // namespace nereus
