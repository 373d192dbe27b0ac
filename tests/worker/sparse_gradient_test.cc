#include "worker/machine/sparse_gradient.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/compute/blocks.h"
#include "tests/testing/machine_harness.h"
#include "worker/machine/worker_machine.h"

namespace nereus {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kBlock = 256;

// Length of a layer of three blocks; the last one is short.
constexpr int64_t kElements = 600;

JobPtr SparseJob(int workers, Scheme scheme = Scheme::kServer) {
  JobOptions options;
  options.sparsity.share = 0.6;
  options.sparsity.block_elements = kBlock;
  options.sparsity.dense_steps = 0;
  options.optimizer.momentum = 0.5f;
  return TestJob(workers, 1, {VectorLayer("v", kElements)}, options, scheme);
}

BlockChoice Choice(std::vector<float> values) {
  return std::make_shared<const std::vector<float>>(std::move(values));
}

Buffer Filled(float value) {
  return FloatBuffer(std::vector<float>(kElements, value));
}

TEST(SparseGradientTest, ABlockTravelsWithItsResidual) {
  const JobPtr job = SparseJob(1);
  SparseGradient sparse(*job, 0, /*keeps_residual=*/true);
  const Buffer parameters = Filled(0.0f);
  const auto begin = [&](const BlockChoice& choice, const Buffer& gradient) {
    const Buffer norms = FloatBuffer({0, 0, 0});
    Outbox out;
    sparse.Begin(*job, choice, gradient, parameters, norms, out);
    Carry(out);
    return FloatsOf(norms);
  };
  const Buffer gradient = Filled(2.0f);
  // The last block has 88 values.
  EXPECT_THAT(begin(Choice({1, 0, 0}), gradient), ElementsAre(512, 512, 176));
  EXPECT_TRUE(sparse.travels(0));
  EXPECT_FALSE(sparse.travels(1));
  // The gradient is not copied.
  EXPECT_EQ(sparse.Contribution(0, kBlock).data(), gradient.data());
  EXPECT_EQ(sparse.held(0).bytes(), 0);
  EXPECT_THAT(FloatsOf(sparse.held(1)), Each(2.0f));
  sparse.End();
  // The residual of block 1: velocity u = 0.5 * 2 + 2, sum v = 2 + u.
  EXPECT_THAT(begin(Choice({0, -1, 3}), Filled(2.0f)),
              ElementsAre(512, 5 * 256, 176));
  EXPECT_THAT(FloatsOf(sparse.Contribution(512, 88)), Each(5.0f));
  EXPECT_TRUE(sparse.resumes(2));
  sparse.End();
  EXPECT_EQ(sparse.held(2).bytes(), 0);
  EXPECT_THAT(FloatsOf(sparse.held(1)), Each(5.0f));
  // The residual that travelled is not in the next residual.
  EXPECT_THAT(begin(Choice({4, -2, 0}), Filled(1.0f)),
              ElementsAre(256, (5 + 2.5) * 256, 88));
  EXPECT_THAT(FloatsOf(sparse.held(2)), Each(1.0f));
  EXPECT_THAT(FloatsOf(sparse.Contribution(0, kBlock)), Each(4.0f));
}

// There may be other blocks between them.
TEST(SparseGradientTest, BlocksThatTravelAreMovedToTheBeginOfTheGradient) {
  const JobPtr job = SparseJob(1);
  SparseGradient sparse(*job, 0, /*keeps_residual=*/true);
  const Buffer gradient = FloatBuffer(IntegerValues(kElements, 3));
  const std::vector<float> before = FloatsOf(gradient);
  Outbox out;
  sparse.Begin(*job, Choice({0, 1, 1}), gradient, Filled(0.0f),
               FloatBuffer({0, 0, 0}), out);
  Carry(out);
  EXPECT_EQ(sparse.Contribution(kBlock, kBlock).data(), gradient.data());
  const auto part = [&](int64_t begin, int64_t end) {
    return std::vector<float>(before.begin() + begin, before.begin() + end);
  };
  EXPECT_EQ(FloatsOf(sparse.Contribution(256, 256)), part(256, 512));
  EXPECT_EQ(FloatsOf(sparse.Contribution(512, 88)), part(512, 600));
  EXPECT_EQ(FloatsOf(sparse.Contribution(520, 80)), part(520, 600));
  EXPECT_EQ(FloatsOf(sparse.held(0)), part(0, 256));
}

TEST(SparseGradientTest, TheDriverMayKeepTheResidual) {
  const JobPtr job = SparseJob(1);
  SparseGradient sparse(*job, 0, /*keeps_residual=*/false);
  const auto begin = [&](const BlockChoice& choice) {
    Outbox out;
    sparse.Begin(*job, choice, Filled(1.0f), Filled(0.0f),
                 FloatBuffer({0, 0, 0}), out);
    sparse.End();
    const auto split = std::get<SplitGradient>(out.actions().front());
    EXPECT_EQ(split.held.bytes() + split.velocity.bytes(), 0);
    return split.uses;
  };
  EXPECT_THAT(begin(Choice({0, 1, 1})),
              ElementsAre(PieceUse::kHeldFirst, PieceUse::kTravels,
                          PieceUse::kTravels));
  EXPECT_THAT(
      begin(Choice({-1, 1, 0})),
      ElementsAre(PieceUse::kHeld, PieceUse::kTravels, PieceUse::kHeldFirst));
  EXPECT_THAT(
      begin(Choice({3, 0, -1})),
      ElementsAre(PieceUse::kResumes, PieceUse::kHeldFirst, PieceUse::kHeld));
}

TEST(SparseGradientTest, WithoutValuesBlocksTakeTurns) {
  JobOptions options;
  options.sparsity.share = 0.75;
  options.sparsity.block_elements = kBlock;
  options.sparsity.dense_steps = 1;
  const JobPtr job = TestJob(2, 1, {VectorLayer("v", 20 * kBlock)}, options);
  const Buffer sizes = Buffer::SizeOnly(20 * 4);
  EXPECT_THAT(*ReadChoice(*job, sizes, 0), Each(kFirstChoice));
  std::vector<int> travelled(20, 0);
  for (int64_t round = 1; round <= 4; ++round) {
    const BlockChoice choice = ReadChoice(*job, sizes, round);
    for (int block = 0; block < 20; ++block) {
      if (Travels((*choice)[block])) ++travelled[block];
    }
  }
  EXPECT_THAT(travelled, Each(1));
}

// Worker of a sparse job, and its shard's side of the connection.
class SparseWorker {
 public:
  explicit SparseWorker(JobPtr job)
      : job_(std::move(job)),
        parameters_(Filled(0.0f)),
        machine_(job_, 0, {{parameters_, Buffer()}}) {
    Outbox out;
    machine_.Start(out);
    Carry(out);
    Result(0, kInitialRound, std::vector<float>(kElements, 0.0f));
  }

  Effects Result(int layer, int64_t round, const std::vector<float>& values) {
    return DeliverAll(machine_, PeerId::Shard(0),
                      FramesOf(*job_, PeerId::Shard(0), FrameKind::kResult,
                               layer, 0, round, values));
  }
  Effects Push(int64_t round, float value) {
    Outbox out;
    gradient_ = Filled(value);
    EXPECT_TRUE(machine_.OnPush(0, round, gradient_, out).ok());
    return Carry(out);
  }
  WorkerMachine& machine() { return machine_; }

 private:
  JobPtr job_;
  Buffer parameters_;
  Buffer gradient_;
  WorkerMachine machine_;
};

TEST(SparseWorkerTest, APushWaitsForTheChoice) {
  SparseWorker worker(SparseJob(1));
  EXPECT_THAT(worker.Push(0, 2.0f).sent, IsEmpty());
  EXPECT_THAT(worker.machine().Missing(0),
              HasSubstr("which blocks travel, from shard 0"));
  Effects effects = worker.Result(1, kInitialRound, {1, 1, 1});
  // The block layer is not the caller's.
  EXPECT_THAT(effects.done, IsEmpty());
  // All blocks are sent, and their norms.
  ASSERT_THAT(effects.sent, SizeIs(4));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(effects.sent[i].frame.header.layer, 0u);
    EXPECT_EQ(effects.sent[i].frame.header.frames, 3);
    EXPECT_EQ(effects.sent[i].frame.header.part, kValuesPart);
  }
  EXPECT_EQ(effects.sent[3].frame.header.layer, 1u);
  EXPECT_THAT(FloatsOf(effects.sent[3].frame.payload),
              ElementsAre(512, 512, 176));
  EXPECT_THAT(worker.Result(0, 0, std::vector<float>(kElements, 1.0f)).done,
              SizeIs(1));

  EXPECT_THAT(worker.Push(1, 2.0f).sent, IsEmpty());
  effects = worker.Result(1, 0, {0, 2, 0});
  ASSERT_THAT(effects.sent, SizeIs(2));
  EXPECT_EQ(effects.sent[0].frame.header.offset, 256u);
  EXPECT_EQ(effects.sent[0].frame.header.frames, 1);
  EXPECT_EQ(effects.sent[0].frame.header.part, kResumedPart);
  EXPECT_EQ(effects.sent[1].frame.header.layer, 1u);
}

TEST(SparseWorkerTest, ARingRefusesBlocksThatDoNotTravel) {
  const JobPtr job = SparseJob(2, Scheme::kRing);
  SparseWorker worker(job);
  worker.Result(1, kInitialRound, {0, 1, 0});
  worker.Push(0, 2.0f);
  FrameHeader header = MakeHeader(*job, PeerId::Worker(1), FrameKind::kSum, 0,
                                  /*chunk=*/1, /*round=*/0);
  const FrameGrid grid = job->GridOf(job->placement.layer_chunks(0)[0]);
  const auto refusal = [&](const FrameHeader& wrong) {
    return std::string(
        worker.machine().OnHeader(PeerId::Worker(1), wrong).status().message());
  };
  EXPECT_EQ(refusal(CutHeader(*job, header, grid, 1)), "");
  EXPECT_THAT(refusal(CutHeader(*job, header, grid, 0)),
              HasSubstr("that block's segment is 0"));
  FrameHeader empty = CutHeader(*job, header, grid, 0);
  empty.payload_bytes = 0;
  EXPECT_THAT(refusal(empty), HasSubstr("does not travel in this round"));
}

}  // namespace
}  // namespace nereus
