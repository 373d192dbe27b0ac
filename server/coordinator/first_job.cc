#include "server/coordinator/first_job.h"

#include "absl/algorithm/container.h"
#include "server/coordinator/join_rules.h"

namespace nereus {

Job MakeFirstJob(const CoordinatorOptions& options, const MemberList& roster) {
  const JoinRequest& worker =
      absl::c_find_if(roster.members(), [](const MemberRecord& member) {
        return member.is_worker();
      })->request;
  Job job;
  job.id = options.job_id;
  job.epoch = kFirstEpoch;
  job.workers = FirstWorkers(options.spec.workers);
  for (const auto& [rank, host] : roster.WorkerHosts()) {
    job.workers[rank].host = host;
  }
  job.crew.worker_names = roster.WorkerNames();
  job.layers = worker.layers;
  job.options = options.spec.options;
  job.options.optimizer_place = DecidePlace(options.spec, roster).place;
  job.options.has_checkpoints = options.has_checkpoints;
  job.state_arrays = worker.caller.state_arrays;
  // Makes a checkpoint of round 0, in case a shard dies early.
  if (options.has_checkpoints) job.checkpoint_round = 0;
  if (!options.start_checkpoint.has_value()) return job;
  const CheckpointRecord start = options.StartFor(job.layers);
  job.history.base_round = start.round;
  job.history.first_step = start.round + 1;
  job.history.contributions_before = start.contributions;
  job.checkpoint_round = kInitialRound;
  for (EpochWorker& each : job.workers) {
    each.first_step = job.history.first_step;
  }
  return job;
}

}  // namespace nereus
