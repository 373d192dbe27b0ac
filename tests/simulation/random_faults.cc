#include "tests/simulation/random_faults.h"

#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "common/base/status.h"

// The constructor plans the moments of all faults. At each moment StrikeWith
// calls StrikeWorker, StrikeConnection, StrikeServer or StrikeHost. These draw
// a victim and call the fault script. All draws come from one generator, in the
// order of events, so that a seed gives the same faults again.

namespace nereus {
namespace {

constexpr Fault kAll[] = {Fault::kWorkerDies,
                          Fault::kWorkerComes,
                          Fault::kWorkerLeaves,
                          Fault::kWorkerPauses,
                          Fault::kWorkerSlows,
                          Fault::kDriverStalls,
                          Fault::kStrangerComes,
                          Fault::kWorkersDisconnect,
                          Fault::kShardDisconnects,
                          Fault::kConnectionBreaksInFrame,
                          Fault::kResultIsLost,
                          Fault::kLinkSlows,
                          Fault::kLinkFlaps,
                          Fault::kLinkIsCut,
                          Fault::kLinkIsCutOneWay,
                          Fault::kSessionBreaks,
                          Fault::kSessionEndsOneSided,
                          Fault::kAnswerIsLost,
                          Fault::kPartition,
                          Fault::kShardDies,
                          Fault::kShardDiesAsEpochBegins,
                          Fault::kShardDiesAgain,
                          Fault::kShardDiesInFile,
                          Fault::kShardPauses,
                          Fault::kShardSlows,
                          Fault::kCoordinatorDies,
                          Fault::kCoordinatorDiesHalfway,
                          Fault::kCoordinatorDiesInFile,
                          Fault::kSavesFail,
                          Fault::kSavesHang,
                          Fault::kCheckpointIsAskedFor,
                          Fault::kWriteFails,
                          Fault::kShardLeaves};
constexpr size_t kWorkerKinds = 19;
static_assert(kAll[kWorkerKinds] == Fault::kShardDies);

constexpr Fault kOfHosts[] = {Fault::kHostDies, Fault::kMatesDisconnect,
                              Fault::kMatesCannotConnect};

constexpr double kSlowness = 10;
constexpr int kTendedSeconds = 120;

}  // namespace

absl::Span<const Fault> AllFaults() { return kAll; }
absl::Span<const Fault> HostFaults() { return kOfHosts; }
absl::Span<const Fault> HarmlessFaults() {
  static constexpr Fault kFaults[] = {
      Fault::kWorkerSlows,      Fault::kWorkersDisconnect,
      Fault::kShardDisconnects, Fault::kConnectionBreaksInFrame,
      Fault::kResultIsLost,     Fault::kLinkSlows,
      Fault::kSessionBreaks,    Fault::kSessionEndsOneSided,
      Fault::kAnswerIsLost,     Fault::kShardSlows};
  return kFaults;
}

absl::Span<const Fault> WorkerFaults() {
  return absl::MakeConstSpan(kAll).subspan(0, kWorkerKinds);
}

RandomFaults::RandomFaults(uint64_t seed, absl::Span<const Fault> kinds,
                           SimulatedCluster* cluster)
    : random_(seed ^ 0x7f4a7c15),
      cluster_(cluster),
      faults_(&cluster->faults()) {
  // Draws between one kind and about half of the kinds.
  const double share = 0.5 * random_.Uniform();
  for (const Fault kind : kinds) {
    if (random_.Chance(share)) kinds_.push_back(kind);
    shards_may_die_ = shards_may_die_ || kind == Fault::kShardDies;
  }
  if (kinds_.empty()) kinds_.push_back(kinds[random_.Below(kinds.size())]);
  const int count = 1 + static_cast<int>(random_.Below(6));
  absl::Duration at = absl::Milliseconds(60);
  for (int i = 0; i < count; ++i) {
    // The next fault strikes while the last one is handled, or after that.
    at += random_.Uniform() *
          (random_.Chance(0.6) ? absl::Milliseconds(60) : absl::Seconds(4));
    faults_->At(at, [this] { Strike(); });
  }
  // A server that dies twice takes a few epochs. If this fault were drawn like
  // the others, few jobs would last long enough.
  const bool early = shards_may_die_ && cluster_->options().job.backup;
  if (early && random_.Chance(0.5)) {
    faults_->At(absl::Milliseconds(60 + random_.Below(60)),
                [this] { StrikeWith(Fault::kShardDiesAgain); });
  }
  // These two faults have an effect only if no other fault begins an epoch
  // meanwhile, and short jobs end before most faults. So the two may also
  // strike early.
  for (const Fault fault : {Fault::kDriverStalls, Fault::kLinkFlaps}) {
    const bool may_strike =
        absl::c_count(kinds, fault) > 0 && random_.Chance(0.1);
    if (!may_strike) continue;
    faults_->At(absl::Milliseconds(60 + random_.Below(60)),
                [this, fault] { StrikeWith(fault); });
  }
  for (int i = 1; i < kTendedSeconds; ++i) {
    faults_->At(absl::Seconds(i), [this] { Tend(); });
  }
  PlanHostFaults(kinds);
  PlanRot(seed);
  PlanSlowDisk(seed);
}

// Draws from a generator of its own, so that seeds keep their other faults. Few
// jobs have two checkpoints at the first try.
void RandomFaults::PlanRot(uint64_t seed) {
  Random random(seed ^ 0x3c6ef372);
  if (!shards_may_die_ || !cluster_->options().has_disk || random.Chance(0.7)) {
    return;
  }
  absl::Duration at;
  for (int i = 0; i < 10; ++i) {
    at += absl::Milliseconds(60 + random.Below(i < 5 ? 60 : 1000));
    faults_->At(at, [this] {
      if (strikes_[Fault::kCheckpointRots] == 0) {
        StrikeWith(Fault::kCheckpointRots);
      }
    });
  }
}

// Draws from a generator of its own, as PlanRot does.
void RandomFaults::PlanSlowDisk(uint64_t seed) {
  Random random(seed ^ 0x52dce729);
  if (!shards_may_die_ || !cluster_->options().has_disk) return;
  if (random.Chance(0.3)) {
    faults_->At(absl::Milliseconds(random.Below(500)),
                [this] { StrikeWith(Fault::kReadsAreSlow); });
  }
  for (int i = 0; i < 3 && random.Chance(0.4); ++i) {
    faults_->At(absl::Milliseconds(random.Below(i == 0 ? 150 : 5000)),
                [this] { StrikeWith(Fault::kSharesHang); });
  }
}

// Draws nothing for jobs without hosts, so that their seeds keep their faults.
void RandomFaults::PlanHostFaults(absl::Span<const Fault> kinds) {
  if (!cluster_->hosts().any()) return;
  const auto plan = [&](Fault fault, Fault like) {
    if (absl::c_count(kinds, like) == 0 || random_.Chance(0.5)) return;
    for (int i = 0; i < 2; ++i) {
      faults_->At(absl::Milliseconds(60 + random_.Below(i == 0 ? 150 : 3000)),
                  [this, fault] { StrikeWith(fault); });
    }
  };
  plan(Fault::kHostDies, Fault::kWorkerDies);
  plan(Fault::kMatesDisconnect, Fault::kWorkersDisconnect);
  // This concerns processes that are not connected yet: those that the job
  // begins with, and those that come later.
  if (random_.Chance(0.75)) return;
  for (const uint64_t at : {uint64_t{0}, random_.Below(3000)}) {
    faults_->At(absl::Milliseconds(at),
                [this] { StrikeWith(Fault::kMatesCannotConnect); });
  }
}

void RandomFaults::Tend() {
  const Coordinator* coordinator = cluster_->coordinator();
  const size_t live = cluster_->live_workers().size();
  const auto needed = static_cast<size_t>(cluster_->options().min_workers);
  if (coordinator != nullptr && !coordinator->over() && live < needed &&
      starts_workers_) {
    faults_->StartWorker();
  }
  // The coordinator may die at a save long after the fault was ordered, when
  // all calls of RestartCoordinatorSoon are over.
  if (coordinator == nullptr && (stopped_ || random_.Chance(0.2))) {
    faults_->RestartCoordinator();
  }
}

void RandomFaults::Stop() {
  stopped_ = true;
  for (const auto& undo : std::exchange(undo_, {})) undo();
}

void RandomFaults::After(absl::Duration delay, std::function<void()> task) {
  faults_->At(cluster_->events().now() - absl::UnixEpoch() + delay,
              [this, task = std::move(task)] {
                if (!stopped_) task();
              });
}

void RandomFaults::UndoAfter(absl::Duration delay, std::function<void()> undo) {
  After(delay, undo);
  undo_.push_back(std::move(undo));
}

ProcessId RandomFaults::AnyWorker() {
  const std::vector<ProcessId> live = cluster_->live_workers();
  return live[random_.Below(live.size())];
}

std::vector<ProcessId> RandomFaults::LiveWorkersOn(int host) const {
  std::vector<ProcessId> workers = cluster_->live_workers();
  std::erase_if(workers, [&](ProcessId worker) {
    return cluster_->hosts().HostOf(worker) != host;
  });
  return workers;
}

std::vector<int> RandomFaults::LiveShardsOn(int host) const {
  std::vector<int> shards;
  for (int shard = 0; shard < cluster_->job().shards(); ++shard) {
    const ProcessId server = cluster_->processes().shard_process(shard);
    const bool is_here = cluster_->hosts().HostOf(server) == host;
    if (is_here && cluster_->processes().alive(server)) shards.push_back(shard);
  }
  return shards;
}

int RandomFaults::AnyShard() {
  return static_cast<int>(random_.Below(cluster_->job().shards()));
}

ProcessId RandomFaults::AnyProcess() {
  return random_.Chance(0.5) ? AnyWorker()
                             : cluster_->processes().shard_process(AnyShard());
}

void RandomFaults::Strike() {
  StrikeWith(kinds_[random_.Below(kinds_.size())]);
}

void RandomFaults::StrikeWith(Fault fault) {
  // A job that has not begun has nothing to lose, but has yet to connect.
  const bool may_strike =
      cluster_->begun() || fault == Fault::kMatesCannotConnect;
  if (stopped_ || cluster_->live_workers().empty() || !may_strike) return;
  bool struck = false;
  if (fault < Fault::kWorkersDisconnect) {
    struck = StrikeWorker(fault);
  } else if (fault < Fault::kShardDies) {
    struck = StrikeConnection(fault);
  } else if (fault < Fault::kHostDies) {
    struck = StrikeServer(fault);
  } else {
    struck = StrikeHost(fault);
  }
  if (struck) ++strikes_[fault];
}

bool RandomFaults::StrikeWorker(Fault fault) {
  const size_t live = cluster_->live_workers().size();
  const ProcessId victim = AnyWorker();
  switch (fault) {
    case Fault::kWorkerDies:
      if (live < 2) return false;
      faults_->Crash(victim);
      // Another worker may come, also under the dead worker's name, before the
      // dead worker counts as dead.
      if (random_.Chance(0.5)) {
        faults_->StartWorker(
            random_.Chance(0.5) ? cluster_->processes().name_of(victim) : "");
      }
      return true;
    case Fault::kWorkerComes:
      faults_->StartWorker();
      return true;
    case Fault::kWorkerLeaves:
      if (live < 2) return false;
      faults_->LeaveSoon(victim, /*early=*/victim % 2 == 0);
      return true;
    case Fault::kWorkerPauses:
      return live > 1 && PauseFor(victim);
    case Fault::kWorkerSlows:
      return SlowFor(victim);
    case Fault::kDriverStalls:
      if (shards_may_die_ && random_.Chance(0.5)) {
        return StallFor(cluster_->processes().shard_process(AnyShard()));
      }
      return live > 1 && StallFor(victim);
    default:
      faults_->StartStranger();
      return true;
  }
}

bool RandomFaults::StrikeConnection(Fault fault) {
  const ProcessId victim = AnyProcess();
  const ProcessId other = AnyProcess();
  const bool outward = random_.Chance(0.5);
  const ProcessId from = outward ? victim : other;
  const ProcessId to = outward ? other : victim;
  switch (fault) {
    case Fault::kWorkersDisconnect:
      faults_->BreakConnection(victim, AnyWorker());
      return true;
    case Fault::kShardDisconnects:
      faults_->BreakConnection(victim,
                               cluster_->processes().shard_process(AnyShard()));
      return true;
    case Fault::kConnectionBreaksInFrame:
      faults_->BreakInFrame(from, to, static_cast<int>(random_.Below(6)));
      return true;
    case Fault::kResultIsLost:
      faults_->BreakAfterSend(from, to);
      return true;
    case Fault::kLinkSlows:
      return SlowLinkFor(victim, other, absl::Milliseconds(100));
    case Fault::kLinkFlaps:
      return Flap(victim, other);
    case Fault::kLinkIsCut:
    case Fault::kLinkIsCutOneWay:
      return CutFor(from, to, fault == Fault::kLinkIsCut);
    case Fault::kSessionBreaks:
      faults_->BreakSession(AnyProcess());
      return true;
    case Fault::kSessionEndsOneSided:
      return CutSession(shards_may_die_ ? AnyProcess() : AnyWorker());
    case Fault::kAnswerIsLost:
      faults_->LoseNextAnswer(AnyProcess());
      return true;
    default:
      return Part();
  }
}

bool RandomFaults::StrikeServer(Fault fault) {
  const int shard = AnyShard();
  const ProcessId victim = cluster_->processes().shard_process(shard);
  switch (fault) {
    case Fault::kShardDies:
      return KillShard(shard, absl::Seconds(2));
    case Fault::kShardDiesAsEpochBegins:
      faults_->AtNextEpoch([this] {
        if (stopped_) return;
        After(random_.Uniform() * absl::Milliseconds(40),
              [this] { StrikeServer(Fault::kShardDies); });
      });
      return true;
    case Fault::kShardDiesAgain:
      if (!KillShard(shard, absl::Milliseconds(500))) return false;
      KillOnceItServes(shard);
      return true;
    case Fault::kShardDiesInFile:
      faults_->CrashInNextFile();
      return true;
    case Fault::kShardPauses:
      return PauseFor(victim);
    case Fault::kShardSlows:
      return SlowFor(victim);
    case Fault::kCoordinatorDies:
    case Fault::kCoordinatorDiesHalfway:
      if (fault == Fault::kCoordinatorDiesHalfway) {
        faults_->CrashCoordinatorAtSave();
      } else {
        faults_->CrashCoordinator();
      }
      RestartCoordinatorSoon();
      return true;
    case Fault::kCoordinatorDiesInFile:
      faults_->CrashInManifest(static_cast<int>(random_.Below(3)));
      faults_->RequestCheckpoint().IgnoreError();
      RestartCoordinatorSoon();
      return true;
    case Fault::kSavesFail:
    case Fault::kSavesHang:
      if (fault == Fault::kSavesFail) {
        faults_->FailSavesFor(random_.Uniform() * absl::Seconds(6));
      } else {
        faults_->HangSavesFor(random_.Uniform() * absl::Seconds(12));
      }
      if (random_.Chance(0.5)) {
        After(random_.Uniform() * absl::Seconds(3),
              [this] { faults_->CrashCoordinator(); });
        RestartCoordinatorSoon();
      }
      return true;
    case Fault::kCheckpointIsAskedFor:
      // The request fails if the coordinator is dead or the job is over.
      return faults_->RequestCheckpoint().ok();
    case Fault::kShardLeaves:
      return faults_->AskToLeave(victim);
    default:
      return StrikeDisk(fault, shard);
  }
}

bool RandomFaults::StrikeDisk(Fault fault, int shard) {
  switch (fault) {
    case Fault::kCheckpointRots:
      if (!faults_->RotCheckpoint(random_.Next())) return false;
      KillShard(shard, absl::Seconds(2));
      return true;
    case Fault::kSharesHang:
      faults_->HangSharesFor(cluster_->processes().shard_process(shard),
                             random_.Uniform() * absl::Seconds(12));
      return true;
    case Fault::kReadsAreSlow:
      faults_->SlowReads(absl::Seconds(8));
      UndoAfter(absl::Minutes(2),
                [this] { faults_->SlowReads(absl::ZeroDuration()); });
      return true;
    default:
      faults_->FailNextWrite(ResourceExhaustedError("no space left on device"));
      return true;
  }
}

bool RandomFaults::StrikeHost(Fault fault) {
  const int host = cluster_->hosts().HostOf(AnyWorker());
  if (host < 0) return false;
  if (fault == Fault::kHostDies) return KillHost(host);
  const std::vector<ProcessId> mates = LiveWorkersOn(host);
  if (mates.size() < 2) return false;
  const size_t first = random_.Below(mates.size());
  if (fault == Fault::kMatesCannotConnect) {
    faults_->MakeUnreachable(mates[first]);
    return true;
  }
  const size_t other = first + 1 + random_.Below(mates.size() - 1);
  faults_->BreakConnection(mates[first], mates[other % mates.size()]);
  return true;
}

bool RandomFaults::KillHost(int host) {
  const std::vector<ProcessId> workers = LiveWorkersOn(host);
  const std::vector<int> shards = LiveShardsOn(host);
  // A worker on another host must survive. If the host has servers, there must
  // be a checkpoint, because a shard and its backup may die together.
  const bool some_survive = workers.size() < cluster_->live_workers().size();
  const Coordinator* const coordinator = cluster_->coordinator();
  const bool may_lose_shards = shards_may_die_ && coordinator != nullptr &&
                               coordinator->checkpoints().newest().has_value();
  if (!some_survive || (!shards.empty() && !may_lose_shards)) return false;
  const bool reboots = random_.Chance(0.5);
  faults_->CrashHost(host, reboots);
  // The coordinator may live in the process of shard 0.
  const bool has_coordinator =
      cluster_->options().coordinator_is_shard_0 && absl::c_count(shards, 0);
  if (has_coordinator) {
    faults_->CrashCoordinator();
    RestartCoordinatorSoon();
  }
  const absl::Duration away = random_.Uniform() * absl::Seconds(2);
  for (const int shard : shards) StartShardAfter(away, shard);
  // Either all workers of the host come back together, or none does.
  if (random_.Chance(0.3)) return true;
  After(away, [this, workers] {
    for (const ProcessId worker : workers) {
      faults_->StartWorker(cluster_->processes().name_of(worker));
    }
  });
  return true;
}

bool RandomFaults::KillShard(int shard, absl::Duration away_max) {
  const ProcessId victim = cluster_->processes().shard_process(shard);
  if (!cluster_->processes().alive(victim)) return false;
  faults_->Crash(victim);
  StartShardAfter(random_.Uniform() * away_max, shard);
  return true;
}

void RandomFaults::StartShardAfter(absl::Duration delay, int shard) {
  UndoAfter(delay, [this, shard] {
    if (cluster_->processes().alive(cluster_->processes().shard_process(shard)))
      return;
    faults_->StartShard(shard);
  });
}

void RandomFaults::KillOnceItServes(int shard) {
  faults_->AtNextEpoch([this, shard] {
    if (stopped_) return;
    const Job& job = cluster_->job();
    if (job.shard_servers[shard].primary != shard) {
      // The server is not the primary yet. The slow link keeps frames between
      // it and the primary under way when the two change places.
      SlowLinkFor(
          cluster_->processes().shard_process(shard),
          cluster_->processes().shard_process(job.shard_servers[shard].primary),
          absl::Milliseconds(300));
      return KillOnceItServes(shard);
    }
    After(random_.Uniform() * absl::Milliseconds(200),
          [this, shard] { KillShard(shard, absl::Seconds(2)); });
  });
}

void RandomFaults::RestartCoordinatorSoon() {
  const auto restart = [this] { faults_->RestartCoordinator(); };
  // The coordinator may die only later, so several tries follow.
  for (int i = 1; i < 20; ++i) {
    After(random_.Uniform() * absl::Seconds(i), restart);
  }
  undo_.push_back(restart);
}

bool RandomFaults::PauseFor(ProcessId victim) {
  faults_->Pause(victim);
  const absl::Duration most =
      random_.Chance(0.2) ? absl::Seconds(30) : absl::Seconds(8);
  UndoAfter(random_.Uniform() * most,
            [this, victim] { faults_->Resume(victim); });
  return true;
}

bool RandomFaults::StallFor(ProcessId victim) {
  faults_->StallDriver(victim);
  // Most drivers stall for longer than a step may take after a fault. So
  // BoundedWaitLaw finds workers that wait for a stalled driver.
  const absl::Duration least =
      random_.Chance(0.7) ? absl::Seconds(12) : absl::ZeroDuration();
  UndoAfter(least + random_.Uniform() * absl::Seconds(8),
            [this, victim] { faults_->Resume(victim); });
  return true;
}

bool RandomFaults::Flap(ProcessId a, ProcessId b) {
  // The coordinator drops one end of a link that breaks again and again. That
  // end may be a server.
  if (!shards_may_die_) return false;
  const int shards = cluster_->job().shards();
  if (shards > 1 && random_.Chance(0.7)) {
    // The coordinator may live in the process of shard 0.
    a = cluster_->processes().shard_process(0);
    b = cluster_->processes().shard_process(
        1 + static_cast<int>(random_.Below(shards - 1)));
  }
  if (a == b) return false;
  absl::Duration at;
  for (int i = 0; i < 6; ++i) {
    After(at, [this, a, b] {
      if (cluster_->processes().alive(a) && cluster_->processes().alive(b)) {
        faults_->BreakConnection(a, b);
      }
    });
    at += absl::Milliseconds(20) +
          random_.Uniform() * (random_.Chance(0.5) ? absl::Milliseconds(200)
                                                   : absl::Seconds(4));
  }
  return true;
}

bool RandomFaults::CutFor(ProcessId from, ProcessId to, bool both_ways) {
  if (from == to) return false;
  // A cut of a few leases costs one end its place, and that may be a server.
  const absl::Duration most =
      shards_may_die_ ? absl::Seconds(20) : 1.5 * cluster_->options().lease;
  const absl::Duration length = random_.Uniform() * most;
  faults_->Cut(from, to);
  UndoAfter(length, [this, from, to] { faults_->Mend(from, to); });
  if (!both_ways) return true;
  faults_->Cut(to, from);
  UndoAfter(length, [this, from, to] { faults_->Mend(to, from); });
  return true;
}

bool RandomFaults::SlowFor(ProcessId victim) {
  faults_->SlowDown(victim, kSlowness);
  UndoAfter(random_.Uniform() * absl::Seconds(4),
            [this, victim] { faults_->SlowDown(victim, 1); });
  return true;
}

bool RandomFaults::SlowLinkFor(ProcessId a, ProcessId b,
                               absl::Duration delay_max) {
  const SimulatedHosts& hosts = cluster_->hosts();
  if (hosts.NodeOf(a) == hosts.NodeOf(b)) return false;
  Link slow;
  if (random_.Chance(0.5)) slow.rate = 10e6;
  slow.extra_delay = random_.Uniform() * delay_max;
  faults_->SetLink(a, b, slow);
  UndoAfter(random_.Uniform() * absl::Seconds(4),
            [this, a, b] { faults_->SetLink(a, b, Link()); });
  return true;
}

bool RandomFaults::CutSession(ProcessId victim) {
  // All messages are lost from now on. The first end hears of the break at once
  // or after a while. The other end hears of it up to more than a lease later.
  const absl::Duration early = random_.Chance(0.5)
                                   ? random_.Uniform() * absl::Seconds(1)
                                   : absl::ZeroDuration();
  const absl::Duration late =
      early + random_.Uniform() * (random_.Chance(0.5) ? absl::Milliseconds(100)
                                                       : absl::Seconds(6));
  if (random_.Chance(0.5)) {
    faults_->BreakSession(victim, late, early);
  } else {
    faults_->BreakSession(victim, early, late);
  }
  return true;
}

bool RandomFaults::Part() {
  std::set<ProcessId> far;
  for (const ProcessId worker : cluster_->live_workers()) {
    if (random_.Chance(0.4)) far.insert(worker);
  }
  for (int shard = 0; shards_may_die_ && shard < cluster_->job().shards();
       ++shard) {
    if (random_.Chance(0.2))
      far.insert(cluster_->processes().shard_process(shard));
  }
  if (far.empty()) return false;
  faults_->Partition(std::move(far));
  const absl::Duration length =
      random_.Uniform() *
      (random_.Chance(0.5) ? absl::Seconds(1) : absl::Seconds(10));
  if (random_.Chance(0.7)) {
    After(random_.Uniform() * length, [this] { faults_->BreakAcross(); });
  }
  UndoAfter(length, [this] { faults_->Heal(); });
  return true;
}

bool IsLost(const absl::Status& status) {
  return absl::IsAborted(status) &&
         (absl::StrContains(status.message(), "all workers were lost") ||
          absl::StrContains(status.message(), "all workers left early") ||
          absl::StrContains(status.message(), "there is no checkpoint") ||
          absl::StrContains(status.message(), "no checkpoint is left"));
}

}  // namespace nereus
