// Numbers of frames: of a layer's chunks, and of a layer on a ring of hosts.
// Each frame has one number, and its header leads back to it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/machine_harness.h"
#include "worker/machine/result_assembly.h"
#include "worker/machine/ring_frames.h"
#include "worker/machine/worker_layer.h"

namespace nereus {
namespace {

using testing::HasSubstr;

JobPtr JobOf(int64_t elements, double sparsity) {
  JobOptions options;
  options.sparsity.share = sparsity;
  options.sparsity.block_elements = 1000;
  return TestJob(2, 2, {VectorLayer("large", elements), VectorLayer("b", 7)},
                 options, Scheme::kRing);
}

class FrameNumbersTest : public testing::TestWithParam<double> {};

INSTANTIATE_TEST_SUITE_P(Sparsity, FrameNumbersTest, testing::Values(0.0, 0.5),
                         [](const auto& info) {
                           return info.param == 0 ? "dense" : "sparse";
                         });

TEST_P(FrameNumbersTest, FramesOfChunksLeadBackToTheirNumbers) {
  const JobPtr job = JobOf(kChunkElementsMax + 3, GetParam());
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

TEST_P(FrameNumbersTest, FramesOfARingLeadBackToTheirNumbers) {
  for (const int64_t elements : {int64_t{1}, int64_t{40}, int64_t{300'001}}) {
    const JobPtr job = JobOf(elements, GetParam());
    const WorkerLayer layer(job, 0, /*rank=*/0,
                            {Buffer::SizeOnly(4), Buffer()});
    for (const int hosts : {1, 2, 3, 7}) {
      const RingFrames frames(layer, hosts);
      std::vector<bool> covered(elements, false);
      std::vector<int> seen(frames.count(), 0);
      for (int segment = 0; segment < hosts; ++segment) {
        frames.ForSegment(segment, [&](int64_t index) {
          ++seen[index];
          EXPECT_EQ(frames.SegmentOf(index), segment);
        });
      }
      for (int64_t index = 0; index < frames.count(); ++index) {
        EXPECT_EQ(seen[index], 1) << index;
        const FrameHeader header =
            frames.Cut(layer.Header(FrameKind::kSum, 0, /*round=*/0), index);
        const auto found = frames.Find(header);
        ASSERT_TRUE(found.ok()) << found.status();
        EXPECT_EQ(*found, index);
        for (int64_t i = 0; i < frames.LengthOf(index); ++i) {
          const int64_t at = frames.OffsetOf(index) + i;
          EXPECT_FALSE(covered[at]);
          covered[at] = true;
        }
      }
      EXPECT_EQ(covered, std::vector<bool>(elements, true));
    }
  }
}

TEST_P(FrameNumbersTest, AFrameThatTheRingDoesNotHaveIsRefused) {
  const JobPtr job = JobOf(300'001, GetParam());
  const WorkerLayer layer(job, 0, /*rank=*/0, {Buffer::SizeOnly(4), Buffer()});
  const RingFrames frames(layer, 2);
  FrameHeader header =
      frames.Cut(layer.Header(FrameKind::kSum, 0, /*round=*/0), 1);
  header.chunk = 2;
  EXPECT_THAT(std::string(frames.Find(header).status().message()),
              HasSubstr("the ring has 2 segments"));
  header.chunk = 0;
  header.part = 1;
  EXPECT_THAT(std::string(frames.Find(header).status().message()),
              HasSubstr("the part must be 0"));
}

}  // namespace
}  // namespace nereus
