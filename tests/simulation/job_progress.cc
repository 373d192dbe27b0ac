#include "tests/simulation/job_progress.h"

#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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

bool JobProgress::IsAdmitted(int server) const {
  const ProcessId id = world_->processes.shard_process(server);
  return IsPresent(id) && world_->processes[id].server != nullptr;
}

// A job with a lost shard stands still until a server has the values again.
// They come from the backup, or from a checkpoint.
bool JobProgress::LacksShard() const {
  const Job& job = coordinator_->job();
  bool can_go_back = true;
  for (int shard = 0; shard < job.shards(); ++shard) {
    can_go_back =
        can_go_back && IsPresent(world_->processes.shard_process(shard));
  }
  return !can_go_back &&
         absl::c_any_of(job.shard_servers, [&](const ShardServers& servers) {
           return !IsAdmitted(servers.primary) &&
                  !(servers.backup_is_current && IsAdmitted(servers.backup));
         });
}

bool JobProgress::MayStandStill() const {
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
  std::vector<std::string> texts;
  for (const ProcessId id : world_->processes.live_workers()) {
    const SimulatedProcess& process = world_->processes[id];
    if (!process.is_admitted_worker()) {
      texts.push_back(absl::StrCat("process ", id, " has not been admitted"));
      continue;
    }
    if (process.is_halted()) {
      texts.push_back(
          absl::StrCat("worker ", process.worker->rank(), " stands still"));
    }
    for (std::string& wait : process.worker->DescribeWaits()) {
      texts.push_back(std::move(wait));
    }
  }
  const Coordinator* const coordinator = coordinator_->get();
  if (coordinator == nullptr) {
    texts.push_back("there is no coordinator");
    return absl::StrJoin(texts, "; ");
  }
  const JobStatus status = coordinator->Status(world_->events.now());
  texts.push_back(absl::StrCat("epoch ", status.epoch, " ", status.waiting));
  return absl::StrJoin(texts, "; ");
}

}  // namespace nereus
