#include "tests/simulation/job_progress.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace nereus {

// If no worker lives, all workers may have left. The coordinator then says
// whether the job is finished.
bool JobProgress::HasDoneAll() const {
  const std::vector<ProcessId> live = world_->processes.live_workers();
  if (live.empty()) {
    const Coordinator* const coordinator = coordinator_->get();
    return coordinator != nullptr &&
           coordinator->state() == JobState::kFinished;
  }
  return absl::c_all_of(live, [&](ProcessId id) {
    return world_->processes[id].worker->HasDone(world_->steps_wanted);
  });
}

bool JobProgress::IsPresent(ProcessId id) const {
  const SimulatedProcess& process = world_->processes[id];
  return process.alive && !process.is_halted() && !partition_->is_far(id);
}

bool JobProgress::HasValues(int server) const {
  const ProcessId id = world_->processes.shard_process(server);
  return IsPresent(id) && world_->processes[id].server != nullptr;
}

// A job with a lost shard stands still until a server has the values again.
// They come from the backup, or from a checkpoint. To go back to a checkpoint,
// the job needs all servers.
bool JobProgress::LacksShard() const {
  const Job& job = coordinator_->job();
  bool can_go_back = true;
  for (int shard = 0; shard < job.shards(); ++shard) {
    can_go_back =
        can_go_back && IsPresent(world_->processes.shard_process(shard));
  }
  return !can_go_back &&
         absl::c_any_of(job.shard_servers, [&](const ShardServers& servers) {
           return !HasValues(servers.primary) &&
                  !(servers.backup_is_current && HasValues(servers.backup));
         });
}

bool JobProgress::MustWait() const {
  if (coordinator_->get() == nullptr || !coordinator_->has_begun()) return true;
  if (LacksShard()) return true;
  // Paused workers and workers behind a partition cannot do steps.
  int present_count = 0;
  bool have_done_all = true;
  for (const ProcessId id : world_->processes.live_workers()) {
    if (!IsPresent(id)) continue;
    ++present_count;
    have_done_all = have_done_all &&
                    world_->processes[id].worker->HasDone(world_->steps_wanted);
  }
  return have_done_all || present_count < world_->options.min_workers;
}

std::string JobProgress::DescribeWaits() const {
  std::string text = "nothing moves any more";
  for (const ProcessId id : world_->processes.live_workers()) {
    const SimulatedProcess& process = world_->processes[id];
    if (!process.is_admitted_worker()) {
      absl::StrAppend(&text, "; process ", id, " has not been admitted");
      continue;
    }
    if (process.is_halted()) {
      absl::StrAppend(&text, "; worker ", process.worker->rank(),
                      " stands still");
    }
    absl::StrAppend(&text, process.worker->DescribeWaits());
  }
  const Coordinator* const coordinator = coordinator_->get();
  if (coordinator == nullptr) {
    return absl::StrCat(text, "; there is no coordinator");
  }
  const JobStatus status = coordinator->Status(world_->events.now());
  return absl::StrCat(text, "; epoch ", status.epoch, " ", status.waiting);
}

}  // namespace nereus
