#include "worker/machine/result_assembly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::HasSubstr;

// Layer 1 has two chunks on two shards: a full chunk of 8 frames, and a chunk
// of 65537 elements in 2 frames.
constexpr int kLayer = 1;
constexpr int64_t kRest = 65537;
constexpr int64_t kElements = kChunkElementsMax + kRest;

JobPtr LargeJob() {
  return TestJob(2, 2,
                 {VectorLayer("scale", 3), VectorLayer("large", kElements)});
}

// Returns the frames of a whole result, chunk by chunk.
std::vector<Frame> ResultFrames(const Job& job, int64_t round,
                                const std::vector<float>& values) {
  std::vector<Frame> frames;
  for (const Chunk& chunk : job.placement.layer_chunks(kLayer)) {
    const auto begin = values.begin() + chunk.offset;
    for (Frame& frame :
         FramesOf(job, PeerId::Shard(chunk.shard), FrameKind::kResult, kLayer,
                  chunk.index, round, {begin, begin + chunk.length})) {
      frames.push_back(std::move(frame));
    }
  }
  return frames;
}

// Makes `assembly` expect the layer from the shards, without optimizer state.
void ExpectValues(ResultAssembly& assembly, int64_t round, Buffer values) {
  assembly.Expect(round, std::move(values), Buffer(), std::nullopt);
}

// Lands a frame that must be accepted. Returns true if it completes the round.
bool Land(ResultAssembly& assembly, const Frame& frame) {
  const auto landing = assembly.Place(frame.header);
  EXPECT_TRUE(landing.ok()) << landing.status();
  if (!landing.ok() || landing->kind != Landing::Kind::kPlace) {
    ADD_FAILURE() << DescribeFrame(frame.header) << " has no place";
    return false;
  }
  EXPECT_EQ(landing->place.bytes(), frame.payload.bytes());
  std::memcpy(landing->place.data(), frame.payload.data(),
              static_cast<size_t>(frame.payload.bytes()));
  return assembly.Count(frame.header);
}

void ExpectDiscarded(const ResultAssembly& assembly, const Frame& frame) {
  const auto landing = assembly.Place(frame.header);
  ASSERT_TRUE(landing.ok()) << landing.status();
  EXPECT_EQ(landing->kind, Landing::Kind::kDiscard);
}

TEST(ChunkFramesTest, HeadersLeadBackToTheNumbersOfFrames) {
  for (const double sparsity : {0.0, 0.5}) {
    JobOptions options;
    options.sparsity.share = sparsity;
    options.sparsity.block_elements = 1000;
    const JobPtr job = TestJob(
        2, 2,
        {VectorLayer("large", kChunkElementsMax + 3), VectorLayer("b", 7)},
        options, Scheme::kRing);
    const ChunkFrames frames(*job, 0);
    int64_t next = 0;
    for (const Chunk& chunk : job->placement.layer_chunks(0)) {
      EXPECT_EQ(frames.FirstOf(chunk), next);
      const FrameGrid& grid = frames.GridOf(chunk);
      for (int64_t index = 0; index < grid.Count(); ++index) {
        const FrameHeader header =
            CutHeader(*job,
                      MakeHeader(*job, PeerId::Worker(0),
                                 FrameKind::kContribution, 0, chunk.index, 0),
                      grid, index);
        const auto found = frames.Find(chunk, header);
        ASSERT_TRUE(found.ok()) << found.status();
        EXPECT_EQ(*found, index);
      }
      next += frames.CountOf(chunk);
    }
    EXPECT_EQ(frames.count(), next);
  }
}

TEST(ResultAssemblyTest, PutsFramesInPlaceInAnyOrder) {
  const JobPtr job = LargeJob();
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    ResultAssembly assembly(job, kLayer);
    for (int64_t round = kInitialRound; round < 2; ++round) {
      const auto values = IntegerValues(kElements, round + 2);
      auto frames = ResultFrames(*job, round, values);
      ASSERT_EQ(frames.size(), 10u);
      for (size_t i = frames.size() - 1; i > 0; --i) {
        std::swap(frames[i], frames[random.Below(i + 1)]);
      }
      const Buffer target = Buffer::AllocateZeroed(kElements * 4);
      ExpectValues(assembly, round, target);
      for (size_t i = 0; i < frames.size(); ++i) {
        EXPECT_TRUE(assembly.open());
        EXPECT_EQ(Land(assembly, frames[i]), i + 1 == frames.size());
        ExpectDiscarded(assembly, frames[i]);
      }
      EXPECT_FALSE(assembly.open());
      EXPECT_EQ(FloatsOf(target), values);
      EXPECT_TRUE(target.unique());  // The assembly has released its reference.
    }
  }
}

TEST(ResultAssemblyTest, NamesTheShardsAndChunksThatAreMissing) {
  const JobPtr job = LargeJob();
  const auto chunks = job->placement.layer_chunks(kLayer);
  ASSERT_NE(chunks[0].shard, chunks[1].shard);
  ResultAssembly assembly(job, kLayer);
  EXPECT_EQ(assembly.Missing(), "");
  ExpectValues(assembly, kInitialRound, Buffer::AllocateZeroed(kElements * 4));
  const auto part = [&](int chunk) {
    return "shard " + std::to_string(chunks[chunk].shard) + " (chunk " +
           std::to_string(chunk) + ")";
  };
  const int first = chunks[0].shard < chunks[1].shard ? 0 : 1;
  EXPECT_EQ(assembly.Missing(), part(first) + ", " + part(1 - first));
  const auto frames =
      ResultFrames(*job, kInitialRound, IntegerValues(kElements, 0));
  for (size_t i = 0; i < 9; ++i)
    Land(assembly, frames[i]);  // All frames except the last.
  EXPECT_EQ(assembly.Missing(), part(1));
  Land(assembly, frames[9]);
  EXPECT_EQ(assembly.Missing(), "");

  ResultAssembly several(
      TestJob(1, 1, {VectorLayer("large", 3 * kChunkElementsMax)}), 0);
  ExpectValues(several, kInitialRound,
               Buffer::SizeOnly(3 * kChunkElementsMax * 4));
  EXPECT_EQ(several.Missing(), "shard 0 (chunks 0, 1, 2)");
}

struct RefusalCase {
  const char* name;
  std::function<void(FrameHeader&)> spoil;
  const char* message;
};

class ResultRefusalTest : public testing::TestWithParam<RefusalCase> {};

// Round 3 is open. The frame is the last one of the second chunk.
TEST_P(ResultRefusalTest, IsRefusedWithTheReason) {
  const JobPtr job = LargeJob();
  ResultAssembly assembly(job, kLayer);
  ExpectValues(assembly, 3, Buffer::AllocateZeroed(kElements * 4));
  FrameHeader header =
      ResultFrames(*job, 3, IntegerValues(kElements, 0)).back().header;
  ASSERT_TRUE(assembly.Place(header).ok());
  GetParam().spoil(header);
  const absl::Status status = assembly.Place(header).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, ResultRefusalTest,
    testing::Values(
        RefusalCase{"Chunk", [](auto& h) { h.chunk = 2; },
                    "layer large has 2 chunks"},
        RefusalCase{"OtherShard",
                    [](auto& h) { h.sender.rank = 1 - h.sender.rank; },
                    "the chunk must come from shard "},
        RefusalCase{"FutureRound", [](auto& h) { h.round = 4; },
                    "this worker is at round 3"},
        RefusalCase{"BeforeAll", [](auto& h) { h.round = kInitialRound - 1; },
                    "this worker is at round 3"},
        RefusalCase{"Part", [](auto& h) { h.part = 1; },
                    "the part must be below 1"},
        RefusalCase{"Worker", [](auto& h) { h.sender = PeerId::Worker(0); },
                    "this worker did not ask for the layer"},
        RefusalCase{"Offset", [](auto& h) { h.offset = 65535; },
                    "must be a multiple of 65536 below 65537"},
        RefusalCase{"TooShort", [](auto& h) { h.payload_bytes = 0; },
                    "the payload must have 4 bytes"},
        RefusalCase{"TooLong", [](auto& h) { h.payload_bytes = 262144; },
                    "the payload must have 4 bytes"},
        // The place would be right in the other chunk.
        RefusalCase{"FrameOfTheOtherChunk", [](auto& h) { h.chunk = 0; },
                    "the payload must have 262144 bytes"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ResultAssemblyTest, BeforeTheFirstRoundEveryFrameIsRefused) {
  const JobPtr job = LargeJob();
  const ResultAssembly assembly(job, kLayer);
  EXPECT_FALSE(assembly.open());
  const auto frames =
      ResultFrames(*job, kInitialRound, IntegerValues(kElements, 0));
  EXPECT_EQ(assembly.Place(frames[0].header).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ResultAssemblyTest, AChunkIsCompleteWithItsLastFrame) {
  const JobPtr job = LargeJob();
  const auto chunks = job->placement.layer_chunks(kLayer);
  ResultAssembly assembly(job, kLayer);
  ExpectValues(assembly, 0, Buffer::AllocateZeroed(kElements * 4));
  const auto frames = ResultFrames(*job, 0, IntegerValues(kElements, 0));
  Land(assembly, frames[9]);
  EXPECT_FALSE(assembly.Complete(chunks[1]));
  Land(assembly, frames[8]);
  EXPECT_TRUE(assembly.Complete(chunks[1]));
  EXPECT_FALSE(assembly.Complete(chunks[0]));
}

// Returns the frames of one part of the smaller layer, 3 elements, from a
// worker.
std::vector<Frame> OwnedFrames(const Job& job, int donor, uint8_t part,
                               int64_t salt) {
  return FramesOf(job, PeerId::Worker(donor), FrameKind::kResult, 0, 0, 6,
                  IntegerValues(3, salt), part);
}

class OwnedLayerTest : public testing::Test {
 protected:
  OwnedLayerTest()
      : job_(LargeJob()),
        values_(Buffer::AllocateZeroed(12)),
        state_(Buffer::AllocateZeroed(24)),
        assembly_(job_, 0) {
    assembly_.Expect(6, values_, state_, PeerId::Worker(1));
  }

  const JobPtr job_;
  const Buffer values_;
  const Buffer state_;
  ResultAssembly assembly_;
};

TEST_F(OwnedLayerTest, ValuesAndStateComeFromTheDonor) {
  EXPECT_EQ(assembly_.Missing(), "worker 1");
  EXPECT_FALSE(Land(assembly_, OwnedFrames(*job_, 1, 2, 12)[0]));
  EXPECT_FALSE(Land(assembly_, OwnedFrames(*job_, 1, 0, 10)[0]));
  EXPECT_FALSE(assembly_.Complete(job_->placement.layer_chunks(0)[0]));
  ExpectDiscarded(assembly_, OwnedFrames(*job_, 1, 0, 10)[0]);
  EXPECT_TRUE(Land(assembly_, OwnedFrames(*job_, 1, 1, 11)[0]));
  EXPECT_EQ(FloatsOf(values_), IntegerValues(3, 10));
  EXPECT_EQ(FloatsOf(state_.Slice(0, 12)), IntegerValues(3, 11));
  EXPECT_EQ(FloatsOf(state_.Slice(12, 12)), IntegerValues(3, 12));
  EXPECT_TRUE(values_.unique());
  EXPECT_TRUE(state_.unique());
}

TEST_F(OwnedLayerTest, OtherWorkersAndPartsBeyondTheLastAreRefused) {
  const auto refused = [&](int donor, uint8_t part, const char* why) {
    const absl::Status status =
        assembly_.Place(OwnedFrames(*job_, donor, part, 10)[0].header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refused(0, 0, "this worker did not ask for the layer");
  refused(1, 3, "the part must be below 3");
}

// Shards send the result of a round to all workers, also to workers that join.
TEST_F(OwnedLayerTest, ResultsOfShardsAreDiscardedWhileFetchingFromADonor) {
  ExpectDiscarded(
      assembly_,
      FramesOf(*job_, PeerId::Shard(job_->placement.layer_chunks(0)[0].shard),
               FrameKind::kResult, 0, 0, 6, {1, 2, 3})[0]);
}

// The donor before may have died with a round that the others did again.
TEST_F(OwnedLayerTest, AnotherDonorStartsOver) {
  Land(assembly_, OwnedFrames(*job_, 1, 0, 10)[0]);
  const JobPtr next = EpochAfter(*job_);
  assembly_.OnEpoch(next);
  assembly_.Expect(6, values_, state_, PeerId::Worker(0));
  EXPECT_FALSE(Land(assembly_, OwnedFrames(*next, 0, 0, 20)[0]));
  EXPECT_FALSE(Land(assembly_, OwnedFrames(*next, 0, 1, 21)[0]));
  EXPECT_TRUE(Land(assembly_, OwnedFrames(*next, 0, 2, 22)[0]));
  EXPECT_EQ(FloatsOf(values_), IntegerValues(3, 20));
}

TEST(ResultAssemblyDeathTest, OneRoundIsOpenAtATime) {
  const JobPtr job = LargeJob();
  ResultAssembly assembly(job, 0);
  ExpectValues(assembly, kInitialRound, Buffer::AllocateZeroed(12));
  EXPECT_DEATH(ExpectValues(assembly, 0, Buffer::AllocateZeroed(12)),
               "round -1 of layer 0");
}

}  // namespace
}  // namespace nereus
