#include "worker/machine/all_reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/plan/ring_segments.h"
#include "common/plan/traffic.h"
#include "tests/testing/machine_harness.h"
#include "tests/worker/worker_cluster.h"
#include "worker/machine/ring_frames.h"
#include "worker/machine/worker_layer.h"
#include "worker/machine/worker_machine.h"

namespace nereus {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

JobPtr JobBy(Scheme scheme, int workers, int64_t elements,
             OptimizerPlace place = OptimizerPlace::kWorker,
             WireType wire = WireType::kFloat32) {
  return TestJob(workers, 1, {VectorLayer("v", elements)}, PlainSgd(place),
                 scheme, wire);
}

// Returns values that give different sums in different orders.
std::vector<float> Noise(int64_t count, int rank, int64_t round) {
  Random random(static_cast<uint64_t>(rank * 1000 + round));
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(random.Uniform() - 0.5));
  }
  return values;
}

// Sizes: not divisible, smaller than the ring, of several frames.
constexpr int64_t kSizes[] = {1, 2, 15, 16, 17, 33, 1000, 65536, 200001};

TEST(RingSegmentsTest, CoverTheLayerInOrderAndEvenly) {
  for (const int64_t elements : kSizes) {
    for (int64_t contributors = 1; contributors < 20; ++contributors) {
      const RingSegments segments(elements, contributors);
      int64_t offset = 0;
      for (int64_t index = 0; index < contributors; ++index) {
        EXPECT_EQ(segments.Offset(index), offset);
        EXPECT_LE(segments.Length(index), elements / contributors + 16);
        if (index < segments.full_count()) {
          EXPECT_EQ(segments.Length(index), segments.full_length());
        }
        offset += segments.Length(index);
      }
      EXPECT_EQ(offset, elements);
    }
  }
}

// Returns a job in which a share of the blocks of 1000 values is held back.
JobPtr SparseRingJob(int64_t elements, double sparsity) {
  JobOptions options;
  options.sparsity.share = sparsity;
  options.sparsity.block_elements = 1000;
  return TestJob(2, 2, {VectorLayer("large", elements), VectorLayer("b", 7)},
                 options, Scheme::kRing);
}

class RingFramesTest : public testing::TestWithParam<double> {};

INSTANTIATE_TEST_SUITE_P(Sparsity, RingFramesTest, testing::Values(0.0, 0.5),
                         [](const auto& info) {
                           return info.param == 0 ? "dense" : "sparse";
                         });

TEST_P(RingFramesTest, HeadersLeadBackToTheNumbersOfFrames) {
  for (const int64_t elements : {int64_t{1}, int64_t{40}, int64_t{300'001}}) {
    const JobPtr job = SparseRingJob(elements, GetParam());
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

TEST_P(RingFramesTest, AFrameThatTheRingDoesNotHaveIsRefused) {
  const JobPtr job = SparseRingJob(300'001, GetParam());
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

class AllReduceTest : public testing::TestWithParam<Scheme> {
 protected:
  static JobPtr JobOf(int workers, int64_t elements,
                      OptimizerPlace place = OptimizerPlace::kWorker,
                      WireType wire = WireType::kFloat32) {
    return JobBy(GetParam(), workers, elements, place, wire);
  }
};

INSTANTIATE_TEST_SUITE_P(Schemes, AllReduceTest,
                         testing::Values(Scheme::kRing, Scheme::kDirect),
                         [](const auto& info) {
                           return std::string(SchemeName(info.param));
                         });

TEST_P(AllReduceTest, AllWorkersHaveTheMeanInEqualBits) {
  for (const int64_t elements : kSizes) {
    for (int workers = 1; workers <= 6; ++workers) {
      SCOPED_TRACE(absl::StrCat(elements, " elements, ", workers, " workers"));
      WorkerCluster ring(JobOf(workers, elements),
                         /*seed=*/elements + workers);
      for (int64_t round = 0; round < 4; ++round) {
        const bool exact = round % 2 == 0;
        std::vector<float> sum(elements, 0.0f);
        for (int rank = 0; rank < workers; ++rank) {
          const auto gradient = exact ? IntegerValues(elements, rank + round)
                                      : Noise(elements, rank, round);
          for (int64_t i = 0; i < elements; ++i) sum[i] += gradient[i];
          ring.Push(rank, round, FloatBuffer(gradient));
        }
        ring.Settle();
        for (int rank = 0; rank < workers; ++rank) {
          EXPECT_EQ(ring.worker(rank).syncer().done_round(), round);
          EXPECT_EQ(ring.worker(rank).syncer().contributors(), workers);
          ASSERT_EQ(FloatsOf(ring.gradient(rank)), FloatsOf(ring.gradient(0)))
              << rank;
        }
        if (!exact) continue;
        for (float& value : sum) value *= 1.0f / static_cast<float>(workers);
        ASSERT_EQ(FloatsOf(ring.gradient(0)), sum);
      }
    }
  }
}

TEST_P(AllReduceTest, MeansOutOfPlaceStayUntilTheNextPush) {
  for (const int64_t elements : kSizes) {
    for (int workers = 1; workers <= 4; ++workers) {
      SCOPED_TRACE(absl::StrCat(elements, " elements, ", workers, " workers"));
      WorkerCluster copying(JobOf(workers, elements), /*seed=*/elements);
      WorkerCluster ring(JobOf(workers, elements), /*seed=*/elements, false);
      for (int64_t round = 0; round < 4; ++round) {
        for (int rank = 0; rank < workers; ++rank) {
          const auto before = ring.mean(rank);
          const auto values = FloatsOf(before);
          copying.Push(rank, round, FloatBuffer(Noise(elements, rank, round)));
          // Fast workers are a round ahead.
          EXPECT_EQ(FloatsOf(before), values);
          ring.Push(rank, round, FloatBuffer(Noise(elements, rank, round)));
        }
        copying.Settle();
        ring.Settle();
        for (int rank = 0; rank < workers; ++rank) {
          EXPECT_EQ(copying.mean(rank).bytes(), 0);
          ASSERT_EQ(FloatsOf(ring.mean(rank)),
                    FloatsOf(copying.gradient(rank)));
          EXPECT_EQ(FloatsOf(ring.gradient(rank)),
                    Noise(elements, rank, round));
        }
      }
    }
  }
}

// Each hop rounds the partial sum once, to 8 or 11 bits, and so does the mean.
// No partial sum exceeds the sum of the magnitudes.
TEST_P(AllReduceTest, SixteenBitWireTypesGiveAllWorkersTheSameBitsNearTheMean) {
  for (const WireType wire : {WireType::kBfloat16, WireType::kFloat16}) {
    const double rounding =
        std::exp2(wire == WireType::kBfloat16 ? -8.0 : -11.0);
    for (const int64_t elements : kSizes) {
      for (int workers = 1; workers <= 4; ++workers) {
        SCOPED_TRACE(
            absl::StrCat(elements, " elements, ", workers, " workers"));
        WorkerCluster ring(
            JobOf(workers, elements, OptimizerPlace::kWorker, wire),
            elements + workers);
        std::vector<double> sum(elements, 0.0);
        std::vector<double> magnitude(elements, 0.0);
        for (int rank = 0; rank < workers; ++rank) {
          const auto gradient = Noise(elements, rank, 0);
          for (int64_t i = 0; i < elements; ++i) {
            sum[i] += gradient[i];
            magnitude[i] += std::fabs(gradient[i]);
          }
          ring.Push(rank, 0, FloatBuffer(gradient));
        }
        ring.Settle();
        for (int rank = 0; rank < workers; ++rank) {
          ASSERT_EQ(FloatsOf(ring.gradient(rank)), FloatsOf(ring.gradient(0)))
              << rank;
        }
        const std::vector<float> mean = FloatsOf(ring.gradient(0));
        for (int64_t i = 0; i < elements; ++i) {
          // The smallest numbers of fp16 add 2^-39 of the largest value,
          // below 1.
          const double bound =
              (workers + 1) * (1.01 * rounding * magnitude[i] + std::exp2(-38));
          ASSERT_NEAR(mean[i] * workers, sum[i], bound) << "element " << i;
        }
      }
    }
  }
}

TEST_P(AllReduceTest, AllWorkersComputeTheSameParameters) {
  WorkerCluster ring(JobOf(3, 100, OptimizerPlace::kServer), 1);
  for (int64_t round = 0; round < 3; ++round) {
    for (const int rank : {2, 0, 1}) {
      ring.Push(rank, round,
                FloatBuffer(std::vector<float>(100, 3.0f * (rank + 1))));
    }
    ring.Settle();
  }
  std::vector<float> expected = IntegerValues(100, 1000);
  for (float& value : expected) value -= 3 * 6.0f;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(FloatsOf(ring.worker(rank).parameters()), expected);
    // The caller's gradient is unchanged.
    EXPECT_THAT(FloatsOf(ring.gradient(rank)), Each(3.0f * (rank + 1)));
  }
}

TEST_P(AllReduceTest, EveryWorkerMovesThePredictedBytes) {
  for (const int64_t elements : kSizes) {
    for (int workers = 1; workers <= 6; ++workers) {
      const WireType wire = kWireTypes[(elements + workers) % 3];
      WorkerCluster ring(
          JobOf(workers, elements, OptimizerPlace::kWorker, wire), 7);
      std::vector<int64_t> moved(workers, 0);
      // Counts the frames, and loses none.
      ring.set_loses([&](const Frame& frame, PeerId to) {
        EXPECT_EQ(to.role, Role::kWorker);
        for (const int rank : {frame.header.sender.rank, to.rank}) {
          moved[rank] += kFrameHeaderBytes + frame.payload.bytes();
        }
        return false;
      });
      for (int rank = 0; rank < workers; ++rank) {
        ring.Push(rank, 0, FloatBuffer(IntegerValues(elements, rank)));
      }
      ring.Settle();
      const Job& job = ring.job();
      EXPECT_EQ(moved, PredictLinkBytes(job.layers, job.routes, job.placement,
                                        HostMap::OneEach(workers, job.shards()),
                                        kFrameHeaderBytes, kFrameElementsMax))
          << elements << " elements, " << workers << " workers";
    }
  }
}

TEST_P(AllReduceTest, MissingNamesTheWorkerThatHasNotContributed) {
  constexpr int64_t kElements = 200001;
  for (int missing = 0; missing < 5; ++missing) {
    WorkerCluster ring(JobOf(5, kElements), missing);
    for (int rank = 0; rank < 5; ++rank) {
      if (rank == missing) continue;
      ring.Push(rank, 0, FloatBuffer(IntegerValues(kElements, rank)));
    }
    ring.Settle();
    for (int rank = 0; rank < 5; ++rank) {
      if (rank == missing) continue;
      EXPECT_EQ(ring.worker(rank).syncer().Missing(),
                absl::StrCat("worker ", missing));
    }
  }
}

// The mean of a single gradient is the gradient. It is checked all the same.
TEST_P(AllReduceTest, ALoneWorkersGradientIsCheckedAndNotCopied) {
  const JobPtr job = JobOf(1, 3);
  WorkerMachine machine(job, 0, {{Buffer::AllocateZeroed(3 * 4), Buffer()}});
  Outbox out;
  machine.Start(out);
  Carry(out);
  DeliverAll(machine, PeerId::Shard(0),
             FramesOf(*job, PeerId::Shard(0), FrameKind::kResult, 0, 0,
                      kInitialRound, {0, 0, 0}));
  ASSERT_TRUE(machine.OnPush(0, 0, FloatBuffer({1, 2, 3}), out).ok());
  const auto count = [&](auto matches) {
    return absl::c_count_if(out.actions(), matches);
  };
  EXPECT_EQ(count([](const Action& action) {
              return std::holds_alternative<CheckValues>(action);
            }),
            1);
  EXPECT_EQ(count([](const Action& action) {
              return std::holds_alternative<CopyValues>(action) ||
                     std::holds_alternative<Accumulate>(action);
            }),
            0);
  EXPECT_THAT(Carry(out).done, SizeIs(1));
}

TEST_P(AllReduceTest, FactorsAreMultipliedBeforeTheyAreSent) {
  const JobPtr job = TestJob(1, 1, {FactorLayer("fc", 2, 3, true, 1)},
                             PlainSgd(OptimizerPlace::kWorker), GetParam());
  WorkerMachine machine(job, 0, {{Buffer::AllocateZeroed(8 * 4), Buffer()}});
  Outbox out;
  machine.Start(out);
  Carry(out);
  DeliverAll(machine, PeerId::Shard(0),
             FramesOf(*job, PeerId::Shard(0), FrameKind::kResult, 0, 0,
                      kInitialRound, IntegerValues(8, 0)));
  const Buffer gradient = Buffer::AllocateZeroed(8 * 4);
  ASSERT_TRUE(machine
                  .OnPushFactors(
                      0, 0,
                      {FloatBuffer({2, 3}), FloatBuffer({5, 7, 11}), gradient},
                      out)
                  .ok());
  EXPECT_THAT(Carry(out).done, SizeIs(1));
  EXPECT_EQ(FloatsOf(gradient),
            (std::vector<float>{10, 14, 22, 15, 21, 33, 2, 3}));
}

// Three workers, of which worker 1 has pushed. From worker 0 it takes the sums
// of segments 0 and 2, and then the means of segments 0 and 1.
struct RefusalCase {
  const char* name;
  std::function<void(FrameHeader&)> spoil;
  const char* message;
};

// Expects that worker 1 refuses the first frame of worker 0's sum, which has
// `length` values, once the case has spoilt its header.
void ExpectRefused(Scheme scheme, int64_t length, const RefusalCase& c) {
  const JobPtr job = JobBy(scheme, 3, 300);
  WorkerCluster workers(job, 1);
  workers.Push(1, 0, FloatBuffer(IntegerValues(300, 1)));
  WorkerMachine& machine = workers.worker(1).machine();
  FrameHeader header = FramesOf(*job, PeerId::Worker(0), FrameKind::kSum, 0,
                                /*chunk=*/0, 0, IntegerValues(length, 0))
                           .front()
                           .header;
  ASSERT_TRUE(machine.OnHeader(header.sender, header).ok());
  c.spoil(header);
  const absl::Status status = machine.OnHeader(header.sender, header).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
}

class RingRefusalTest : public testing::TestWithParam<RefusalCase> {};

TEST_P(RingRefusalTest, IsRefusedWithTheReason) {
  ExpectRefused(Scheme::kRing, RingSegments(300, 3).Length(0), GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Headers, RingRefusalTest,
    testing::Values(
        RefusalCase{"AnotherSender",
                    [](FrameHeader& h) { h.sender = PeerId::Worker(2); },
                    "the frame must come from worker 0"},
        RefusalCase{"Shard",
                    [](FrameHeader& h) { h.sender = PeerId::Shard(0); },
                    "frames of workers"},
        RefusalCase{"OwnSegment", [](FrameHeader& h) { h.chunk = 1; },
                    "begins with this host"},
        RefusalCase{"NoSuchSegment", [](FrameHeader& h) { h.chunk = 3; },
                    "the ring has 3 segments"},
        RefusalCase{"Part", [](FrameHeader& h) { h.part = 1; },
                    "the part must be 0"},
        RefusalCase{"Offset", [](FrameHeader& h) { h.offset = 65536; },
                    "the offset"},
        RefusalCase{"Length", [](FrameHeader& h) { h.payload_bytes -= 4; },
                    "the payload must have"},
        RefusalCase{"InitialRound", [](FrameHeader& h) { h.round = -1; },
                    "rounds 0 and 1 are open"},
        RefusalCase{"RoundAhead", [](FrameHeader& h) { h.round = 2; },
                    "rounds 0 and 1 are open"},
        RefusalCase{"MeanAhead",
                    [](FrameHeader& h) {
                      h.kind = FrameKind::kMean;
                      h.round = 1;
                    },
                    "the mean lacks the gradient of this worker"},
        RefusalCase{"MeanOfItsOwn",
                    [](FrameHeader& h) {
                      h.kind = FrameKind::kMean;
                      h.chunk = 2;
                      h.payload_bytes = 4 * (300 - 2 * 112);
                    },
                    "this host makes the mean of that segment"},
        RefusalCase{"Factors",
                    [](FrameHeader& h) { h.kind = FrameKind::kFactors; },
                    "goes by scheme ring"},
        RefusalCase{"PullRound",
                    [](FrameHeader& h) {
                      h.kind = FrameKind::kPullRound;
                      h.wire = WireType::kNone;
                      h.payload_bytes = 0;
                    },
                    "does not send that round to other workers"}),
    [](const auto& info) { return info.param.name; });

// Three workers, of which worker 1 has pushed. It takes the gradients of
// workers 0 and 2.
class DirectRefusalTest : public testing::TestWithParam<RefusalCase> {};

TEST_P(DirectRefusalTest, IsRefusedWithTheReason) {
  ExpectRefused(Scheme::kDirect, 300, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Headers, DirectRefusalTest,
    testing::Values(
        RefusalCase{"AnotherSender",
                    [](FrameHeader& h) { h.sender = PeerId::Worker(2); },
                    "the frame must come from worker 0"},
        RefusalCase{"OwnHost", [](FrameHeader& h) { h.chunk = 1; },
                    "the round has 3 hosts, and this one is number 1"},
        RefusalCase{"NoSuchHost", [](FrameHeader& h) { h.chunk = 3; },
                    "the round has 3 hosts"},
        RefusalCase{"Part", [](FrameHeader& h) { h.part = 1; },
                    "the part must be 0"},
        RefusalCase{"Offset", [](FrameHeader& h) { h.offset = 65536; },
                    "the offset"},
        RefusalCase{"Length", [](FrameHeader& h) { h.payload_bytes -= 4; },
                    "the payload must have"},
        RefusalCase{"RoundAhead", [](FrameHeader& h) { h.round = 2; },
                    "rounds 0 and 1 are open"},
        RefusalCase{"Mean", [](FrameHeader& h) { h.kind = FrameKind::kMean; },
                    "goes by scheme direct"},
        RefusalCase{"Outcome",
                    [](FrameHeader& h) { h.kind = FrameKind::kOutcome; },
                    "the frame must come from worker 1"}),
    [](const auto& info) { return info.param.name; });

// A gradient that arrives before this worker has pushed waits for it, and one
// that arrives twice counts once.
TEST(DirectExchangeTest, EarlyAndRepeatedGradientsCountOnce) {
  const JobPtr job = JobBy(Scheme::kDirect, 2, 3);
  WorkerCluster workers(job, 1);
  WorkerMachine& machine = workers.worker(1).machine();
  const std::vector<Frame> frames = FramesOf(
      *job, PeerId::Worker(0), FrameKind::kSum, 0, /*chunk=*/0, 0, {1, 2, 3});
  DeliverAll(machine, PeerId::Worker(0), frames);
  const auto landing =
      machine.OnHeader(PeerId::Worker(0), frames.front().header);
  ASSERT_TRUE(landing.ok()) << landing.status();
  EXPECT_EQ(landing->kind, Landing::Kind::kDiscard);
  workers.Push(1, 0, FloatBuffer({3, 4, 5}));
  workers.Settle();
  EXPECT_EQ(workers.worker(1).syncer().done_round(), 0);
  EXPECT_EQ(FloatsOf(workers.gradient(1)), (std::vector<float>{2, 3, 4}));
}

}  // namespace
}  // namespace nereus
