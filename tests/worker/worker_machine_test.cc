#include "worker/machine/worker_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/tensor/device_layer.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Returns a job of three workers and two shards: `large` has a chunk on each
// shard, `fc` goes by factors.
JobPtr TwoLayers() {
  return TestJob(3, 2,
                 {VectorLayer("large", kChunkElementsMax + 5),
                  FactorLayer("fc", 2, 3, false, 4)},
                 {}, Scheme::kFactor);
}

// A device that has the layers, and counts the state that it is asked for.
class CountingDevice final : public DeviceLayer {
 public:
  bool IsThere(int64_t) override { return true; }
  absl::Status Await(int64_t) override { return absl::OkStatus(); }
  Buffer Allocate(int64_t bytes) override {
    return Buffer::AllocateZeroed(bytes);
  }
  Buffer MakeState(int64_t bytes) override {
    state_bytes.push_back(bytes);
    return Buffer::AllocateZeroed(bytes);
  }

  std::vector<int64_t> state_bytes;  // Argument of each call of MakeState.
};

struct StartedWorker {
  explicit StartedWorker(const std::shared_ptr<DeviceLayer>& device = nullptr)
      : job(TwoLayers()) {
    std::vector<LayerMemory> memory;
    for (const LayerSpec& layer : job->layers) {
      memory.push_back(
          {Buffer::AllocateZeroed(layer.parameters * 4), Buffer()});
      memory.back().device = device;
    }
    machine = std::make_unique<WorkerMachine>(job, 1, std::move(memory));
    Outbox out;
    machine->Start(out);
    started = Carry(out);
  }
  // Delivers the initial parameters of every layer.
  std::vector<LayerDone> ReceiveInitial() {
    std::vector<LayerDone> done;
    for (const Chunk& chunk : job->placement.chunks()) {
      const PeerId shard = PeerId::Shard(chunk.shard);
      for (const LayerDone& each :
           DeliverAll(*machine, shard,
                      FramesOf(*job, shard, FrameKind::kResult, chunk.layer,
                               chunk.index, kInitialRound,
                               IntegerValues(chunk.length, 0)))
               .done) {
        done.push_back(each);
      }
    }
    return done;
  }

  JobPtr job;
  std::unique_ptr<WorkerMachine> machine;
  Effects started;
};

TEST(WorkerMachineTest, AsksForEveryChunkAndReportsLayersThatAreDone) {
  StartedWorker worker;
  ASSERT_EQ(worker.started.sent.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Chunk& chunk = worker.job->placement.chunks()[i];
    const auto& sent = worker.started.sent[i];
    EXPECT_EQ(sent.to, PeerId::Shard(chunk.shard));
    EXPECT_EQ(sent.frame.header.kind, FrameKind::kPull);
    EXPECT_EQ(sent.frame.header.layer, static_cast<uint32_t>(chunk.layer));
    EXPECT_EQ(sent.frame.header.chunk, static_cast<uint32_t>(chunk.index));
  }
  const auto done = worker.ReceiveInitial();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].layer, 0);
  EXPECT_EQ(done[1].layer, 1);
}

TEST(WorkerMachineTest, ResultsForADeviceAreToldChunkByChunk) {
  for (const bool has_device : {true, false}) {
    StartedWorker worker(has_device ? std::make_shared<CountingDevice>()
                                    : nullptr);
    worker.ReceiveInitial();
    Outbox out;
    ASSERT_TRUE(worker.machine
                    ->OnPush(0, 0,
                             FloatBuffer(std::vector<float>(
                                 worker.job->layers[0].parameters, 1.0f)),
                             out)
                    .ok());
    std::vector<Effects> effects;
    for (const int index : {1, 0}) {
      const Chunk& chunk = worker.job->placement.layer_chunks(0)[index];
      const PeerId shard = PeerId::Shard(chunk.shard);
      effects.push_back(
          DeliverAll(*worker.machine, shard,
                     FramesOf(*worker.job, shard, FrameKind::kResult, 0, index,
                              0, IntegerValues(chunk.length, 1))));
    }
    ASSERT_EQ(effects[0].parts.size(), has_device ? 1u : 0u);
    ASSERT_EQ(effects[1].parts.size(), has_device ? 1u : 0u);
    EXPECT_TRUE(effects[0].done.empty());
    EXPECT_EQ(effects[1].done.size(), 1u);
    if (!has_device) continue;
    EXPECT_EQ(effects[0].parts[0].offset, kChunkElementsMax);
    EXPECT_EQ(effects[0].parts[0].count, 5);
    EXPECT_EQ(effects[1].parts[0].offset, 0);
    EXPECT_EQ(effects[1].parts[0].count, kChunkElementsMax);
  }
}

TEST(WorkerMachineTest, DeviceMakesTheStateOfLayersThatWorkersOwn) {
  const auto device = std::make_shared<CountingDevice>();
  const StartedWorker worker(device);
  EXPECT_EQ(device->state_bytes, std::vector<int64_t>({2 * 3 * 4}));
}

TEST(WorkerMachineDeathTest, EveryLayerNeedsMemoryAndTheWorkerAPlaceInTheJob) {
  EXPECT_DEATH(WorkerMachine(TwoLayers(), 0, {LayerMemory()}),
               "1 memories, 2 layers");
  EXPECT_DEATH(WorkerMachine(TwoLayers(), 3, std::vector<LayerMemory>(2)),
               "worker 3");
}

struct RefusalCase {
  const char* name;
  PeerId from;
  std::function<void(FrameHeader&)> spoil;
  const char* message;
};

constexpr char kWrongKind[] =
    "workers take results and verdicts of servers, and other kinds of frames "
    "of "
    "workers";

void CheckRefusal(const RefusalCase& refusal, FrameHeader header,
                  StartedWorker& worker) {
  ASSERT_TRUE(worker.machine->OnHeader(header.sender, header).ok());
  refusal.spoil(header);
  const absl::Status status =
      worker.machine->OnHeader(refusal.from, header).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.message));
  EXPECT_THAT(std::string(status.message()), HasSubstr(DescribeFrame(header)));
}

std::string NameOf(const testing::TestParamInfo<RefusalCase>& info) {
  return info.param.name;
}

// Refusals of a result for layer 0, chunk 1, round 0.
class ResultRefusalTest : public testing::TestWithParam<RefusalCase> {};

TEST_P(ResultRefusalTest, IsRefusedWithTheReason) {
  StartedWorker worker;
  worker.ReceiveInitial();
  Outbox out;
  ASSERT_TRUE(worker.machine
                  ->OnPush(0, 0,
                           Buffer::AllocateZeroed((kChunkElementsMax + 5) * 4),
                           out)
                  .ok());
  // Shard 0 has the full chunk, and shard 1 the rest.
  ASSERT_EQ(worker.job->placement.layer_chunks(0)[1].shard, 1);
  CheckRefusal(GetParam(),
               FramesOf(*worker.job, PeerId::Shard(1), FrameKind::kResult, 0, 1,
                        0, IntegerValues(5, 0))[0]
                   .header,
               worker);
}

INSTANTIATE_TEST_SUITE_P(
    All, ResultRefusalTest,
    testing::Values(
        RefusalCase{"Job", PeerId::Shard(1), [](auto& h) { h.job = 0; },
                    "job is 0, expected 77"},
        RefusalCase{"Epoch", PeerId::Shard(1), [](auto& h) { h.epoch = 4; },
                    "epoch is 4, expected 1"},
        RefusalCase{"Sender", PeerId::Shard(0), [](auto&) {},
                    "sender is shard 1, expected shard 0"},
        RefusalCase{"Layer", PeerId::Shard(1), [](auto& h) { h.layer = 2; },
                    "the model has 2 layers"},
        RefusalCase{"RoundOfALayerByFactors", PeerId::Shard(1),
                    [](auto& h) {
                      h.layer = 1;
                      h.chunk = 0;
                      h.payload_bytes = 24;
                    },
                    "this worker is at round -1"},
        RefusalCase{"WireType", PeerId::Shard(1),
                    [](auto& h) { h.wire = WireType::kNone; },
                    "wire type is 0, expected 1"},
        RefusalCase{"Contribution", PeerId::Shard(1),
                    [](auto& h) { h.kind = FrameKind::kContribution; },
                    kWrongKind},
        RefusalCase{"Pull", PeerId::Shard(1),
                    [](auto& h) {
                      h.kind = FrameKind::kPull;
                      h.wire = WireType::kNone;
                    },
                    kWrongKind},
        RefusalCase{"Hello", PeerId::Shard(1),
                    [](auto& h) {
                      h.kind = FrameKind::kHello;
                      h.wire = WireType::kNone;
                    },
                    kWrongKind},
        RefusalCase{"FactorsOfAShard", PeerId::Shard(1),
                    [](auto& h) { h.kind = FrameKind::kFactors; }, kWrongKind}),
    NameOf);

// Refusals of factors from worker 2: the input matrix, 4 x 3, of layer 1 in
// round 0.
class FactorsRefusalTest : public testing::TestWithParam<RefusalCase> {};

TEST_P(FactorsRefusalTest, IsRefusedWithTheReason) {
  StartedWorker worker;
  worker.ReceiveInitial();
  CheckRefusal(GetParam(),
               FramesOf(*worker.job, PeerId::Worker(2), FrameKind::kFactors, 1,
                        /*chunk=*/2, 0, IntegerValues(12, 0), kInputMatrix)[0]
                   .header,
               worker);
}

INSTANTIATE_TEST_SUITE_P(
    All, FactorsRefusalTest,
    testing::Values(
        RefusalCase{"Sender", PeerId::Worker(0), [](auto&) {},
                    "sender is worker 2, expected worker 0"},
        RefusalCase{"Shard", PeerId::Shard(0),
                    [](auto& h) { h.sender = PeerId::Shard(0); }, kWrongKind},
        RefusalCase{"LayerByServer", PeerId::Worker(2),
                    [](auto& h) { h.layer = 0; },
                    "layer large goes by scheme server"},
        RefusalCase{"Matrix", PeerId::Worker(2), [](auto& h) { h.part = 2; },
                    "the part must be 0 or 1, the number of a factor"},
        RefusalCase{"LengthOfTheOtherMatrix", PeerId::Worker(2),
                    [](auto& h) { h.part = kOutputGradientMatrix; },
                    "the payload must have 32 bytes"},
        RefusalCase{"OthersFactors", PeerId::Worker(2),
                    [](auto& h) { h.chunk = 0; },
                    "a worker sends only its own contribution"},
        RefusalCase{"PositionAfterTheLast", PeerId::Worker(2),
                    [](auto& h) { h.chunk = 3; },
                    "the round has 3 contributors"},
        RefusalCase{"Offset", PeerId::Worker(2),
                    [](auto& h) { h.offset = 65536; },
                    "must be a multiple of 65536 below 12"},
        RefusalCase{"InitialRound", PeerId::Worker(2),
                    [](auto& h) { h.round = kInitialRound; },
                    "rounds 0 and 1 are open"},
        RefusalCase{"TwoRoundsAhead", PeerId::Worker(2),
                    [](auto& h) { h.round = 2; }, "rounds 0 and 1 are open"},
        RefusalCase{"HighestRound", PeerId::Worker(2),
                    [](auto& h) { h.round = kStepMax; }, "rounds 0 and 1"},
        RefusalCase{"LowestRound", PeerId::Worker(2),
                    [](auto& h) { h.round = -1; }, "rounds 0 and 1"}),
    NameOf);

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
  // The report clears the checksums, so round 7 begins again. Rounds are kept
  // apart.
  EXPECT_EQ(three.Sum(0, 7, 10), std::nullopt);
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

TEST(ReplicaChecksumsTest, SampleIsApartFromTheChecksumsOfItsRound) {
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
TEST(ReplicaChecksumsTest, FewIncompleteSamplesAreKept) {
  ThreeLayerMachine three;
  for (int64_t round = 0; round < 6; ++round) {
    three.Sum(0, round, 10, /*is_sample=*/true);
    three.Sum(1, round, 10, /*is_sample=*/true);
  }
  EXPECT_EQ(three.Sum(2, 1, 10, /*is_sample=*/true), std::nullopt);
  EXPECT_TRUE(three.Sum(2, 5, 10, /*is_sample=*/true).has_value());
}

// Returns a job that measures. Workers 0 and 2 are on one host.
JobPtr MeasuringJob() {
  JobOptions options;
  options.measure = true;
  return EpochAfter(*TestJob(3, 1, {VectorLayer("a", 2)}, options),
                    [](Job& made) {
                      made.workers[0].host = 5;
                      made.workers[2].host = 5;
                    });
}

std::unique_ptr<WorkerMachine> MeasuringWorker(const JobPtr& job, int rank) {
  auto machine = std::make_unique<WorkerMachine>(
      job, rank,
      std::vector<LayerMemory>{{Buffer::AllocateZeroed(8), Buffer()}});
  Outbox out;
  machine->Start(out);
  Carry(out);
  return machine;
}

TEST(ProbeTest, WorkerOfTheHostAnswersATrainOnce) {
  const JobPtr job = MeasuringJob();
  const auto asker = MeasuringWorker(job, 2);
  const auto mate = MeasuringWorker(job, 0);
  Outbox out;
  asker->Probe(PeerId::Worker(0), /*train=*/7, /*frames=*/3,
               /*payload_bytes=*/8, out);
  // The worker copies each payload to another place, as parts of gradients:
  // what it does not read is not measured.
  std::set<const void*> places;
  const Effects train = Carry(out);
  ASSERT_EQ(train.sent.size(), 3u);
  std::vector<Frame> answers;
  for (const auto& sent : train.sent) {
    EXPECT_EQ(sent.to, PeerId::Worker(0));
    const auto landing = mate->OnHeader(PeerId::Worker(2), sent.frame.header);
    ASSERT_TRUE(landing.ok()) << landing.status();
    EXPECT_EQ(landing->kind, Landing::Kind::kPlace);
    places.insert(landing->place.data());
    for (const auto& answer :
         DeliverAll(*mate, PeerId::Worker(2), {sent.frame}).sent) {
      EXPECT_EQ(answer.to, PeerId::Worker(2));
      answers.push_back(answer.frame);
    }
  }
  EXPECT_EQ(places.size(), 3u);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].header.part, kTrainAnswer);
  EXPECT_EQ(answers[0].header.payload_bytes, 0u);
  ASSERT_TRUE(asker->OnHeader(PeerId::Worker(0), answers[0].header).ok());
  asker->OnFrame(PeerId::Worker(0), answers[0], out);
  ASSERT_EQ(out.actions().size(), 1u);
  const auto* answered = std::get_if<ProbeAnswered>(&out.actions()[0]);
  ASSERT_NE(answered, nullptr);
  EXPECT_EQ(answered->train, 7);
}

TEST(ProbeTest, ProbesAndAnswersOfOtherHostsAreRefused) {
  const JobPtr job = MeasuringJob();
  const auto machine = MeasuringWorker(job, 0);
  for (const uint8_t part : {kMoreFollow, kLastOfTrain, kTrainAnswer}) {
    for (const int rank : {1, 2}) {
      FrameHeader header = MakeHeader(*job, PeerId::Worker(rank),
                                      FrameKind::kProbe, 0, 0, /*round=*/7);
      header.part = part;
      header.wire = job->WireOf(header);
      EXPECT_EQ(machine->OnHeader(header.sender, header).ok(), rank == 2)
          << "worker " << rank << ", part " << int{part};
    }
  }
  // Servers answer, and send no probes.
  FrameHeader server =
      MakeHeader(*job, PeerId::Shard(0), FrameKind::kProbe, 0, 0, /*round=*/7);
  server.wire = job->WireOf(server);
  EXPECT_FALSE(machine->OnHeader(PeerId::Shard(0), server).ok());
  server.part = kTrainAnswer;
  server.wire = job->WireOf(server);
  EXPECT_TRUE(machine->OnHeader(PeerId::Shard(0), server).ok());
}

// A worker does a step again after the verdict that the step counts.
class SettledStepTest : public testing::TestWithParam<OptimizerPlace> {};

INSTANTIATE_TEST_SUITE_P(Places, SettledStepTest,
                         testing::Values(OptimizerPlace::kServer,
                                         OptimizerPlace::kWorker),
                         [](const auto& info) {
                           return std::string(OptimizerPlaceName(info.param));
                         });

TEST_P(SettledStepTest, AGradientWithANaNBecomesZeros) {
  JobOptions options;
  options.nan = NanPolicy::kSkip;
  options.optimizer_place = GetParam();
  const JobPtr job =
      EpochAfter(*TestJob(2, 1, {VectorLayer("a", 3)}, options), [](Job& made) {
        made.history.verdicts = {{0, /*skipped=*/false}};
      });
  WorkerMachine machine(job, 1, {{FloatBuffer({1, 2, 3}), Buffer()}});
  const PeerId shard = PeerId::Shard(0);
  Outbox out;
  machine.Start(out);
  Carry(out);
  DeliverAll(machine, shard,
             FramesOf(*job, shard, FrameKind::kResult, 0, 0, kInitialRound,
                      {4, 5, 6}));
  const Buffer gradient = FloatBuffer({1, std::nanf(""), 1});
  ASSERT_TRUE(machine.OnPush(0, 0, gradient, out, /*fit=*/false).ok());
  const Effects pushed = Carry(out);
  EXPECT_EQ(ValuesIn(pushed.sent, FrameKind::kContribution, 0, 0, 0, 3),
            std::vector<float>(3, 0.0f));
  // The worker does not vote again.
  for (const auto& sent : pushed.sent) {
    EXPECT_NE(sent.frame.header.kind, FrameKind::kVote);
  }
}

}  // namespace
}  // namespace nereus
