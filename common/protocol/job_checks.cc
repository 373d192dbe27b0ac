#include "common/protocol/job_checks.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/plan/scheme.h"

// Checks of a job that may have come over the network. The public functions are
// at the end, in the order in which MakeJob calls them. If all checks pass, a
// member can use the job without further checks: every rank is in range, every
// index fits its table, no product of sizes overflows its integer, and lists
// have the order that binary searches need. The usual cause of an error is a
// member of another build, and not an attack. So each error names the field and
// its value, which help the user to find the cause.

namespace nereus {
namespace {

// Checks that frames can address every element of a layer that workers send to
// each other.
absl::Status CheckPeerLayer(const LayerSpec& layer) {
  if (layer.parameters <= kPeerParametersMax) return absl::OkStatus();
  return InvalidArgumentError("the plan sends ", DescribeLayer(layer),
                              " between workers, which takes ",
                              kPeerParametersMax, " parameters");
}

// Checks that the layer may go directly: a worker has memory for the gradients
// of all hosts.
absl::Status CheckDirectLayer(const LayerSpec& layer) {
  if (layer.parameters <= kDirectParametersMax) return absl::OkStatus();
  return InvalidArgumentError("the plan sends ", DescribeLayer(layer),
                              " directly, which takes at most ",
                              kDirectParametersMax, " parameters");
}

// Checks that the layer has factors, and that frames can address every element
// of a dense gradient in place of factors, and of the factors of all workers
// together: a worker that lacks a finished round gets all rows of one factor as
// one piece.
absl::Status CheckFactors(const LayerSpec& layer, int64_t workers) {
  if (!layer.may_send_factors()) {
    return InvalidArgumentError("the plan sends ", DescribeLayer(layer),
                                " by factors, which it does not have");
  }
  NEREUS_TRY(CheckPeerLayer(layer));
  if (layer.rows <= FactorRowsMax(layer, workers)) return absl::OkStatus();
  return InvalidArgumentError(
      "the plan sends ", DescribeLayer(layer),
      " by factors, which have more than ", kPeerParametersMax,
      " elements each with the rows of all ", workers, " workers");
}

absl::Status CheckRoute(const LayerSpec& layer, const Route& route,
                        int64_t workers) {
  if (WireBytes(route.wire) == 0) {
    return InvalidArgumentError("the plan sends ", DescribeLayer(layer),
                                " by no wire type");
  }
  switch (route.scheme) {
    case Scheme::kServer:
      return absl::OkStatus();
    case Scheme::kFactor:
      return CheckFactors(layer, workers);
    case Scheme::kRing:
      return CheckPeerLayer(layer);
    case Scheme::kDirect:
      return CheckDirectLayer(layer);
  }
  return InvalidArgumentError("unknown scheme");
}

absl::Status CheckCount(absl::string_view name, int64_t count, int64_t max) {
  if (count >= 1 && count <= max) return absl::OkStatus();
  return InvalidArgumentError(name, " is ", count, ", must be in [1, ", max,
                              "]");
}

// Checks the workers of the epoch.
absl::Status CheckEpochWorkers(const Job& job) {
  NEREUS_TRY(CheckCount("workers", job.worker_count(), kWorkersMax));
  EpochWorker before = {-1, 0};
  for (const EpochWorker& each : job.workers) {
    NEREUS_TRY(CheckStep("a first step", each.first_step, 0));
    if (each.rank <= before.rank || each.rank >= kRanksMax ||
        each.first_step < before.first_step) {
      return InvalidArgumentError(
          "worker ", each.rank, " from step ", each.first_step,
          " is listed after worker ", before.rank, " from step ",
          before.first_step,
          ": ranks and first steps must ascend, and ranks must be below ",
          kRanksMax);
    }
    if (each.host < -1 || each.host >= kHostsMax) {
      return InvalidArgumentError("worker ", each.rank, " is on host ",
                                  each.host, ", must be in [-1, ", kHostsMax,
                                  ")");
    }
    before = each;
  }
  return absl::OkStatus();
}

// Checks the leavers.
absl::Status CheckLeavers(const Job& job) {
  int32_t before = -1;
  for (const int32_t rank : job.crew.left_workers) {
    if (rank <= before || rank >= kRanksMax) {
      return InvalidArgumentError(
          "left_workers has worker ", rank, " after worker ", before,
          ": ranks must ascend and be below ", kRanksMax);
    }
    if (job.PositionOf(rank) >= 0) {
      return InvalidArgumentError("worker ", rank,
                                  " is both in workers and in left_workers");
    }
    before = rank;
  }
  return absl::OkStatus();
}

// Checks that all steps and rounds are in range, and that every worker takes
// part from history.first_step on, or from an earlier step.
absl::Status CheckSteps(const Job& job) {
  NEREUS_TRY(CheckStep("base_round", job.history.base_round, kInitialRound));
  NEREUS_TRY(CheckStep("first_step", job.history.first_step, 0));
  const EpochWorker& last = job.workers.back();
  if (last.first_step > job.history.first_step) {
    return InvalidArgumentError("worker ", last.rank, " takes part from step ",
                                last.first_step, " on, and first_step is ",
                                job.history.first_step,
                                ": no worker may begin later");
  }
  NEREUS_TRY(
      CheckStep("checkpoint_round", job.checkpoint_round, kInitialRound));
  NEREUS_TRY(CheckStep("switch_round", job.switch_round, kInitialRound));
  return CheckStep("contributions_before", job.history.contributions_before, 0);
}

// Checks the order and the number of the verdicts.
absl::Status CheckVerdicts(const Job& job) {
  if (job.history.verdicts.size() > kVerdictsMax) {
    return InvalidArgumentError("the epoch has ", job.history.verdicts.size(),
                                " verdicts, at most ", kVerdictsMax,
                                " are allowed");
  }
  int64_t before = kInitialRound;
  for (const StepVerdict& verdict : job.history.verdicts) {
    NEREUS_TRY(CheckStep("a verdict's step", verdict.step, 0));
    if (verdict.step <= before) {
      return InvalidArgumentError("the verdict on step ", verdict.step,
                                  " is listed after the verdict on step ",
                                  before, ": steps must ascend");
    }
    before = verdict.step;
  }
  return absl::OkStatus();
}

// Checks one finished round. Its layer must go without servers: if a layer
// uses the servers, a worker gets a result that it lacks from the
// shard, and not from a source.
absl::Status CheckFinished(const Job& job, const FinishedRound& finished) {
  const bool layer_known = finished.layer >= 0 &&
                           finished.layer < static_cast<int>(job.layers.size());
  if (layer_known && job.IsMember(PeerId::Worker(finished.source)) &&
      finished.round >= 0 && finished.round <= kStepMax &&
      finished.contributors >= 1 && finished.contributors <= kWorkersMax &&
      !UsesServers(job.routes[finished.layer].scheme)) {
    return absl::OkStatus();
  }
  return InvalidArgumentError(
      "worker ", finished.source, " holds round ", finished.round, " of layer ",
      finished.layer, " with ", finished.contributors,
      " contributors: the layer must go without servers, and worker, round and "
      "contributors must be in their ranges");
}

}  // namespace

int64_t FactorRowsMax(const LayerSpec& layer, int64_t workers) {
  return kPeerParametersMax / workers / std::max(layer.m, layer.n);
}

absl::Status CheckWorkers(const Job& job) {
  NEREUS_TRY(CheckEpochWorkers(job));
  return CheckLeavers(job);
}

absl::Status CheckShardCount(int shards) {
  return CheckCount("shards", shards, kServersMax);
}

// The backup must be another server than the primary. Otherwise the values of
// the shard would be lost with one process.
absl::Status CheckShardServers(const Job& job, int shards) {
  if (job.options.backup && shards < 2) {
    return InvalidArgumentError(
        "--backup=1 needs 2 shards or more, because the backup of a shard is "
        "another server; the job has ",
        shards);
  }
  if (static_cast<int>(job.shard_servers.size()) != shards) {
    return InvalidArgumentError("shard_servers has ", job.shard_servers.size(),
                                " entries for ", shards, " shards");
  }
  for (const ShardServers& servers : job.shard_servers) {
    const bool copied = servers.backup != -1;
    if (servers.primary >= 0 && servers.primary < shards &&
        servers.backup >= -1 && servers.backup < shards &&
        servers.backup != servers.primary && (job.options.backup || !copied) &&
        (copied || !servers.backup_is_current)) {
      continue;
    }
    return InvalidArgumentError(
        "shard ", &servers - job.shard_servers.data(), " of ", shards,
        " has primary ", servers.primary, " and backup ", servers.backup,
        ": the primary must be a server of the job; the backup, if the job has "
        "backups, another one; else -1");
  }
  return absl::OkStatus();
}

absl::Status CheckPlan(const Job& job) {
  NEREUS_TRY(ValidateLayers(job.layers));
  NEREUS_TRY(job.options.Validate());
  if (job.routes.size() != job.layers.size()) {
    return InvalidArgumentError("the plan has ", job.routes.size(),
                                " routes for ", job.layers.size(), " layers");
  }
  for (size_t i = 0; i < job.layers.size(); ++i) {
    NEREUS_TRY(CheckRoute(job.layers[i], job.routes[i], job.worker_count()));
  }
  for (size_t i = 0; i < job.layers.size() && job.partial(); ++i) {
    if (UsesServers(job.routes[i].scheme)) continue;
    return InvalidArgumentError(
        "the plan sends ", DescribeLayer(job.layers[i]), " by ",
        SchemeName(job.routes[i].scheme),
        ", which needs the contributions of all workers; the quorum is ",
        QuorumName(job.options.rounds.quorum));
  }
  return absl::OkStatus();
}

absl::Status CheckProgress(const Job& job) {
  NEREUS_TRY(CheckSteps(job));
  NEREUS_TRY(CheckVerdicts(job));
  if (job.state_arrays < 0 || job.state_arrays > kStateArraysMax) {
    return InvalidArgumentError("state_arrays is ", job.state_arrays,
                                ", must be in [0, ", kStateArraysMax, "]");
  }
  if (job.history.donor != -1 &&
      !job.IsMember(PeerId::Worker(job.history.donor))) {
    return InvalidArgumentError("the donor is worker ", job.history.donor,
                                ", which is not a member of the epoch");
  }
  int before = -1;
  for (const FinishedRound& finished : job.history.finished_rounds) {
    NEREUS_TRY(CheckFinished(job, finished));
    if (finished.layer <= before) {
      return InvalidArgumentError(
          "the finished round of layer ", finished.layer,
          " is listed after that of layer ", before, ": layers must ascend");
    }
    before = finished.layer;
  }
  return absl::OkStatus();
}

}  // namespace nereus
