#include "tests/simulation/fault_script.h"

#include <utility>

#include "common/base/logging.h"

namespace nereus {

void FaultScript::At(absl::Duration time, Task fault) {
  at_.world->events.At(absl::UnixEpoch() + time, std::move(fault));
}

void FaultScript::After(absl::Duration delay, Task fault) {
  at_.world->events.After(delay, std::move(fault));
}

void FaultScript::AtNextEpoch(Task fault) {
  at_.coordinator->AtNextEpoch(std::move(fault));
}

// ---- Processes.

void FaultScript::CrashHost(int host, bool reboots) {
  at_.supervisor->KillHost(host);
  if (reboots) at_.world->hosts.Reboot(host);
}

void FaultScript::Pause(ProcessId id) {
  at_.world->Disturb();
  process(id).Stop(SimulatedProcess::Halt::kPaused);
}

void FaultScript::StallDriver(ProcessId id) {
  at_.world->Disturb();
  process(id).Stop(SimulatedProcess::Halt::kDriverStalled);
}

void FaultScript::Resume(ProcessId id) {
  at_.world->Disturb();
  process(id).resumed_at = at_.world->events.now();
  process(id).Resume();
  if (process(id).alive) at_.connections->network().OfferAgain(id);
}

void FaultScript::SlowDown(ProcessId id, double factor) {
  NEREUS_CHECK(factor >= 1) << factor;
  at_.world->Disturb();
  if (process(id).worker != nullptr) process(id).worker->set_slowness(factor);
  at_.connections->network().SetRateFactor(at_.world->hosts.NodeOf(id),
                                           1 / factor);
}

void FaultScript::LeaveSoon(ProcessId id, bool early) {
  process(id).worker->LeaveSoon(early);
}

bool FaultScript::AskToLeave(ProcessId id) {
  SimulatedProcess& server = process(id);
  if (server.start() == nullptr) return false;
  server.Run([this, &server] {
    Outbox out;
    server.member->OnLeave(kInitialRound, /*early=*/true, out);
    at_.world->execute(server, out);
  });
  return true;
}

// ---- Connections.

void FaultScript::BreakConnection(ProcessId a, ProcessId b) {
  at_.connections->Break(a, b);
}

void FaultScript::MakeUnreachable(ProcessId id) {
  at_.connections->MakeUnreachable(id);
}

void FaultScript::BreakInFrame(ProcessId from, ProcessId to, int frames) {
  at_.connections->BreakInFrame(from, to, frames);
}

void FaultScript::BreakAfterSend(ProcessId from, ProcessId to) {
  process(from).breaks_after_send = to;
}

void FaultScript::Cut(ProcessId from, ProcessId to) {
  at_.connections->Cut(from, to);
}

void FaultScript::Mend(ProcessId from, ProcessId to) {
  at_.connections->Mend(from, to);
}

void FaultScript::SetLink(ProcessId a, ProcessId b, const Link& link) {
  at_.world->Disturb();
  const SimulatedHosts& hosts = at_.world->hosts;
  if (hosts.NodeOf(a) == hosts.NodeOf(b)) return;
  at_.connections->network().SetLink(hosts.NodeOf(a), hosts.NodeOf(b), link);
}

// ---- Sessions.

void FaultScript::BreakSession(ProcessId id) { at_.sessions->Break(id); }

void FaultScript::BreakSession(ProcessId id, absl::Duration member,
                               absl::Duration coordinator) {
  at_.sessions->Break(id, member, coordinator);
}

void FaultScript::LoseNextAnswer(ProcessId id) {
  at_.sessions->LoseNextAnswer(id);
}

// ---- Partitions.

void FaultScript::Partition(std::set<ProcessId> far) {
  at_.world->Disturb();
  if (!at_.partition->far().empty()) Heal();
  at_.partition->Divide(std::move(far));
}

void FaultScript::BreakAcross() {
  const std::set<ProcessId> far = at_.partition->far();
  for (const ProcessId id : far) {
    for (const auto& other : at_.world->processes.all()) {
      if (at_.partition->Separates(id, other->id)) {
        at_.connections->Break(id, other->id);
      }
    }
    at_.sessions->Break(id);
  }
}

void FaultScript::Heal() {
  at_.world->Disturb();
  at_.partition->Heal(at_.world->events.now());
  const ProcessTable& processes = at_.world->processes;
  // An offered frame may start a process, so the table may grow here.
  for (ProcessId id = 0; id < processes.next_id(); ++id) {
    if (processes.alive(id)) at_.connections->network().OfferAgain(id);
  }
}

// ---- The coordinator and the disk.

void FaultScript::CrashCoordinator() { at_.coordinator->Crash(); }

void FaultScript::CrashCoordinatorAtSave() {
  at_.coordinator->CrashAtNextSave();
}

void FaultScript::RestartCoordinator() { at_.coordinator->Restart(); }

void FaultScript::PauseCoordinator(absl::Duration time) {
  at_.coordinator->PauseFor(time);
}

void FaultScript::FailSavesFor(absl::Duration time) {
  at_.coordinator->FailSavesFor(time);
}

void FaultScript::HangSavesFor(absl::Duration time) {
  at_.coordinator->HangSavesFor(time);
}

void FaultScript::HangManifestsFor(absl::Duration time) {
  at_.world->Disturb();
  at_.disk->HangManifestsFor(time);
}

void FaultScript::HangSharesFor(ProcessId id, absl::Duration time) {
  at_.world->Disturb();
  at_.disk->HangSharesFor(id, time);
}

absl::Status FaultScript::RequestCheckpoint() {
  return at_.coordinator->RequestCheckpoint();
}

void FaultScript::FailNextWrite(absl::Status status) {
  at_.disk->storage().FailNext(std::move(status));
}

}  // namespace nereus
