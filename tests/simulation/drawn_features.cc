#include "tests/simulation/drawn_features.h"

#include "absl/algorithm/container.h"
#include "common/base/random.h"
#include "tests/simulation/simulated_jobs.h"

namespace nereus {
namespace {

// Makes processes share hosts in some seeds. A generator of its own keeps the
// jobs of all other seeds as they were. Most jobs stay small, because the work
// of a simulated job grows with the square of its workers.
void DrawPlaces(uint64_t seed, SimulatedClusterOptions& options) {
  Random random(seed ^ 0x9b60933458e17d7d);
  if (!random.Chance(0.4)) return;
  Places& places = options.places;
  const uint64_t hosts = 1 + random.Below(1 + random.Below(6));
  for (uint64_t i = 0; i < hosts; ++i) {
    places.workers_on.push_back(1 + static_cast<int>(random.Below(4)));
  }
  for (int i = 0; i < options.shards; ++i) {
    // A shared host, or -1 for a host of its own.
    places.server_hosts.push_back(static_cast<int>(random.Below(hosts + 1)) -
                                  1);
  }
  options.workers = absl::c_accumulate(places.workers_on, 0);
  options.min_workers = 1 + static_cast<int>(random.Below(options.workers));
  options.max_workers = options.workers + static_cast<int>(random.Below(4));
}

// Gives some jobs partial rounds, and others sparse rounds. Both exclude some
// of the other features.
void DrawRounds(Random& random, SimulatedClusterOptions& options) {
  if (random.Chance(0.2)) {
    constexpr Quorum kQuorums[] = {Quorum::kMajority, Quorum::kSolo,
                                   Quorum::kEach};
    constexpr int64_t kStaleness[] = {0, 1, 5, kStalenessMax};
    options.job.rounds.quorum = kQuorums[random.Below(3)];
    options.job.rounds.staleness = kStaleness[random.Below(4)];
    options.job.optimizer_place = OptimizerPlace::kServer;
    options.job.deterministic = false;
    options.job.backup = false;
    options.rules.forced.reset();
    options.rules.choose_wire = false;
  } else if (random.Chance(0.25)) {
    constexpr double kSparsity[] = {0.3, 0.9, 0.99};
    constexpr int64_t kBlocks[] = {256, 5000, 65536};
    options.job.sparsity.share = kSparsity[random.Below(3)];
    options.job.sparsity.block_elements = kBlocks[random.Below(3)];
    options.job.sparsity.dense_steps = static_cast<int64_t>(random.Below(5));
    options.job.optimizer.rule = UpdateRule::kSgd;
    options.job.optimizer_place = OptimizerPlace::kServer;
    if (options.rules.cost == CostKind::kTime) return;
    options.rules.forced = random.Chance(0.5)      ? Scheme::kServer
                           : options.seed % 2 == 0 ? Scheme::kRing
                                                   : Scheme::kDirect;
  }
}

}  // namespace

SimulatedClusterOptions DrawFeatures(uint64_t seed) {
  Random random(seed ^ 0x2545f491);
  // RandomJob draws members, schemes, overlap, fusion, wire types, changes of
  // the plan, the optimizer and its place, the order of sums, delays, and
  // frames that arrive twice.
  SimulatedClusterOptions options = RandomJob(seed);
  options.samples_each_step = seed % 4 != 0;

  // The job may go on with fewer workers, and more workers may join.
  options.min_workers = 1 + static_cast<int>(random.Below(options.workers));
  options.max_workers = options.workers + static_cast<int>(random.Below(4));
  DrawPlaces(seed, options);

  // With ExactSgd, CountedOnceLaw can compute means from changes of parameters.
  if (random.Chance(0.5)) {
    UseExactSgd(options.job);
    options.rules.wire = WireType::kFloat32;
    options.rules.choose_wire = false;
  }

  // In half of the seeds nodes have a rate, so that bytes take time.
  if (random.Chance(0.5)) {
    const double rate = 30e6 + random.Uniform() * 1e9;
    options.places.node_rate = {rate, rate};
    options.network.window_bytes = int64_t{1} << (16 + random.Below(5));
  }
  options.layer_time_max = absl::Microseconds(100 + random.Below(5000));

  // Checkpoints are regular, made on request only, or impossible (no disk).
  options.has_disk = random.Chance(0.8);
  if (options.has_disk) {
    options.job.checkpoint_every = static_cast<int64_t>(random.Below(4));
    options.checkpoints_kept = 1 + static_cast<int>(random.Below(3));
    options.disk_time_max = absl::Milliseconds(1 + random.Below(60));
    if (random.Chance(0.2)) options.disk.failure_probability = 0.1;
  }

  options.lease = absl::Milliseconds(2500 + random.Below(2500));
  options.job.backup = options.shards > 1 && random.Chance(0.5);
  options.coordinator_is_shard_0 = random.Chance(0.5);

  DrawRounds(random, options);
  return options;
}

}  // namespace nereus
