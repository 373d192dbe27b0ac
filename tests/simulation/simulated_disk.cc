#include "tests/simulation/simulated_disk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/manifest.h"
#include "server/process/checkpoint_files.h"

namespace nereus {

SimulatedDisk::SimulatedDisk(uint64_t storage_seed, SimulatedWorld* world,
                             Events events)
    : world_(world),
      events_(std::move(events)),
      storage_(storage_seed, world->options.disk) {}

void SimulatedDisk::Save(SimulatedProcess& process,
                         const SaveCheckpoint& save) {
  const absl::Time now = world_->events.now();
  absl::Time& written_at = written_at_[process.id];
  written_at = std::max(written_at, now) + DrawWriteTime();
  const JobPtr job = process.start()->job;
  process.RunInLifeAfter(
      world_->events, written_at - now, [this, &process, job, save] {
        if (std::exchange(crash_in_next_share_, false)) CrashSoon(3);
        const CheckpointPart part = WritePart(storage_, *job, save);
        if (Settle()) return events_.crashed(process);
        Outbox out;
        process.member->OnPart(part, out);
        world_->execute(process, out);
      });
}

void SimulatedDisk::Load(SimulatedProcess& process, const LoadCheckpoint& load,
                         SimulatedProcess::Task rest) {
  if (read_time_max_ == absl::ZeroDuration()) {
    Read(process, load);
    return rest();
  }
  const bool hangs = world_->random.Chance(0.2);
  process.Stop(hangs ? SimulatedProcess::Halt::kDriverStalled
                     : SimulatedProcess::Halt::kReading);
  process.deferred.push_back([this, &process, load, rest = std::move(rest)] {
    Read(process, load);
    rest();
  });
  const absl::Duration time =
      hangs ? world_->options.lease : world_->Draw(read_time_max_);
  world_->events.After(time, [this, &process, hangs] {
    if (!process.alive) return;
    if (hangs) return events_.crashed(process);
    // A fault may have stopped the process meanwhile, and its end resumes it.
    const bool still_reads = process.halt == SimulatedProcess::Halt::kReading;
    if (still_reads) events_.answered(process);
  });
}

// A read takes no time, so no write comes in between: SlowReads lets the server
// wait before the read.
void SimulatedDisk::Read(SimulatedProcess& process,
                         const LoadCheckpoint& load) {
  const absl::Status status = ReadPart(storage_, load, [](int64_t, int64_t) {});
  if (status.ok()) return;
  world_->laws.Tell(RestoreFailed{
      process.id, process.member->start()->job->epoch, load.round, status});
  if (!absl::IsDataLoss(status)) return;
  process.lacks_values = true;
  Outbox out;
  process.member->OnDamaged(load.round, std::string(status.message()), out);
  world_->execute(process, out);
}

absl::Time SimulatedDisk::NextManifestAt() {
  manifest_at_ = std::max(manifest_at_, world_->events.now()) + DrawWriteTime();
  return manifest_at_;
}

SimulatedDisk::Written SimulatedDisk::WriteManifest(
    const CompleteCheckpoint& complete) {
  if (manifests_to_crash_ == 0) {
    manifests_to_crash_.reset();
    // The last of these steps comes after the rename. The manifest is then on
    // disk, and the coordinator dies before it hears of that.
    CrashSoon(4);
  } else if (manifests_to_crash_.has_value()) {
    --*manifests_to_crash_;
  }
  const absl::Status status = WriteWhole(storage_, kSimulatedJob, complete);
  if (status.ok()) {
    ++checkpoints_made_;
    world_->laws.Tell(CheckpointWhole{complete.record.round, &storage_});
    // If an old checkpoint cannot be removed now, a later call removes it.
    KeepLast(storage_, world_->options.checkpoints_kept).IgnoreError();
  }
  return {status, Settle()};
}

absl::Status SimulatedDisk::WriteLateManifest(
    const CompleteCheckpoint& complete) {
  return WriteWhole(storage_, kSimulatedJob, complete);
}

void SimulatedDisk::DropLateManifest(const CheckpointRecord& record) {
  const absl::Status dropped = nereus::DropLateManifest(storage_, record);
  // A disk that fails leaves it, for UpdateNewest.
  if (!dropped.ok() && !absl::IsResourceExhausted(dropped)) {
    world_->laws.Tell(Unreadable{"a late manifest", dropped});
  }
  Settle();
}

SimulatedDisk::FoundAside SimulatedDisk::SetAside(
    const SetCheckpointAside& damaged) {
  FoundAside found = {SetDamagedAside(storage_, *damaged.job, damaged.round)};
  found.crashed = Settle();
  return found;
}

bool SimulatedDisk::Rot(uint64_t draw) {
  const auto list = ListCheckpoints(storage_);
  if (!list.ok() || list->complete.size() < 2 ||
      !VerifyCheckpoint(storage_, list->complete[1]).ok()) {
    return false;
  }
  const Manifest& newest = list->complete[0];
  const size_t count = newest.files.size();
  storage_.Rot(absl::StrCat(CheckpointFolder(newest.round), "/",
                            newest.files[draw % count].name),
               draw / count);
  world_->laws.Tell(CheckpointRotted{newest.round});
  return true;
}

void SimulatedDisk::HangManifestsFor(absl::Duration time) {
  manifest_at_ = std::max(manifest_at_, world_->events.now() + time);
}

void SimulatedDisk::HangSharesFor(ProcessId process, absl::Duration time) {
  absl::Time& written_at = written_at_[process];
  written_at = std::max(written_at, world_->events.now() + time);
}

int64_t SimulatedDisk::newest_round() {
  const auto list = ListCheckpoints(storage_);
  return list.ok() && !list->complete.empty() ? list->complete.front().round
                                              : kInitialRound;
}

absl::Status SimulatedDisk::UpdateNewest(CheckpointLedger::State& checkpoints) {
  while (true) {
    const absl::Status status = nereus::UpdateNewest(
        storage_, kSimulatedJob, SimulatedJobId(world_->options), checkpoints);
    const bool crashed = Settle();
    if (!crashed && !absl::IsResourceExhausted(status)) return status;
  }
}

absl::Duration SimulatedDisk::DrawWriteTime() {
  return world_->Draw(world_->options.disk_time_max);
}

void SimulatedDisk::CrashSoon(uint64_t steps) {
  storage_.CrashAfterSteps(static_cast<int64_t>(world_->random.Below(steps)));
}

// The laws hear of the change after the restart, because they read the disk.
// The restart leaves the files as they are.
bool SimulatedDisk::Settle() {
  const bool crashed = storage_.crashed();
  if (crashed) storage_.Restart();
  world_->laws.Tell(DiskChanged{&storage_});
  return crashed;
}

}  // namespace nereus
