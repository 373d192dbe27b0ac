#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/coordinator_outbox.h"
#include "server/coordinator/save_first.h"
#include "tests/simulation/simulated_disk.h"
#include "tests/simulation/simulated_world.h"

namespace nereus {

// Process of the coordinator: the production Coordinator, its saved state, and
// its deaths. As in production, a state is on disk before any member hears of
// it (SaveFirst). A coordinator that restarts has the last saved state and the
// checkpoints on disk, and nothing else.
//
// A save takes a drawn time, and may fail or hang. If the coordinator dies
// meanwhile, the state may be on disk or not.
//
//   alive --Crash, or SaveFirst is hopeless--> dead --Restart--> alive
class SimulatedCoordinator {
 public:
  using Task = std::function<void()>;

  // Parts of the cluster that a coordinator acts on.
  struct Hooks {
    // Sends a message to a member, or ends a session with it.
    std::function<void(const CoordinatorAction& action)> send;
    // Ends all sessions, because the coordinator has died.
    Task end_sessions;
    // Returns true if the job is allowed to finish no step now.
    std::function<bool()> may_stand_still;
  };

  // Neither pointer is owned; both must outlive this.
  SimulatedCoordinator(SimulatedWorld* world, SimulatedDisk* disk, Hooks hooks);

  // Begins the regular ticks of the coordinator.
  void Start();

  // ---- Events. The caller holds them back while the coordinator is asleep.

  void OnMessage(SessionId session, const MemberMessage& message);
  void OnSessionEnd(SessionId session);

  // ---- Faults, see FaultScript.

  void Crash();
  void CrashAtNextSave() {
    if (coordinator_ != nullptr) crash_at_save_ = true;
  }
  void Restart();
  void PauseFor(absl::Duration time);
  void FailSavesFor(absl::Duration time);
  // Lets no save end for `time`.
  void HangSavesFor(absl::Duration time);
  void AtNextEpoch(Task fault) { at_next_epoch_.push_back(std::move(fault)); }
  absl::Status RequestCheckpoint();

  // ---- State.

  // Returns the coordinator; null while it is dead.
  const Coordinator* get() const { return coordinator_.get(); }
  // True while the coordinator stands still (PauseFor), up to awake_at().
  bool is_asleep() const { return world_->events.now() < awake_at_; }
  absl::Time awake_at() const { return awake_at_; }
  // True if the job has begun.
  bool has_begun() const;
  // Returns the job as of the coordinator's epoch. While the coordinator is
  // dead, this is the saved job. REQUIRES: the job has begun.
  const Job& job() const;
  // Returns the last epoch that took the whole job back to a checkpoint; 0 if
  // there was none.
  uint64_t restarted_in() const;

 private:
  CoordinatorOptions MakeOptions() const;
  void Tick();
  // Queues actions, and does what can be done now.
  void Carry(CoordinatorOutbox out);
  // Carries out the actions that wait for no save, and begins the next save.
  void GoOn();
  void CarryOut(const CoordinatorAction& action);
  // Ends the save that has begun, now or when the disk goes on.
  void EndSave(int life);
  // Puts a state on disk, and tells the laws if it begins an epoch.
  void Keep(const CoordinatorState& state);
  // Writes a manifest, and then tells the coordinator the outcome.
  void Complete(const CompleteCheckpoint& complete);
  // Looks for an older checkpoint, and then tells the coordinator.
  void SetAside(const SetCheckpointAside& damaged);

  SimulatedWorld* const world_;
  SimulatedDisk* const disk_;
  const Hooks hooks_;
  std::unique_ptr<Coordinator> coordinator_;
  SaveFirst actions_;  // Actions that wait until a state is saved.
  std::shared_ptr<const CoordinatorState> saving_;  // Null: no save goes on.
  std::optional<CoordinatorState> saved_;           // State on disk.
  int life_ = 0;                                    // Number of deaths so far.
  absl::Time awake_at_ = absl::InfinitePast();      // End of the last pause.
  bool crash_at_save_ = false;                      // See CrashAtNextSave.
  absl::Time saves_fail_until_ = absl::InfinitePast();
  absl::Time saves_hang_until_ = absl::InfinitePast();
  std::vector<Task> at_next_epoch_;  // Faults that wait for an epoch.
};

}  // namespace nereus
