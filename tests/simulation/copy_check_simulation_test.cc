// The memory of a server changes a value, on the primary or on the backup of a
// shard. The coordinator must end the job with an error that names both
// servers. That equal copies give no alarm is checked in all other simulations
// with backups, in which such an alarm ends the run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Returns a job whose servers own all layers, with a backup of each shard.
SimulatedClusterOptions JobOfServers(uint64_t seed, bool has_disk) {
  SimulatedClusterOptions options = RandomJob(seed);
  options.workers = 2;
  options.shards = 2;
  options.job.backup = true;
  options.job.optimizer_place = OptimizerPlace::kServer;
  options.rules.cost = CostKind::kBytes;
  options.rules.forced = Scheme::kServer;
  options.network.delay_max = absl::Milliseconds(1);
  options.layer_time_max = absl::Microseconds(100);
  options.has_disk = has_disk;
  options.disk = {};
  options.job.checkpoint_every = has_disk ? 5 : 0;
  options.corrupts = true;
  return options;
}

// Changes one bit of a chunk on a server: a bit of the mantissa of a parameter,
// which no check of values finds. The rounding of later updates does not undo
// it, as it may the lowest bit.
class Flip {
 public:
  Flip(uint64_t seed, bool on_primary, SimulatedCluster* cluster) {
    Random random(seed ^ 0x51ed);
    const Job& job = cluster->job();
    const auto& chunks = job.placement.chunks();
    chunk_ = chunks[random.Below(chunks.size())];
    while (chunk_.layer == job.pool.layer) {
      chunk_ = chunks[random.Below(chunks.size())];
    }
    const ShardServers& servers = job.shard_servers[chunk_.shard];
    const int rank = on_primary ? servers.primary : servers.backup;
    const ServerMachine& server =
        *cluster->processes()[cluster->processes().shard_process(rank)].server;
    const Buffer values = server.shard(chunk_.shard)
                              ->chunk(chunk_.layer, chunk_.index)
                              .held()
                              .parameters;
    float& value = values.floats()[random.Below(values.float_count())];
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    bits ^= 1u << 20;
    std::memcpy(&value, &bits, sizeof(bits));
  }
  const Chunk& chunk() const { return chunk_; }

 private:
  Chunk chunk_;
};

// `steps`: steps after which the difference must have been found.
void ExpectFound(uint64_t seed, bool on_primary, bool has_disk, int64_t steps) {
  SimulatedCluster cluster(JobOfServers(seed, has_disk),
                           RandomWorkload(MixedLayers(), seed));
  ASSERT_TRUE(cluster.RunSteps(2).ok());
  const Flip flip(seed, on_primary, &cluster);
  const absl::Status status = cluster.RunSteps(steps);
  ASSERT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  const int shard = flip.chunk().shard;
  const std::string layer = cluster.job().layers[flip.chunk().layer].name;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(absl::StrCat("the two copies of shard ", shard,
                                           " differ after step ")),
                    HasSubstr(absl::StrCat("of layer ", layer, ", chunk ",
                                           flip.chunk().index)),
                    HasSubstr("on shard 0 ("), HasSubstr("on shard 1 (")));
}

TEST(CopyCheckSimulationTest, FlippedBitEndsTheJobAtTheNextCheckpoint) {
  for (const uint64_t seed : TestSeeds(20)) {
    SCOPED_TRACE(ReplayHint(seed));
    // The reports are on their way while workers make further steps.
    ExpectFound(seed, /*on_primary=*/seed % 2 == 0, /*has_disk=*/true,
                /*steps=*/100);
  }
}

// A shard of this model has at most six chunks, and each is compared once in so
// many times 64 rounds.
TEST(CopyCheckSimulationTest, FlippedBitEndsAJobWithoutCheckpoints) {
  for (const uint64_t seed : TestSeeds(4)) {
    SCOPED_TRACE(ReplayHint(seed));
    ExpectFound(seed, /*on_primary=*/seed % 2 == 0, /*has_disk=*/false,
                /*steps=*/64 * 8);
  }
}

// A value that an update overwrites with equal bits is equal again; so is a
// shard whose backup was copied anew. These are no alarms.
TEST(CopyCheckSimulationTest, NewCopyEndsTheDifference) {
  const uint64_t seed = 3;
  SimulatedCluster cluster(JobOfServers(seed, /*has_disk=*/true),
                           RandomWorkload(MixedLayers(), seed));
  ASSERT_TRUE(cluster.RunSteps(1).ok());
  const Flip flip(seed, /*on_primary=*/false, &cluster);
  const int backup = cluster.job().shard_servers[flip.chunk().shard].backup;
  cluster.faults().Crash(cluster.processes().shard_process(backup));
  cluster.faults().StartShard(backup);
  EXPECT_EQ(cluster.RunSteps(20), absl::OkStatus());
}

}  // namespace
}  // namespace nereus
