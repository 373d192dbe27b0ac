// The disk of a simulated cluster, and what is on it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/checkpoint_layout.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/driver/wire_values.h"
#include "server/process/checkpoint_files.h"
#include "tests/simulation/simulated_process.h"

namespace nereus {

void SimulatedCluster::Save(Process& process, const SaveCheckpoint& save) {
  const JobPtr job = process.member->start()->job;
  process.written_at = std::max(process.written_at, events_.now()) +
                       Draw(options_.disk_time_max);
  OnLife(process, process.written_at - events_.now(),
         [this, &process, job, save] {
           const bool dies = std::exchange(crash_in_next_file_, false);
           if (dies) {
             disk_.CrashAfterSteps(static_cast<int64_t>(random_.Below(3)));
           }
           const CheckpointPart part = WritePart(disk_, *job, save);
           const bool crashed = disk_.crashed();
           if (crashed) disk_.Restart();
           CheckNewest();
           if (crashed) {
             Crash(process.id);
             ReplaceShard(process.index);
           } else {
             Outbox out;
             process.member->OnPart(part, out);
             Execute(process, out);
           }
         });
}

void SimulatedCluster::Load(Process& process, const LoadCheckpoint& load) {
  const absl::Status status = ReadPart(disk_, load);
  if (!status.ok()) {
    failure_.Update(absl::DataLossError(
        absl::StrCat("process ", process.id, " cannot restore round ",
                     load.round, ": ", status.message())));
  }
}

void SimulatedCluster::Complete(const CompleteCheckpoint& complete) {
  manifest_at_ =
      std::max(manifest_at_, events_.now()) + Draw(options_.disk_time_max);
  events_.At(manifest_at_, [this, complete, life = coordinator_life_] {
    if (life != coordinator_life_ || coordinator_ == nullptr) return;
    if (manifests_to_crash_ == 0) {
      manifests_to_crash_.reset();
      // At last when it is there, and nobody has been told.
      disk_.CrashAfterSteps(static_cast<int64_t>(random_.Below(4)));
    } else if (manifests_to_crash_.has_value()) {
      --*manifests_to_crash_;
    }
    const absl::Status status = WriteWhole(disk_, kSimulatedJob, complete);
    const int64_t round = complete.record.round;
    if (status.ok()) {
      ++checkpoints_made_;
      newest_whole_ = std::max(newest_whole_, round);
      failure_.Update(CheckCheckpoint(round));
      // One that cannot be removed now is the next time.
      KeepLast(disk_, options_.checkpoints_kept).IgnoreError();
    }
    const bool crashed = disk_.crashed();
    if (crashed) disk_.Restart();
    CheckNewest();
    // It may die between the two.
    if (crashed) {
      CrashCoordinator();
      return;
    }
    CoordinatorOutbox out;
    coordinator_->OnCheckpoint(round, status, events_.now(), out);
    Carry(out);
  });
}

absl::Status SimulatedCluster::CheckCheckpoint(int64_t round) {
  NEREUS_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(disk_, round));
  NEREUS_ASSIGN_OR_RETURN(CheckpointReader reader,
                          CheckpointReader::Open(&disk_, std::move(manifest)));
  NEREUS_RETURN_IF_ERROR(reader.Verify());
  for (size_t layer = 0; layer < workload_.layers.size(); ++layer) {
    const int index = static_cast<int>(layer);
    NEREUS_ASSIGN_OR_RETURN(
        const ChunkValues values,
        reader.ReadValues(index, 0, workload_.layers[layer].parameters,
                          OptimizerStateCount(options_.job.optimizer.rule)));
    // Where the servers had them, workers had what the wire left of them.
    std::map<WireType, uint32_t>& sums = saved_sums_[{index, round}];
    sums.clear();
    sums[WireType::kFloat32] = Checksum(values.parameters);
    const WireType wire =
        options_.rules.choose_wire ? WireType::kBfloat16 : options_.rules.wire;
    if (wire != WireType::kFloat32) {
      RoundToWire(wire, values.parameters);
      sums[wire] = Checksum(values.parameters);
    }
    CheckSaved(index, round);
  }
  return absl::OkStatus();
}

void SimulatedCluster::CheckSaved(int layer, int64_t round) {
  const auto saved = saved_sums_.find({layer, round});
  const auto had = had_sums_.find({layer, round});
  if (had == had_sums_.end() || saved == saved_sums_.end()) return;
  // Should all who had it die, the others may do the round again without them;
  // what is saved stays as good a moment to go back to.
  const auto was_had = [&](const auto& sum) {
    // What workers own has not been rounded.
    return had->second.contains(sum) ||
           (sum.first == WireType::kFloat32 &&
            std::any_of(had->second.begin(), had->second.end(),
                        [&](const auto& had_sum) {
                          return had_sum.second == sum.second;
                        }));
  };
  if (std::any_of(saved->second.begin(), saved->second.end(), was_had)) return;
  failure_.Update(absl::InternalError(
      absl::StrCat("the checkpoint of round ", round,
                   " has parameters of layer ", layer, " that nobody had")));
}

void SimulatedCluster::CheckNewest() {
  const auto list = ListCheckpoints(disk_);
  failure_.Update(list.status());
  if (!list.ok()) return;
  for (const Manifest& manifest : list->complete) {
    if (!disk_.torn(ManifestName(manifest.round))) continue;
    failure_.Update(absl::DataLossError(
        absl::StrCat("the manifest of round ", manifest.round,
                     " is torn, and its checkpoint counts as whole")));
  }
  const int64_t round =
      list->complete.empty() ? kInitialRound : list->complete.front().round;
  if (round > newest_whole_) {
    // Whoever made it did not live to be told.
    failure_.Update(CheckCheckpoint(round));
    newest_whole_ = round;
  }
  if (round == newest_whole_) return;
  failure_.Update(absl::DataLossError(
      absl::StrCat("the newest checkpoint is of round ", round,
                   ", that of round ", newest_whole_, " was whole before")));
}

uint64_t SimulatedCluster::restarted_in() const {
  return coordinator_ != nullptr
             ? coordinator_->checkpoints().state().restarted_in
             : saved_->checkpoints.restarted_in;
}

void SimulatedCluster::ForgetAfter(int64_t round) {
  skipped_.erase(skipped_.upper_bound(round), skipped_.end());
  std::erase_if(outcomes_, [&](const auto& outcome) {
    return outcome.first.second > round;
  });
  const auto later = [&](const auto& sum) { return sum.first.second > round; };
  std::erase_if(saved_sums_, later);
  std::erase_if(had_sums_, later);
}

}  // namespace nereus
