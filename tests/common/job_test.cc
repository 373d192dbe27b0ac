#include "common/protocol/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::HasSubstr;

struct Parts {
  int workers = 2;
  int shards = 2;
  std::vector<LayerSpec> layers = {FactorLayer("fc", 4, 3, true, 5),
                                   VectorLayer("scale", 7)};
  std::vector<Route> routes = {{Scheme::kFactor}, {Scheme::kServer}};
  JobOptions options;
};

absl::StatusOr<JobPtr> Make(const Parts& parts) {
  return MakeJob(9, 1, parts.workers, parts.shards, parts.layers, parts.routes,
                 parts.options);
}

TEST(OptimizerPlaceTest, NamesAreParsedBack) {
  for (const OptimizerPlace place :
       {OptimizerPlace::kServer, OptimizerPlace::kWorker}) {
    const auto parsed = ParseOptimizerPlace(OptimizerPlaceName(place));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, place);
  }
  const absl::Status status = ParseOptimizerPlace("client").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"client\""));
}

TEST(JobTest, HoldsItsParts) {
  Parts parts;
  parts.options.deterministic = true;
  const auto job = Make(parts);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ((*job)->id, 9u);
  EXPECT_EQ((*job)->epoch, 1u);
  EXPECT_EQ((*job)->workers, 2);
  EXPECT_EQ((*job)->shards(), 2);
  EXPECT_EQ((*job)->layers, parts.layers);
  EXPECT_EQ((*job)->routes, parts.routes);
  EXPECT_EQ((*job)->options, parts.options);
  EXPECT_EQ((*job)->mean_scale(), 0.5f);
  EXPECT_EQ((*job)->placement.chunks().size(), 2u);
}

struct BadJob {
  const char* name;
  std::function<void(Parts&)> spoil;
  const char* message;
};

class BadJobTest : public testing::TestWithParam<BadJob> {};

TEST_P(BadJobTest, IsRefusedWithItsValues) {
  Parts parts;
  GetParam().spoil(parts);
  const absl::Status status = Make(parts).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadJobTest,
    testing::Values(
        BadJob{"NoWorkers", [](Parts& p) { p.workers = 0; }, "workers is 0"},
        BadJob{"NegativeWorkers",
               [](Parts& p) { p.workers = std::numeric_limits<int>::min(); },
               "workers is -2147483648"},
        BadJob{"TooManyWorkers", [](Parts& p) { p.workers = 65537; },
               "workers is 65537"},
        BadJob{"NoShards", [](Parts& p) { p.shards = 0; }, "shards is 0"},
        BadJob{"TooManyShards", [](Parts& p) { p.shards = 65537; },
               "shards is 65537"},
        BadJob{"NoLayers",
               [](Parts& p) {
                 p.layers.clear();
                 p.routes.clear();
               },
               "0 layers"},
        BadJob{"BadLayer", [](Parts& p) { p.layers[1].m = 0; },
               "layer scale has m 0"},
        BadJob{"TwoLayersOfOneName", [](Parts& p) { p.layers[1].name = "fc"; },
               "two layers have the name fc"},
        BadJob{"TooFewRoutes", [](Parts& p) { p.routes.pop_back(); },
               "1 routes for 2 layers"},
        BadJob{"TooManyRoutes", [](Parts& p) { p.routes.emplace_back(); },
               "3 routes for 2 layers"},
        BadJob{"FactorsOfAVector",
               [](Parts& p) { p.routes[1].scheme = Scheme::kFactor; },
               "scale vector 1x7"},
        BadJob{"Optimizer",
               [](Parts& p) { p.options.optimizer.momentum = 1.0f; },
               "momentum is 1"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(MakeHeaderTest, TakesJobAndEpochFromTheJob) {
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

class CutIntoFramesTest : public testing::TestWithParam<int64_t> {};

TEST_P(CutIntoFramesTest, FramesAreTheValuesInOrderAndShareTheirMemory) {
  const int64_t elements = GetParam();
  const Buffer values = FloatBuffer(IntegerValues(elements, 1));
  FrameHeader header;
  header.layer = 6;
  int64_t at = 0;
  int64_t index = 0;
  CutIntoFrames(header, values, [&](const Frame& frame) {
    EXPECT_EQ(frame.header.layer, 6u);
    EXPECT_EQ(frame.header.wire, WireType::kFloat32);
    EXPECT_EQ(frame.header.offset, at);
    EXPECT_EQ(frame.header.payload_bytes, frame.payload.bytes());
    EXPECT_EQ(frame.payload.floats(), values.floats() + at);
    EXPECT_LE(frame.payload.bytes(), kFramePayloadBytesMax);
    const auto found = FrameIndex(frame.header, elements);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, index++);
    at += frame.payload.float_count();
  });
  EXPECT_EQ(at, elements);
  EXPECT_EQ(index, FrameCount(elements));
}

INSTANTIATE_TEST_SUITE_P(Lengths, CutIntoFramesTest,
                         testing::Values(0, 1, 65535, 65536, 65537, 131072,
                                         131073));

TEST(CutIntoFramesTest, FramesKeepTheMemoryAlive) {
  std::vector<Frame> frames;
  {
    const Buffer values = FloatBuffer({1, 2, 3});
    CutIntoFrames(FrameHeader(), values,
                  [&](Frame frame) { frames.push_back(frame); });
    EXPECT_FALSE(values.unique());
  }
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_TRUE(frames[0].payload.unique());
  EXPECT_EQ(FloatsOf(frames[0].payload), (std::vector<float>{1, 2, 3}));
}

TEST(CutIntoFramesTest, SizesWithoutBytesAreCutToo) {
  std::vector<int64_t> bytes;
  CutIntoFrames(FrameHeader(), Buffer::SizeOnly(65537 * 4), [&](Frame frame) {
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

TEST_P(CheckFrameTest, RefusesWithBothValues) {
  const JobPtr job = *Make(Parts());
  FrameHeader header = GoodHeader(*job);
  ASSERT_TRUE(CheckFrame(*job, PeerId::Worker(1), header).ok());
  GetParam().spoil(header);
  const absl::Status status = CheckFrame(*job, PeerId::Worker(1), header);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, CheckFrameTest,
    testing::Values(
        BadFrame{"Job", [](FrameHeader& h) { h.job = 8; },
                 "job is 8, expected 9"},
        BadFrame{"Epoch", [](FrameHeader& h) { h.epoch = 2; },
                 "epoch is 2, expected 1"},
        BadFrame{"SenderRank",
                 [](FrameHeader& h) { h.sender = PeerId::Worker(0); },
                 "sender is worker 0, expected worker 1"},
        BadFrame{"SenderRole",
                 [](FrameHeader& h) { h.sender = PeerId::Shard(1); },
                 "sender is shard 1, expected worker 1"},
        BadFrame{"Layer", [](FrameHeader& h) { h.layer = 2; },
                 "layer=2 chunk=0 round=0 offset=0 bytes=28 from worker 1: the "
                 "model has 2 layers"},
        BadFrame{"LayerHighest", [](FrameHeader& h) { h.layer = 0xffffffff; },
                 "the model has 2 layers"},
        BadFrame{"ValuesWithoutAType",
                 [](FrameHeader& h) { h.wire = WireType::kNone; },
                 "wire type is 0, expected 1"},
        BadFrame{"PullWithAType",
                 [](FrameHeader& h) { h.kind = FrameKind::kPull; },
                 "wire type is 1, expected 0"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(FindChunkTest, FindsEveryChunkAndNoOther) {
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
    const absl::Status status = FindChunk(*job, header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("layer large has 3 chunks"));
  }
}

TEST(CheckFrameTest, SenderOutsideTheJobIsRefused) {
  const JobPtr job = TestJob(2, 1, {VectorLayer("scale", 1)});
  FrameHeader header =
      MakeHeader(*job, PeerId::Worker(2), FrameKind::kContribution, 0, 0, 0);
  header.wire = WireType::kFloat32;
  header.payload_bytes = 4;
  EXPECT_FALSE(CheckFrame(*job, PeerId::Worker(2), header).ok());
}

TEST(JobTest, FactorsBeyondAFramesOffsetAreRefused) {
  // 2^30 rows of 8 values: 2^33 elements, an offset has 32 bits.
  const auto job =
      MakeJob(1, 1, 2, 1, {FactorLayer("fc", 8, 8, false, int64_t{1} << 30)},
              {{Scheme::kFactor}}, {});
  EXPECT_FALSE(job.ok());
  // 2^30 rows of 2^39 values: not even int64_t holds them.
  const auto huge =
      MakeJob(1, 1, 2, 1,
              {FactorLayer("fc", int64_t{1} << 39, 1, false, int64_t{1} << 30)},
              {{Scheme::kFactor}}, {});
  EXPECT_FALSE(huge.ok());
}

}  // namespace
}  // namespace nereus
