#include "worker/result_assembly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::HasSubstr;

// Layer 1 has two chunks on two shards: a full one of 8 frames, and 65537
// elements in 2 frames.
constexpr int kLayer = 1;
constexpr int64_t kRest = 65537;
constexpr int64_t kElements = kChunkElementsMax + kRest;

JobPtr LargeJob() {
  return TestJob(2, 2,
                 {VectorLayer("scale", 3), VectorLayer("large", kElements)});
}

// The frames of a whole result, chunk by chunk.
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

// Lands one frame that must be accepted; true if it completed the round.
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
      assembly.Open(round, target);
      for (size_t i = 0; i < frames.size(); ++i) {
        EXPECT_TRUE(assembly.open());
        EXPECT_EQ(Land(assembly, frames[i]), i + 1 == frames.size());
        ExpectDiscarded(assembly, frames[i]);
      }
      EXPECT_FALSE(assembly.open());
      EXPECT_EQ(FloatsOf(target), values);
      EXPECT_TRUE(target.unique());  // The assembly has let go of it.
    }
  }
}

TEST(ResultAssemblyTest, WhatComesAgainAfterwardsIsDiscarded) {
  const JobPtr job = LargeJob();
  ResultAssembly assembly(job, kLayer);
  const auto initial =
      ResultFrames(*job, kInitialRound, IntegerValues(kElements, 0));
  assembly.Open(kInitialRound, Buffer::AllocateZeroed(kElements * 4));
  for (const Frame& frame : initial) Land(assembly, frame);
  for (const Frame& frame : initial) ExpectDiscarded(assembly, frame);
  assembly.Open(0, Buffer::AllocateZeroed(kElements * 4));
  for (const Frame& frame : initial) ExpectDiscarded(assembly, frame);
  EXPECT_TRUE(assembly.open());
}

TEST(ResultAssemblyTest, PlaceAloneCountsNothing) {
  const JobPtr job = LargeJob();
  ResultAssembly assembly(job, kLayer);
  assembly.Open(kInitialRound, Buffer::AllocateZeroed(kElements * 4));
  const auto frames =
      ResultFrames(*job, kInitialRound, IntegerValues(kElements, 0));
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const Frame& frame : frames) {
      const auto landing = assembly.Place(frame.header);
      ASSERT_TRUE(landing.ok()) << landing.status();
      EXPECT_EQ(landing->kind, Landing::Kind::kPlace);
    }
  }
  EXPECT_TRUE(assembly.open());
}

TEST(ResultAssemblyTest, NamesTheShardsAndChunksThatAreMissing) {
  const JobPtr job = LargeJob();
  const auto chunks = job->placement.layer_chunks(kLayer);
  ASSERT_NE(chunks[0].shard, chunks[1].shard);
  ResultAssembly assembly(job, kLayer);
  EXPECT_EQ(assembly.Missing(), "");
  assembly.Open(kInitialRound, Buffer::AllocateZeroed(kElements * 4));
  const auto part = [&](int chunk) {
    return "shard " + std::to_string(chunks[chunk].shard) + " (chunk " +
           std::to_string(chunk) + ")";
  };
  const int first = chunks[0].shard < chunks[1].shard ? 0 : 1;
  EXPECT_EQ(assembly.Missing(), part(first) + ", " + part(1 - first));
  const auto frames =
      ResultFrames(*job, kInitialRound, IntegerValues(kElements, 0));
  for (size_t i = 0; i < 9; ++i) Land(assembly, frames[i]);  // All but one.
  EXPECT_EQ(assembly.Missing(), part(1));
  Land(assembly, frames[9]);
  EXPECT_EQ(assembly.Missing(), "");
}

TEST(ResultAssemblyTest, NamesSeveralChunksOfOneShard) {
  const JobPtr job =
      TestJob(1, 1, {VectorLayer("large", 3 * kChunkElementsMax)});
  ResultAssembly assembly(job, 0);
  assembly.Open(kInitialRound, Buffer::SizeOnly(3 * kChunkElementsMax * 4));
  EXPECT_EQ(assembly.Missing(), "shard 0 (chunks 0, 1, 2)");
}

struct Refusal {
  const char* name;
  std::function<void(FrameHeader&)> spoil;
  const char* message;
};

class ResultRefusalTest : public testing::TestWithParam<Refusal> {};

// Round 3 is open; the frame is the last one of the rest.
TEST_P(ResultRefusalTest, IsRefusedWithTheReason) {
  const JobPtr job = LargeJob();
  ResultAssembly assembly(job, kLayer);
  assembly.Open(3, Buffer::AllocateZeroed(kElements * 4));
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
        Refusal{"Chunk", [](auto& h) { h.chunk = 2; },
                "layer large has 2 chunks"},
        Refusal{"OtherShard",
                [](auto& h) { h.sender.rank = 1 - h.sender.rank; },
                "the chunk is shard "},
        Refusal{"FutureRound", [](auto& h) { h.round = 4; },
                "this worker is at round 3"},
        Refusal{"BeforeAll", [](auto& h) { h.round = kInitialRound - 1; },
                "this worker is at round 3"},
        Refusal{"Offset", [](auto& h) { h.offset = 65535; },
                "must be a multiple of 65536 below 65537"},
        Refusal{"TooShort", [](auto& h) { h.payload_bytes = 0; },
                "the payload must have 4 bytes"},
        Refusal{"TooLong", [](auto& h) { h.payload_bytes = 262144; },
                "the payload must have 4 bytes"},
        // The same place would do in the other chunk.
        Refusal{"FrameOfTheOtherChunk", [](auto& h) { h.chunk = 0; },
                "the payload must have 262144 bytes"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ResultAssemblyTest, BeforeTheFirstRoundNothingIsTaken) {
  const JobPtr job = LargeJob();
  const ResultAssembly assembly(job, kLayer);
  EXPECT_FALSE(assembly.open());
  const auto frames =
      ResultFrames(*job, kInitialRound, IntegerValues(kElements, 0));
  EXPECT_EQ(assembly.Place(frames[0].header).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ResultAssemblyDeathTest, OneRoundIsOpenAtATime) {
  const JobPtr job = LargeJob();
  ResultAssembly assembly(job, 0);
  assembly.Open(kInitialRound, Buffer::AllocateZeroed(12));
  EXPECT_DEATH(assembly.Open(0, Buffer::AllocateZeroed(12)),
               "round -1 of layer 0");
}

}  // namespace
}  // namespace nereus
