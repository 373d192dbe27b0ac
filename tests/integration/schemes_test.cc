// Jobs of real servers and clients in one process, with each scheme and
// overlap. Frames go through sockets or shared memory.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/driver/arithmetic.h"
#include "common/driver/compute.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/toy_worker.h"
#include "worker/machine/step_ledger.h"

namespace nereus {
namespace {

using testing::Each;

ServerOptions Job(int workers, int shards) {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = workers;
  options.spec.shards = shards;
  return options;
}

// Parameters of a worker, by layer.
using Parameters = std::vector<std::vector<float>>;

// Runs a job. Each worker calls `train` on a thread of its own. Returns the
// parameters of the workers.
std::vector<Parameters> RunJob(
    const ServerOptions& options,
    const std::function<absl::Status(int index, ToyWorker& worker,
                                     ClientOptions options)>& train) {
  LocalCluster cluster(options);
  std::vector<ToyWorker> workers;
  for (int i = 0; i < options.spec.workers; ++i) {
    workers.emplace_back(SmallModel());
  }
  const auto results = cluster.RunWorkers(options.spec.workers, [&](int i) {
    return train(i, workers[i], cluster.client_options());
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
  std::vector<Parameters> parameters;
  for (const ToyWorker& worker : workers) {
    parameters.push_back(worker.parameters());
  }
  return parameters;
}

// Does 20 steps, and waits for each layer when the next step needs it.
absl::Status TrainLayerByLayer(int, ToyWorker& worker,
                               const ClientOptions& client) {
  return worker.TrainLayerByLayer(client, 20);
}

struct SchemeCase {
  const char* name;
  std::optional<Scheme> forced;
  OptimizerPlace place;
  UpdateRule rule;
  Overlap overlap = Overlap::kWaitFree;
  WireType wire = WireType::kFloat32;
  int64_t fusion_bytes = kNoFusion;
};

class AllSchemesTest : public testing::TestWithParam<SchemeCase> {};

TEST_P(AllSchemesTest, ReplicasAreEqualBitForBit) {
  ServerOptions options = Job(3, 2);
  options.spec.rules.forced = GetParam().forced;
  options.spec.options.optimizer_place = GetParam().place;
  options.spec.options.optimizer.rule = GetParam().rule;
  options.spec.options.overlap = GetParam().overlap;
  options.spec.rules.wire = GetParam().wire;
  options.spec.options.fusion_bytes = GetParam().fusion_bytes;
  const auto parameters =
      RunJob(options, [](int i, ToyWorker& worker, ClientOptions client) {
        client.means_in_place = i != 1;
        client.shared_memory = i != 2;
        return worker.Train(client, 20);
      });
  EXPECT_EQ(parameters[0], parameters[1]);
  EXPECT_EQ(parameters[0], parameters[2]);
  // Training has changed the parameters.
  EXPECT_NE(parameters[0][0][0], 1.0f);
}

INSTANTIATE_TEST_SUITE_P(
    All, AllSchemesTest,
    testing::Values(
        SchemeCase{"Auto", std::nullopt, OptimizerPlace::kServer,
                   UpdateRule::kSgd},
        SchemeCase{"Server", Scheme::kServer, OptimizerPlace::kServer,
                   UpdateRule::kAdam},
        SchemeCase{"Factor", Scheme::kFactor, OptimizerPlace::kServer,
                   UpdateRule::kAdam},
        SchemeCase{"Ring", Scheme::kRing, OptimizerPlace::kServer,
                   UpdateRule::kAdam},
        SchemeCase{"RingWorkersUpdate", Scheme::kRing, OptimizerPlace::kWorker,
                   UpdateRule::kSgd},
        SchemeCase{"Direct", Scheme::kDirect, OptimizerPlace::kServer,
                   UpdateRule::kAdam},
        SchemeCase{"FusedDirectWorkersUpdate", Scheme::kDirect,
                   OptimizerPlace::kWorker, UpdateRule::kSgd,
                   Overlap::kWaitFree, WireType::kBfloat16, 1 << 16},
        SchemeCase{"NoOverlap", std::nullopt, OptimizerPlace::kServer,
                   UpdateRule::kSgd, Overlap::kNone},
        SchemeCase{"Bfloat16", std::nullopt, OptimizerPlace::kServer,
                   UpdateRule::kAdam, Overlap::kWaitFree, WireType::kBfloat16},
        SchemeCase{"Float16Ring", Scheme::kRing, OptimizerPlace::kServer,
                   UpdateRule::kSgd, Overlap::kWaitFree, WireType::kFloat16},
        SchemeCase{"Float16WorkersUpdate", std::nullopt,
                   OptimizerPlace::kWorker, UpdateRule::kSgd,
                   Overlap::kWaitFree, WireType::kFloat16},
        SchemeCase{"Fused", std::nullopt, OptimizerPlace::kServer,
                   UpdateRule::kAdam, Overlap::kWaitFree, WireType::kFloat32,
                   1 << 16},
        SchemeCase{"FusedRing", Scheme::kRing, OptimizerPlace::kServer,
                   UpdateRule::kSgd, Overlap::kWaitFree, WireType::kBfloat16,
                   1 << 20},
        SchemeCase{"WorkersUpdate", std::nullopt, OptimizerPlace::kWorker,
                   UpdateRule::kSgd}),
    [](const auto& info) { return info.param.name; });

// The servers update layers that go by them, and the worker those of a ring.
TEST(SchemesTest, ServersAndWorkersTakeTheSameScheduledSteps) {
  for (const UpdateRule rule : {UpdateRule::kNesterov, UpdateRule::kAdamW}) {
    std::vector<Parameters> all;
    for (const absl::string_view schedule :
         {"0:0.01,5:1,20:0:cosine", "none"}) {
      for (const Scheme scheme : {Scheme::kServer, Scheme::kRing}) {
        ServerOptions options = Job(1, 1);
        options.spec.rules.forced = scheme;
        options.spec.options.optimizer.rule = rule;
        options.spec.options.optimizer.weight_decay = 0.1f;
        options.spec.options.rate_schedule = *RateSchedule::Parse(schedule);
        all.push_back(RunJob(
            options, [](int, ToyWorker& worker, const ClientOptions& client) {
              return worker.Train(client, 20);
            })[0]);
      }
    }
    EXPECT_EQ(all[0], all[1]) << UpdateRuleName(rule);
    EXPECT_EQ(all[2], all[3]) << UpdateRuleName(rule);
    EXPECT_NE(all[0], all[2]) << UpdateRuleName(rule);
  }
}

TEST(SchemesTest, LayerByLayerTrainingGivesTheSameBitsWithEachOverlap) {
  for (const std::optional<Scheme> forced :
       {std::optional<Scheme>(), std::optional(Scheme::kRing)}) {
    std::vector<Parameters> all;
    for (const Overlap overlap : {Overlap::kWaitFree, Overlap::kNone}) {
      ServerOptions options = Job(3, 2);
      options.spec.rules.forced = forced;
      options.spec.options.deterministic = true;
      options.spec.options.overlap = overlap;
      const auto parameters = RunJob(options, TrainLayerByLayer);
      all.insert(all.end(), parameters.begin(), parameters.end());
    }
    for (const Parameters& each : all) EXPECT_EQ(each, all[0]);
  }
}

// A worker may be up to three steps ahead of the slowest one. The last round is
// a resync, which waits for all workers.
TEST(SchemesTest, PartialRoundsWithResyncEndWithEqualReplicas) {
  for (const Quorum quorum : {Quorum::kMajority, Quorum::kSolo}) {
    ServerOptions options = Job(3, 2);
    options.spec.options.rounds.quorum = quorum;
    options.spec.options.rounds.staleness = 3;
    options.spec.options.rounds.resync_every = 20;
    const auto parameters = RunJob(
        options, [](int, ToyWorker& worker, const ClientOptions& client) {
          return worker.Train(client, 20);
        });
    EXPECT_EQ(parameters[0], parameters[1]);
    EXPECT_EQ(parameters[0], parameters[2]);
  }
}

// In the dense steps of a sparse job all blocks are sent, so its bits are those
// of a job without sparsity. In later steps the replicas are equal, too.
TEST(SchemesTest, SparseRoundsKeepReplicasEqual) {
  for (const Scheme forced : {Scheme::kServer, Scheme::kRing}) {
    std::map<double, Parameters> first;
    for (const double sparsity : {0.0, 0.5, 0.51}) {
      ServerOptions options = Job(2, 2);
      options.spec.rules.forced = forced;
      options.spec.options.sparsity.share = sparsity;
      options.spec.options.sparsity.block_elements = 256;
      options.spec.options.sparsity.dense_steps = sparsity == 0.5 ? 20 : 5;
      const auto parameters = RunJob(options, TrainLayerByLayer);
      EXPECT_EQ(parameters[0], parameters[1]);
      first[sparsity] = parameters[0];
    }
    EXPECT_EQ(first[0.0], first[0.5]);
    EXPECT_NE(first[0.0], first[0.51]);
  }
}

// Multiplies on the CPU and counts the products. Multiply returns `status`.
class OtherCompute : public Compute {
 public:
  explicit OtherCompute(absl::Status status = absl::OkStatus())
      : status_(std::move(status)) {}
  std::string name() const override { return "other"; }
  absl::StatusOr<BadValue> Multiply(
      const MultiplyFactors& factors,
      absl::FunctionRef<void(int64_t)> moved) override {
    ++products_;
    NEREUS_TRY(status_);
    return Compute::Multiply(factors, moved);
  }
  int products() const { return products_; }

 private:
  const absl::Status status_;
  std::atomic<int> products_{0};
};

TEST(SchemesTest, DeviceMultipliesTheFactors) {
  for (const OptimizerPlace place :
       {OptimizerPlace::kServer, OptimizerPlace::kWorker}) {
    ServerOptions options = Job(2, 1);
    options.spec.rules.forced = Scheme::kFactor;
    options.spec.options.optimizer_place = place;
    const auto compute = std::make_shared<OtherCompute>();
    const auto other = std::make_shared<OtherCompute>();
    const auto parameters = RunJob(
        options, [&](int i, ToyWorker& worker, const ClientOptions& client) {
          worker.set_compute(i == 0 ? compute : other);
          return worker.Train(client, 5);
        });
    EXPECT_EQ(compute->products(), 2 * 5);  // Two layers have factors.
    EXPECT_EQ(parameters[0], parameters[1]);
  }
}

TEST(SchemesTest, FailedProductEndsTheJobWithTheReason) {
  ServerOptions options = Job(2, 1);
  options.spec.rules.forced = Scheme::kFactor;
  LocalCluster cluster(options);
  std::vector<ToyWorker> workers;
  for (int i = 0; i < 2; ++i) workers.emplace_back(SmallModel());
  const auto results = cluster.RunWorkers(2, [&](int i) {
    workers[i].set_compute(std::make_shared<OtherCompute>(
        i == 0 ? absl::OkStatus() : InternalError("the GPU is on fire")));
    return workers[i].Train(cluster.client_options(), 5);
  });
  for (const absl::Status& result : results) {
    EXPECT_THAT(std::string(result.message()),
                testing::HasSubstr("the GPU is on fire"));
  }
}

TEST(SchemesTest, TrainingWithQuorumEachChangesTheParameters) {
  ServerOptions options = Job(3, 2);
  options.spec.options.rounds.quorum = Quorum::kEach;
  options.spec.options.rounds.staleness = 2;
  const auto parameters =
      RunJob(options, [](int, ToyWorker& worker, const ClientOptions& client) {
        return worker.Train(client, 30);
      });
  EXPECT_NE(parameters[0][0][0], 1.0f);
}

// Both jobs skip steps 0, 1 and 2. In the job that scales its losses, a
// gradient of one worker overflows until the scale is low enough. In the other
// job, each of these steps has a NaN.
TEST(SchemesTest, ScaledLossesGiveTheSameBits) {
  constexpr int64_t kSteps = 10;
  for (const std::optional<Scheme> forced :
       {std::optional<Scheme>(), std::optional(Scheme::kRing)}) {
    std::vector<Parameters> all;
    for (const bool scaled : {false, true}) {
      ServerOptions options = Job(3, 2);
      options.spec.rules.forced = forced;
      options.spec.options.deterministic = true;
      options.spec.options.nan = NanPolicy::kSkip;
      options.spec.options.scale_loss = scaled;
      const auto parameters = RunJob(
          options, [&](int i, ToyWorker& worker, const ClientOptions& client) {
            if (!scaled) worker.Poison(i, i);
            if (scaled && i == 1) {
              worker.set_loss_scale_max(LossScale::kFirst / 8);
            }
            NEREUS_TRY(worker.Train(client, kSteps));
            EXPECT_EQ(worker.skipped(), (std::vector<int64_t>{0, 1, 2}));
            return absl::OkStatus();
          });
      all.insert(all.end(), parameters.begin(), parameters.end());
    }
    for (const Parameters& each : all) EXPECT_EQ(each, all[0]);
  }
}

}  // namespace
}  // namespace nereus
