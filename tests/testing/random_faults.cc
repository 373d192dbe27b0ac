#include "tests/testing/random_faults.h"

#include <utility>

#include "absl/strings/match.h"

namespace nereus {
namespace {

constexpr Fault kAll[] = {Fault::kWorkerDies,
                          Fault::kWorkerComes,
                          Fault::kWorkerPauses,
                          Fault::kWorkersDisconnect,
                          Fault::kShardDisconnects,
                          Fault::kSessionBreaks,
                          Fault::kShardDies,
                          Fault::kShardDiesInFile,
                          Fault::kShardPauses,
                          Fault::kCoordinatorDies,
                          Fault::kCoordinatorDiesHalfway,
                          Fault::kCheckpointIsAskedFor,
                          Fault::kWriteFails};
constexpr size_t kWorkerKinds = 6;

}  // namespace

absl::Span<const Fault> AllFaults() { return kAll; }
absl::Span<const Fault> WorkerFaults() {
  return absl::MakeConstSpan(kAll).subspan(0, kWorkerKinds);
}

RandomFaults::RandomFaults(uint64_t seed, absl::Span<const Fault> kinds,
                           SimulatedCluster* cluster)
    : random_(seed ^ 0x7f4a7c15), cluster_(cluster) {
  for (const Fault kind : kinds) {
    if (random_.Chance(0.5)) kinds_.push_back(kind);
  }
  if (kinds_.empty()) kinds_.push_back(kinds.front());
  const int count = 1 + static_cast<int>(random_.Below(5));
  for (int i = 0; i < count; ++i) {
    const absl::Duration at =
        absl::Milliseconds(60) + random_.Uniform() * absl::Seconds(i + 0.2);
    cluster_->At(at, [this] { Strike(); });
  }
}

void RandomFaults::After(absl::Duration delay, std::function<void()> what) {
  cluster_->At(cluster_->events().now() - absl::UnixEpoch() + delay,
               std::move(what));
}

ProcessId RandomFaults::AnyWorker() {
  const std::vector<ProcessId> live = cluster_->live_workers();
  return live[random_.Below(live.size())];
}

int RandomFaults::AnyShard() {
  return static_cast<int>(random_.Below(cluster_->job().shards()));
}

void RandomFaults::PauseFor(ProcessId victim, absl::Duration length) {
  cluster_->Pause(victim);
  After(length, [this, victim] { cluster_->Resume(victim); });
}

void RandomFaults::Strike() {
  // Before the job has begun, there is nothing to lose.
  if (cluster_->live_workers().empty() || !cluster_->begun()) return;
  const Fault fault = kinds_[random_.Below(kinds_.size())];
  if (fault < Fault::kShardDies) {
    StrikeWorker(fault);
  } else {
    StrikeServer(fault);
  }
}

void RandomFaults::StrikeWorker(Fault fault) {
  const size_t live = cluster_->live_workers().size();
  const ProcessId victim = AnyWorker();
  switch (fault) {
    case Fault::kWorkerDies:
      if (live < 2) return;
      cluster_->Crash(victim);
      if (random_.Chance(0.5)) cluster_->StartWorker();
      return;
    case Fault::kWorkerComes:
      cluster_->StartWorker();
      return;
    case Fault::kWorkerPauses:
      if (live < 2) return;
      return PauseFor(victim, random_.Uniform() * absl::Seconds(8));
    case Fault::kWorkersDisconnect:
      return cluster_->BreakConnection(victim, AnyWorker());
    case Fault::kShardDisconnects:
      return cluster_->BreakConnection(victim,
                                       cluster_->shard_process(AnyShard()));
    default:
      return cluster_->BreakSession(victim);
  }
}

void RandomFaults::StrikeServer(Fault fault) {
  const int shard = AnyShard();
  const ProcessId victim = cluster_->shard_process(shard);
  switch (fault) {
    case Fault::kShardDies:
      if (!cluster_->alive(victim)) return;
      cluster_->Crash(victim);
      After(random_.Uniform() * absl::Seconds(2),
            [this, shard] { cluster_->StartShard(shard); });
      return;
    case Fault::kShardDiesInFile:
      return cluster_->CrashInNextFile();
    case Fault::kShardPauses:
      return PauseFor(victim, random_.Uniform() * absl::Seconds(8));
    case Fault::kCoordinatorDies:
    case Fault::kCoordinatorDiesHalfway:
      cluster_->CrashCoordinator(fault == Fault::kCoordinatorDiesHalfway);
      // If it dies later, it comes back then.
      for (int i = 1; i < 20; ++i) {
        After(random_.Uniform() * absl::Seconds(i),
              [this] { cluster_->RestartCoordinator(); });
      }
      return;
    case Fault::kCheckpointIsAskedFor:
      // It may be away, or the job over.
      cluster_->RequestCheckpoint().IgnoreError();
      return;
    default:
      cluster_->disk().FailNext(
          absl::ResourceExhaustedError("no space left on device"));
  }
}

bool IsLost(const absl::Status& status) {
  return absl::IsAborted(status) &&
         (absl::StrContains(status.message(), "all workers are gone") ||
          absl::StrContains(status.message(), "there is no checkpoint"));
}

}  // namespace nereus
