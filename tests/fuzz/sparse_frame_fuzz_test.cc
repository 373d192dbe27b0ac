// Feeds hostile headers to the machines of a job with --sparsity. See
// frame_fuzz_test.cc.

#include <gtest/gtest.h>

#include <vector>

#include "common/base/random.h"
#include "common/protocol/frame.h"
#include "server/shard/shard.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/mutation.h"
#include "worker/machine/worker_machine.h"

namespace nereus {
namespace {

constexpr int kWorkers = 3;
constexpr int64_t kLarge = 65536 + 7;

JobPtr FuzzedJob(Random& random) {
  JobOptions options;
  options.sparsity.share = 0.5;
  options.sparsity.block_elements =
      1000 + static_cast<int64_t>(random.Below(60000));
  options.sparsity.dense_steps = static_cast<int64_t>(random.Below(3));
  options.deterministic = random.Chance(0.5);
  return TestJob(kWorkers, 1,
                 {VectorLayer("large", kLarge), VectorLayer("small", 5)},
                 options, random.Chance(0.5) ? Scheme::kServer : Scheme::kRing);
}

// Returns a mutated header of a frame that this job could see.
FrameHeader AnyHeader(Random& random, const Job& job, PeerId sender) {
  constexpr FrameKind kKinds[] = {FrameKind::kContribution, FrameKind::kResult,
                                  FrameKind::kSum, FrameKind::kMean,
                                  FrameKind::kFinished};
  const auto layer = static_cast<int>(random.Below(job.layers.size()));
  FrameHeader header =
      MakeHeader(job, sender, kKinds[random.Below(std::size(kKinds))], layer, 0,
                 static_cast<int64_t>(random.Below(3)) - 1);
  const FrameGrid grid = job.GridOf(job.placement.layer_chunks(layer)[0]);
  const auto frames = static_cast<uint64_t>(grid.Count());
  header =
      CutHeader(job, header, grid, static_cast<int64_t>(random.Below(frames)));
  header.chunk = static_cast<uint32_t>(random.Below(2));
  header.part = static_cast<uint8_t>(random.Below(2));
  header.frames = static_cast<uint16_t>(random.Below(frames + 2));
  if (random.Chance(0.2)) header.payload_bytes = 0;
  if (random.Chance(0.5)) MutateHeader(random, header);
  return header;
}

void AnnounceMany(Random& random, const Job& job, Machine& machine,
                  PeerId from) {
  for (int i = 0; i < 200; ++i) {
    const FrameHeader header = AnyHeader(random, job, from);
    const auto landing = machine.OnHeader(from, header);
    if (!landing.ok()) {
      ASSERT_EQ(landing.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(landing.status().message().empty());
      continue;
    }
    ASSERT_LE(header.payload_bytes, kFramePayloadBytesMax);
    if (landing->kind == Landing::Kind::kPlace) {
      ASSERT_EQ(landing->place.bytes(), FloatBytes(header));
    }
  }
}

TEST(SparseFrameFuzzTest, MachinesSurviveHostileHeaders) {
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    const JobPtr job = FuzzedJob(random);
    Shard shard(job, 0);
    WorkerMachine worker(job, 0,
                         {{Buffer::AllocateZeroed(kLarge * 4), Buffer()},
                          {Buffer::AllocateZeroed(5 * 4), Buffer()}});
    Outbox out;
    worker.Start(out);
    Carry(out);
    for (int layer = 0; layer < 3; ++layer) {
      const std::vector<float> values(job->layers[layer].parameters, 1.0f);
      const auto frames = [&](PeerId sender, FrameKind kind) {
        return FramesOf(*job, sender, kind, layer, 0, kInitialRound, values);
      };
      DeliverAll(shard, PeerId::Worker(0),
                 frames(PeerId::Worker(0), FrameKind::kContribution));
      DeliverAll(worker, PeerId::Shard(0),
                 frames(PeerId::Shard(0), FrameKind::kResult));
    }
    for (int layer = 0; layer < 2; ++layer) {
      const Buffer gradient =
          FloatBuffer(std::vector<float>(job->layers[layer].parameters, 2.0f));
      ASSERT_TRUE(worker.OnPush(layer, 0, gradient, out).ok());
      for (const Effects::Sent& sent : Carry(out).sent) {
        if (sent.to == PeerId::Shard(0) && random.Chance(0.7)) {
          DeliverAll(shard, PeerId::Worker(0), {sent.frame});
        }
        const auto other = static_cast<int>(random.Below(kWorkers));
        AnnounceMany(random, *job, shard, PeerId::Worker(other));
        AnnounceMany(random, *job, worker, PeerId::Worker(2));
        AnnounceMany(random, *job, worker, PeerId::Shard(0));
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
}

}  // namespace
}  // namespace nereus
