// Job, the parts of an epoch that all members share. BadJobTest and
// BadEpochTest have a row for each rule of Validate; each row breaks one field.

#include "common/protocol/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/machine_harness.h"
#include "tests/testing/status_matchers.h"

namespace nereus {
namespace {

using testing::HasSubstr;

struct Parts {
  Parts() {
    job.id = 9;
    job.epoch = 1;
    job.workers = FirstWorkers(2);
    job.layers = {FactorLayer("fc", 4, 3, true, 5), VectorLayer("scale", 7)};
    job.routes = {{Scheme::kFactor}, {Scheme::kServer}};
  }
  FinishedRound& finished() { return job.history.finished_rounds.at(0); }
  Job job;
  int shards = 2;
};

absl::StatusOr<JobPtr> Make(const Parts& parts) {
  return MakeJob(parts.job, parts.shards);
}

// Worker 1 is dead, worker 2 has left, workers 4 and 7 have joined.
Parts LateParts() {
  Parts parts;
  parts.job.workers = {{0, 0}, {3, 0}, {4, 10}, {7, 12}};
  parts.job.crew.left_workers = {2};
  parts.job.history.base_round = 4;
  parts.job.history.first_step = 12;
  parts.job.history.contributions_before = 30;
  parts.job.history.donor = 0;
  parts.job.history.finished_rounds = {{0, 11, 2, 3}};
  return parts;
}

TEST(JobTest, JobHoldsItsParts) {
  Parts parts = LateParts();
  parts.job.options.deterministic = true;
  const auto job = Make(parts);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ((*job)->id, 9u);
  EXPECT_EQ((*job)->epoch, 1u);
  EXPECT_EQ((*job)->workers, parts.job.workers);
  EXPECT_EQ((*job)->worker_count(), 4);
  EXPECT_EQ((*job)->shards(), 2);
  EXPECT_EQ((*job)->layers, parts.job.layers);
  EXPECT_EQ((*job)->routes, parts.job.routes);
  EXPECT_EQ((*job)->options, parts.job.options);
  EXPECT_EQ((*job)->placement.chunks().size(), 2u);
  EXPECT_EQ((*job)->crew.left_workers, parts.job.crew.left_workers);
  EXPECT_EQ((*job)->history, parts.job.history);
}

TEST(JobTest, WorkerPositionIsItsIndexAmongTheRanks) {
  const JobPtr job = *Make(LateParts());
  const std::vector<int> positions = {0, -1, -1, 1, 2, -1, -1, 3, -1};
  for (int rank = 0; rank < 9; ++rank) {
    EXPECT_EQ(job->PositionOf(rank), positions[rank]) << rank;
  }
  EXPECT_EQ(job->PositionOf(-1), -1);
}

TEST(JobTest, ContributorsAreWorkersThatBeganByThatStep) {
  const JobPtr job = *Make(LateParts());
  const struct {
    int64_t round;
    int contributors;
  } kCases[] = {{0, 2},  {9, 2},  {10, 3},
                {11, 3}, {12, 4}, {std::numeric_limits<int64_t>::max(), 4}};
  for (const auto& c : kCases) {
    EXPECT_EQ(job->ContributorsOf(c.round), c.contributors) << c.round;
    EXPECT_EQ(job->MeanScale(c.round), 1.0f / c.contributors) << c.round;
  }
}

TEST(JobTest, TheFirstLayersAreSentFirst) {
  Job job;
  FrameHeader header;
  header.layer = 7;
  EXPECT_EQ(job.SendPriority(header), 7u);
  job.pool.layer = 7;  // The block layer, on whose result the others wait.
  EXPECT_EQ(job.SendPriority(header), 0u);
}

TEST(JobTest, WorkersOwnTheLayersThatTheyUpdate) {
  Parts parts;
  JobPtr job = *Make(parts);
  EXPECT_TRUE(job->WorkersOwn(0));  // Layer 0 goes by factors.
  EXPECT_FALSE(job->WorkersOwn(1));
  parts.job.options.optimizer_place = OptimizerPlace::kWorker;
  job = *Make(parts);
  EXPECT_TRUE(job->WorkersOwn(0));
  EXPECT_TRUE(job->WorkersOwn(1));
}

TEST(JobTest, CheckpointsAreOfEachNthStepAndOfRequestedRounds) {
  Parts parts;
  const auto rounds = [&] {
    const JobPtr job = *Make(parts);
    std::vector<int64_t> found;
    for (int64_t round = -2; round < 10; ++round) {
      if (job->IsCheckpoint(round)) found.push_back(round);
      const std::optional<int64_t> last = job->LastCheckpoint(round);
      EXPECT_TRUE(found.empty() || last == found.back()) << round;
      EXPECT_TRUE(!last.has_value() || *last <= round) << round;
    }
    return found;
  };
  using testing::ElementsAre;
  EXPECT_THAT(rounds(), testing::IsEmpty());
  parts.job.checkpoint_round = 4;
  EXPECT_THAT(rounds(), ElementsAre(4));
  parts.job.options.checkpoint_every = 3;
  EXPECT_THAT(rounds(), ElementsAre(2, 4, 5, 8));
  parts.job.options.checkpoint_every = 1;
  EXPECT_THAT(rounds(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  // The checkpoint of the base round exists already.
  parts.job.history.base_round = 6;
  EXPECT_THAT(rounds(), ElementsAre(7, 8, 9));
  parts.job.options.checkpoint_every = 0;
  EXPECT_THAT(rounds(), testing::IsEmpty());
}

TEST(JobTest, StateArraysOfBuiltInOptimizersAreCounted) {
  Parts parts;
  parts.job.state_arrays = 7;
  EXPECT_EQ((*Make(parts))->state_arrays, 1);
  parts.job.options.optimizer.rule = UpdateRule::kAdam;
  EXPECT_EQ((*Make(parts))->state_arrays, 2);
  // With an optimizer of the callers, only the callers know the count.
  parts.job.options.optimizer_place = OptimizerPlace::kWorker;
  for (const int32_t arrays : {0, 7, kStateArraysMax}) {
    parts.job.state_arrays = arrays;
    EXPECT_EQ((*Make(parts))->state_arrays, arrays);
  }
}

std::function<void(Parts&)> SetLeavers(const std::vector<int32_t>& ranks) {
  return [ranks](Parts& parts) { parts.job.crew.left_workers = ranks; };
}

struct BadJob {
  const char* name;
  std::function<void(Parts&)> spoil;
  const char* message;
};

std::string NameOf(const testing::TestParamInfo<BadJob>& info) {
  return info.param.name;
}

void ExpectRefused(Parts parts, const BadJob& bad) {
  bad.spoil(parts);
  EXPECT_THAT(Make(parts).status(), IsInvalidArgument(bad.message));
}

class BadJobTest : public testing::TestWithParam<BadJob> {};

TEST_P(BadJobTest, BadJobIsRefusedWithItsValues) {
  ExpectRefused(Parts(), GetParam());
}

const BadJob kBadJobRows[] = {
    {"NoWorkers", [](Parts& p) { p.job.workers.clear(); }, "workers is 0"},
    {"TooManyWorkers", [](Parts& p) { p.job.workers = FirstWorkers(65537); },
     "workers is 65537"},
    {"NoShards", [](Parts& p) { p.shards = 0; }, "shards is 0"},
    {"NegativeShards",
     [](Parts& p) { p.shards = std::numeric_limits<int>::min(); },
     "shards is -2147483648"},
    {"TooManyShards", [](Parts& p) { p.shards = 65537; }, "shards is 65537"},
    {"NoLayers",
     [](Parts& p) {
       p.job.layers.clear();
       p.job.routes.clear();
     },
     "0 layers"},
    {"BadLayer", [](Parts& p) { p.job.layers[1].m = 0; },
     "layer scale has m 0"},
    {"TwoLayersOfTheSameName", [](Parts& p) { p.job.layers[1].name = "fc"; },
     "two layers have the name fc"},
    {"TooFewRoutes", [](Parts& p) { p.job.routes.pop_back(); },
     "1 routes for 2 layers"},
    {"TooManyRoutes", [](Parts& p) { p.job.routes.emplace_back(); },
     "3 routes for 2 layers"},
    {"FactorsOfAVector",
     [](Parts& p) { p.job.routes[1].scheme = Scheme::kFactor; },
     "scale vector 1x7"},
    {"NegativeStateArrays", [](Parts& p) { p.job.state_arrays = -1; },
     "state_arrays is -1"},
    {"TooManyStateArrays", [](Parts& p) { p.job.state_arrays = 9; },
     "state_arrays is 9, must be in [0, 8]"},
    {"NegativeCheckpointEvery",
     [](Parts& p) { p.job.options.checkpoint_every = -1; },
     "--checkpoint-every: \"-1\" is not"},
    {"LargeCheckpointEvery",
     [](Parts& p) { p.job.options.checkpoint_every = (int64_t{1} << 46) + 1; },
     "--checkpoint-every: \"70368744177665\" is not"},
    {"NegativeCheckpointRound", [](Parts& p) { p.job.checkpoint_round = -2; },
     "checkpoint_round is -2"},
    {"LargeCheckpointRound",
     [](Parts& p) {
       p.job.checkpoint_round = std::numeric_limits<int64_t>::max();
     },
     "checkpoint_round is 9223372036854775807"},
    {"Staleness", [](Parts& p) { p.job.options.rounds.staleness = -1; },
     "--staleness: \"-1\" is not"},
    {"ShareBelow0", [](Parts& p) { p.job.options.sparsity.share = -0.1; },
     "is not a number from 0 to below 1"},
    {"Share1", [](Parts& p) { p.job.options.sparsity.share = 1; },
     "is not a number from 0 to below 1"},
    {"SmallBlock",
     [](Parts& p) { p.job.options.sparsity.block_elements = 255; },
     "--block: \"255\" is not"},
    {"LargeBlock",
     [](Parts& p) { p.job.options.sparsity.block_elements = 65537; },
     "--block: \"65537\" is not"},
    {"DenseSteps", [](Parts& p) { p.job.options.sparsity.dense_steps = -1; },
     "--dense-steps: \"-1\" is not"},
    {"ExclusiveOptions",
     [](Parts& p) {
       p.job.options.scale_loss = true;
       p.job.options.nan = NanPolicy::kIgnore;
     },
     "--nan=ignore"},
    {"Optimizer", [](Parts& p) { p.job.options.optimizer.momentum = 1.0f; },
     "--momentum: \"1\" is not"},
};

INSTANTIATE_TEST_SUITE_P(All, BadJobTest, testing::ValuesIn(kBadJobRows),
                         NameOf);

class BadEpochTest : public testing::TestWithParam<BadJob> {};

TEST_P(BadEpochTest, BadEpochIsRefusedWithItsValues) {
  ExpectRefused(LateParts(), GetParam());
}

const BadJob kWorkersBadEpochRows[] = {
    {"RankTwice", [](Parts& p) { p.job.workers[1].rank = 0; },
     "worker 0 from step 0 is listed after worker 0 from step 0"},
    {"RanksDescend", [](Parts& p) { p.job.workers[2].rank = 1; },
     "worker 1 from step 10 is listed after worker 3 from step 0"},
    {"NegativeRank", [](Parts& p) { p.job.workers[0].rank = -1; }, "worker -1"},
    {"HighRank", [](Parts& p) { p.job.workers[3].rank = 65536; },
     "worker 65536"},
    {"FirstStepsDescend", [](Parts& p) { p.job.workers[3].first_step = 9; },
     "worker 7 from step 9 is listed after worker 4 from step 10"},
    {"NegativeFirstStep", [](Parts& p) { p.job.workers[0].first_step = -1; },
     "a first step is -1"},
    {"WorkerAfterTheFirstStep", [](Parts& p) { p.job.history.first_step = 11; },
     "worker 7 takes part from step 12 on, and first_step is 11"},
    {"FarFirstStep", [](Parts& p) { p.job.workers[3].first_step = INT64_MAX; },
     "a first step is 9223372036854775807"},
    {"NegativeVerdict",
     [](Parts& p) {
       p.job.history.verdicts = {{-1, true}};
     },
     "a verdict's step is -1"},
    {"SameVerdict",
     [](Parts& p) {
       p.job.history.verdicts = {{4, true}, {4, false}};
     },
     "the verdict on step 4 is listed after the verdict on step 4"},
    {"TooManyVerdicts", [](Parts& p) { p.job.history.verdicts.resize(5); },
     "5 verdicts, at most 4"},
    {"HoldersOfOtherShards",
     [](Parts& p) { p.job.shard_servers.resize(p.shards + 1); },
     "shard_servers has "},
    {"UnknownServer",
     [](Parts& p) {
       p.job.shard_servers = FirstShardServers(p.shards, false);
       p.job.shard_servers[0].primary = p.shards;
     },
     " has primary "},
    {"LeaverIsAWorker", SetLeavers({3}),
     "worker 3 is both in workers and in left_workers"},
    {"NegativeLeaver", SetLeavers({-1}),
     "left_workers has worker -1 after worker -1"},
    {"SameLeaver", SetLeavers({5, 5}),
     "left_workers has worker 5 after worker 5"},
    {"HighLeaver", SetLeavers({65536}),
     "left_workers has worker 65536 after worker"},
};

INSTANTIATE_TEST_SUITE_P(Workers, BadEpochTest,
                         testing::ValuesIn(kWorkersBadEpochRows), NameOf);

const BadJob kStepsBadEpochRows[] = {
    {"BaseRoundBeforeAll", [](Parts& p) { p.job.history.base_round = -2; },
     "base_round is -2"},
    {"FarBaseRound", [](Parts& p) { p.job.history.base_round = INT64_MAX; },
     "base_round is 9223372036854775807"},
    {"NegativeFirst", [](Parts& p) { p.job.history.first_step = -1; },
     "first_step is -1"},
    {"FarFirst", [](Parts& p) { p.job.history.first_step = INT64_MAX; },
     "first_step is 9223372036854775807"},
    {"NegativeContributions",
     [](Parts& p) { p.job.history.contributions_before = -1; },
     "contributions_before is -1"},
    {"UnknownOwner", [](Parts& p) { p.job.history.donor = 1; },
     "the donor is worker 1, which is not a member of the epoch"},
    {"OwnerBelowNone", [](Parts& p) { p.job.history.donor = -2; },
     "the donor is worker -2, which is not a member"},
};

INSTANTIATE_TEST_SUITE_P(Steps, BadEpochTest,
                         testing::ValuesIn(kStepsBadEpochRows), NameOf);

INSTANTIATE_TEST_SUITE_P(
    FinishedRounds, BadEpochTest,
    testing::Values(
        BadJob{"NoSuchLayer", [](Parts& p) { p.finished().layer = 2; },
               "round 11 of layer 2"},
        BadJob{"NegativeLayer", [](Parts& p) { p.finished().layer = -1; },
               "round 11 of layer -1"},
        BadJob{"LayerByServer", [](Parts& p) { p.finished().layer = 1; },
               "the layer must go without servers"},
        BadJob{"NegativeRound", [](Parts& p) { p.finished().round = -1; },
               "round -1 of layer 0"},
        BadJob{"FarRound", [](Parts& p) { p.finished().round = INT64_MAX; },
               "round 9223372036854775807"},
        BadJob{"UnknownHolder", [](Parts& p) { p.finished().source = 1; },
               "worker 1 holds round "},
        BadJob{"NoContributors",
               [](Parts& p) { p.finished().contributors = 0; },
               "with 0 contributors"},
        BadJob{"TooManyContributors",
               [](Parts& p) { p.finished().contributors = 65537; },
               "with 65537 contributors"}),
    NameOf);

TEST(JobTest, LeaverMayBeOwnerAndHolder) {
  Parts parts = LateParts();
  parts.job.history.donor = 2;
  parts.job.history.finished_rounds[0].source = 2;
  EXPECT_TRUE(Make(parts).ok()) << Make(parts).status();
}

TEST(MakeHeaderTest, HeaderHasIdAndEpochOfTheJob) {
  const JobPtr job = TestJob(2, 1, {VectorLayer("scale", 7)});
  const FrameHeader header =
      MakeHeader(*job, PeerId::Worker(1), FrameKind::kPull, 3, 4, -1);
  FrameHeader expected;
  expected.kind = FrameKind::kPull;
  expected.job = job->id;
  expected.epoch = job->epoch;
  expected.layer = 3;
  expected.chunk = 4;
  expected.round = -1;
  expected.sender = PeerId::Worker(1);
  EXPECT_EQ(header, expected);
}

TEST(JobTest, FactorsHaveNoBlocks) {
  Job job =
      *TestJob(2, 1, {FactorLayer("fc", 4, 4, false, 2)}, {}, Scheme::kFactor);
  job.options.sparsity.share = 0.5;
  EXPECT_THAT(std::string(MakeJob(job, 1).status().message()),
              HasSubstr("factors, which have no blocks"));
}

TEST(JobTest, SparseJobHasABlockLayer) {
  JobOptions options;
  options.sparsity.share = 0.75;
  options.sparsity.block_elements = 1000;
  options.sparsity.dense_steps = 3;
  const JobPtr job =
      TestJob(2, 2, {VectorLayer("a", 2500), VectorLayer("b", 700)}, options);
  EXPECT_EQ(job->model().size(), 2u);
  EXPECT_EQ(job->pool.layer, 2);
  EXPECT_EQ(job->block_count(), 4);
  EXPECT_THAT(job->pool.offsets, testing::ElementsAre(700, 0));
  EXPECT_TRUE(job->IsSparse(0));
  EXPECT_FALSE(job->IsSparse(2));
  EXPECT_EQ(job->BlocksIn(2), 4);
  EXPECT_EQ(job->BlocksIn(3), 1);
  // The next epoch keeps the block layer and its route.
  const JobPtr next = EpochAfter(*job);
  EXPECT_EQ(next->layers, job->layers);
  EXPECT_EQ(next->routes, job->routes);
}

TEST(JobTest, DefaultBlockLengthGivesAboutAThousandBlocks) {
  const auto length = [](int64_t parameters) {
    JobOptions options;
    options.sparsity.share = 0.9;
    return TestJob(1, 1, {VectorLayer("a", parameters)}, options)
        ->pool.block_length;
  };
  EXPECT_EQ(length(10), 256);
  EXPECT_EQ(length(256000), 256);
  EXPECT_EQ(length(256001), 512);
  EXPECT_EQ(length(1000 * 1000 * 1000), 32768);
}

TEST(JobTest, WorkerOwnedLayersNeedFullRounds) {
  Job job =
      *TestJob(2, 1, {FactorLayer("fc", 4, 4, false, 2)}, {}, Scheme::kFactor);
  job.options.rounds.quorum = Quorum::kMajority;
  EXPECT_THAT(
      std::string(MakeJob(job, 1).status().message()),
      HasSubstr("by factor, which needs the contributions of all workers"));
  PlanRules rules;
  rules.forced = Scheme::kRing;
  EXPECT_TRUE(rules.Validate().ok());
  rules = RulesFor(job.options, rules);
  EXPECT_THAT(std::string(rules.Validate().message()),
              HasSubstr("quorum majority"));
}

class CutIntoFramesTest : public testing::TestWithParam<int64_t> {};

TEST_P(CutIntoFramesTest, FramesAreTheValuesInOrderAndShareTheirMemory) {
  const int64_t elements = GetParam();
  const Buffer values = FloatBuffer(IntegerValues(elements, 1));
  const JobPtr job = TestJob(1, 1, {VectorLayer("scale", 8)});
  FrameHeader header;
  header.kind = FrameKind::kContribution;
  header.chunk = 6;
  int64_t at = 0;
  int64_t index = 0;
  CutIntoFrames(*job, header, values, [&](const Frame& frame) {
    EXPECT_EQ(frame.header.chunk, 6u);
    EXPECT_EQ(frame.header.wire, WireType::kFloat32);
    EXPECT_EQ(frame.header.offset, at);
    EXPECT_EQ(frame.header.payload_bytes, frame.payload.bytes());
    EXPECT_EQ(frame.payload.floats(), values.floats() + at);
    EXPECT_FALSE(values.unique());
    EXPECT_LE(frame.payload.bytes(), kFramePayloadBytesMax);
    EXPECT_EQ(*FrameIndex(frame.header, elements), index++);
    at += frame.payload.float_count();
  });
  EXPECT_EQ(at, elements);
  EXPECT_EQ(index, FrameCount(elements));
}

INSTANTIATE_TEST_SUITE_P(Lengths, CutIntoFramesTest,
                         testing::Values(0, 1, 65535, 65536, 65537, 131072,
                                         131073));

TEST(CutIntoFramesTest, BuffersWithoutBytesAreCut) {
  const JobPtr job = TestJob(1, 1, {VectorLayer("scale", 8)});
  FrameHeader header;
  header.kind = FrameKind::kContribution;
  std::vector<int64_t> bytes;
  CutIntoFrames(*job, header, Buffer::SizeOnly(65537 * 4), [&](Frame frame) {
    EXPECT_EQ(frame.payload.data(), nullptr);
    bytes.push_back(frame.payload.bytes());
  });
  EXPECT_EQ(bytes, (std::vector<int64_t>{262144, 4}));
}

struct BadFrame {
  const char* name;
  std::function<void(FrameHeader&)> spoil;
  const char* message;
};

class CheckFrameTest : public testing::TestWithParam<BadFrame> {};

FrameHeader GoodHeader(const Job& job) {
  FrameHeader header =
      MakeHeader(job, PeerId::Worker(1), FrameKind::kContribution, 1, 0, 0);
  header.wire = WireType::kFloat32;
  header.payload_bytes = 28;
  return header;
}

TEST_P(CheckFrameTest, BadFrameIsRefusedWithBothValues) {
  const JobPtr job = *Make(Parts());
  FrameHeader header = GoodHeader(*job);
  ASSERT_TRUE(CheckFrame(*job, PeerId::Worker(1), header).ok());
  GetParam().spoil(header);
  EXPECT_THAT(CheckFrame(*job, PeerId::Worker(1), header),
              IsInvalidArgument(GetParam().message));
}

const BadFrame kCheckFrameRows[] = {
    {"Job", [](FrameHeader& h) { h.job = 8; }, "job is 8, expected 9"},
    {"Epoch", [](FrameHeader& h) { h.epoch = 2; }, "epoch is 2, expected 1"},
    {"SenderRank", [](FrameHeader& h) { h.sender = PeerId::Worker(0); },
     "sender is worker 0, expected worker 1"},
    {"SenderRole", [](FrameHeader& h) { h.sender = PeerId::Shard(1); },
     "sender is shard 1, expected worker 1"},
    {"Layer", [](FrameHeader& h) { h.layer = 2; },
     "layer=2 chunk=0 part=0 round=0 offset=0 bytes=28 from worker "
     "1: the model has 2 layers"},
    {"LayerHighest", [](FrameHeader& h) { h.layer = 0xffffffff; },
     "the model has 2 layers"},
    {"RoundBeforeAll", [](FrameHeader& h) { h.round = -2; },
     "rounds are in [-1, 70368744177664]"},
    {"RoundHighest", [](FrameHeader& h) { h.round = INT64_MAX; },
     "rounds are in [-1, 70368744177664]"},
    {"ValuesWithoutAType", [](FrameHeader& h) { h.wire = WireType::kNone; },
     "wire type is 0, expected 1"},
    {"PullWithAType", [](FrameHeader& h) { h.kind = FrameKind::kPull; },
     "wire type is 1, expected 0"},
    {"PullOfFactorsWithAType",
     [](FrameHeader& h) { h.kind = FrameKind::kPullRound; },
     "wire type is 1, expected 0"},
};

INSTANTIATE_TEST_SUITE_P(All, CheckFrameTest,
                         testing::ValuesIn(kCheckFrameRows),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

TEST(FindChunkTest, OnlyExistingChunksAreFound) {
  const JobPtr job = TestJob(1, 3,
                             {VectorLayer("small", 1),
                              VectorLayer("large", 2 * kChunkElementsMax + 5)});
  FrameHeader header = MakeHeader(*job, PeerId::Worker(0), FrameKind::kPull,
                                  /*layer=*/1, /*chunk=*/0, 0);
  for (uint32_t chunk = 0; chunk < 3; ++chunk) {
    header.chunk = chunk;
    const auto found = FindChunk(*job, header);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->layer, 1);
    EXPECT_EQ(found->index, static_cast<int>(chunk));
    EXPECT_EQ(found->offset, chunk * kChunkElementsMax);
    EXPECT_EQ(found->length, chunk == 2 ? 5 : kChunkElementsMax);
  }
  for (const uint32_t chunk : {3u, 0xffffffffu}) {
    header.chunk = chunk;
    EXPECT_THAT(FindChunk(*job, header).status(),
                IsInvalidArgument("layer large has 3 chunks"));
  }
}

TEST(CheckFrameTest, MembersAreWorkersLeaversAndShards) {
  const JobPtr job = *Make(LateParts());
  const auto check = [&](PeerId sender) {
    return CheckFrame(
        *job, sender,
        MakeHeader(*job, sender, FrameKind::kPull, 0, 0, kInitialRound));
  };
  for (const int rank : {0, 2, 3, 4, 7}) {
    EXPECT_TRUE(check(PeerId::Worker(rank)).ok()) << rank;
  }
  for (const int rank : {1, 5, 6, 8, -1}) {
    const absl::Status status = check(PeerId::Worker(rank));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << rank;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("not one of the job's 4 workers and 2 shards in "
                          "epoch 1"));
  }
  EXPECT_TRUE(check(PeerId::Shard(0)).ok());
  EXPECT_TRUE(check(PeerId::Shard(1)).ok());
  EXPECT_FALSE(check(PeerId::Shard(2)).ok());
  EXPECT_FALSE(check(PeerId::Shard(-1)).ok());
}

TEST(JobTest, FactorsBeyondAFramesOffsetAreRefused) {
  Parts parts;
  parts.job.routes = {{Scheme::kFactor}};
  // 2^30 rows of 8 values are 2^33 elements; an offset has 32 bits.
  parts.job.layers = {FactorLayer("fc", 8, 8, false, int64_t{1} << 30)};
  EXPECT_FALSE(Make(parts).ok());
  // A dense gradient in place of factors would have 2^33 elements.
  parts.job.layers = {
      FactorLayer("fc", int64_t{1} << 17, int64_t{1} << 16, false, 1)};
  EXPECT_FALSE(Make(parts).ok());
  // 2^30 rows of 2^39 values exceed even int64_t.
  parts.job.layers = {
      FactorLayer("fc", int64_t{1} << 39, 1, false, int64_t{1} << 30)};
  EXPECT_FALSE(Make(parts).ok());
}

}  // namespace
}  // namespace nereus
