// What goes wrong with the processes of a simulated cluster and with what joins
// them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/logging.h"
#include "tests/simulation/simulated_process.h"

namespace nereus {

// Processes.

void SimulatedCluster::Crash(ProcessId process) {
  Process& victim = *processes_[process];
  if (!victim.alive) return;
  disturbed_at_ = events_.now();
  victim.alive = false;
  for (const auto& other : processes_) {
    if (other->alive) BreakConnection(process, other->id);
  }
  if (victim.session.has_value()) {
    events_.After(Draw(options_.network.delay_max),
                  [this, process, session = *victim.session] {
                    WhenTogether(process, kCoordinator, [this, session] {
                      EndAtCoordinator(session);
                    });
                  });
  }
  victim.session.reset();
  victim.worker = nullptr;
  victim.server = nullptr;
  victim.member.reset();
  victim.deferred.clear();
}

void SimulatedCluster::Pause(ProcessId process) {
  disturbed_at_ = events_.now();
  processes_[process]->paused = true;
}

void SimulatedCluster::StallDriver(ProcessId process) {
  disturbed_at_ = events_.now();
  processes_[process]->stalled = true;
}

void SimulatedCluster::Resume(ProcessId process) {
  disturbed_at_ = events_.now();
  Process& target = *processes_[process];
  target.paused = false;
  target.stalled = false;
  for (const Task& task : std::exchange(target.deferred, {})) {
    RunTask(process, task);
  }
  if (target.alive) network_.OfferAgain(process);
}

void SimulatedCluster::SlowDown(ProcessId process, double factor) {
  NEREUS_CHECK(factor >= 1) << factor;
  disturbed_at_ = events_.now();
  processes_[process]->slowness = factor;
  network_.SetRateFactor(process, 1 / factor);
}

void SimulatedCluster::LeaveSoon(ProcessId process) {
  Process& target = *processes_[process];
  target.leave_soon = true;
  if (target.alive && target.idle && target.worker != nullptr) TryStep(target);
}

// Connections.

void SimulatedCluster::SetLink(ProcessId a, ProcessId b, const Link& link) {
  disturbed_at_ = events_.now();
  network_.SetLink(a, b, link);
}

bool SimulatedCluster::Connected(ProcessId a, ProcessId b) const {
  const auto knows = [&](ProcessId self, ProcessId peer) {
    const Member* member = processes_[self]->member.get();
    const Member* other = processes_[peer]->member.get();
    return member != nullptr && other != nullptr &&
           member->start() != nullptr && other->start() != nullptr &&
           FindProcess(*member->start(), other->start()->self) == peer;
  };
  return a != b && (knows(a, b) || knows(b, a));
}

void SimulatedCluster::BreakConnection(ProcessId a, ProcessId b) {
  if (!Connected(a, b)) return;
  disturbed_at_ = events_.now();
  network_.Break(a, b);
  cut_in_frame_.erase({a, b});
  cut_in_frame_.erase({b, a});
  for (const auto& ends : {std::pair{a, b}, std::pair{b, a}}) {
    const ProcessId self = ends.first;
    const ProcessId peer = ends.second;
    const PeerId id = processes_[peer]->member->start()->self;
    const Task lose = [this, self, peer, id,
                       was = processes_[self]->renewed[peer]] {
      Process& process = *processes_[self];
      if (process.renewed[peer] > was) return;
      process.lost.insert(peer);
      Outbox out;
      process.member->OnLostPeer(id, "it was reset", out);
      Execute(process, out);
    };
    // One that is cut off hears of a death when that is over.
    events_.After(Draw(options_.network.delay_max), [this, self, peer, lose] {
      const Task hear = [this, self, lose] { RunTask(self, lose); };
      if (alive(peer)) {
        hear();
      } else {
        WhenTogether(peer, self, hear);
      }
    });
  }
}

void SimulatedCluster::BreakInFrame(ProcessId from, ProcessId to, int frames) {
  if (Connected(from, to)) cut_in_frame_[{from, to}] = frames;
}

bool SimulatedCluster::CutsHere(ProcessId from, ProcessId to) {
  const auto found = cut_in_frame_.find({from, to});
  if (found == cut_in_frame_.end()) return false;
  return found->second-- == 0;
}

void SimulatedCluster::LoseRestOfFrame(ProcessId from, ProcessId to,
                                       const Frame& frame,
                                       const Buffer& place) {
  // What has arrived of it lies where it would have.
  const int64_t bytes = std::min(place.bytes(), frame.payload.bytes() / 2);
  if (bytes > 0) {
    std::memcpy(place.data(), frame.payload.data(), static_cast<size_t>(bytes));
  }
  BreakConnection(from, to);
}

void SimulatedCluster::BreakAfterSend(ProcessId from, ProcessId to) {
  processes_[from]->breaks_after_send = to;
}

// Partitions.

void SimulatedCluster::Partition(std::set<ProcessId> far) {
  disturbed_at_ = events_.now();
  if (!far_.empty()) Heal();
  far_ = std::move(far);
}

bool SimulatedCluster::Separated(ProcessId a, ProcessId b) const {
  return far_.contains(a) != far_.contains(b);
}

void SimulatedCluster::WhenTogether(ProcessId a, ProcessId b, Task task) {
  if (Separated(a, b)) {
    held_up_.push_back(std::move(task));
  } else {
    task();
  }
}

void SimulatedCluster::BreakAcross() {
  for (const ProcessId one : std::set<ProcessId>(far_)) {
    for (const auto& other : processes_) {
      if (Separated(one, other->id)) BreakConnection(one, other->id);
    }
    BreakSession(one);
  }
}

void SimulatedCluster::Heal() {
  disturbed_at_ = events_.now();
  far_.clear();
  for (const Task& task : std::exchange(held_up_, {})) task();
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (processes_[i]->alive) network_.OfferAgain(processes_[i]->id);
  }
}

}  // namespace nereus
