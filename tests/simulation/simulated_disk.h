#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/outbox.h"
#include "server/coordinator/coordinator_outbox.h"
#include "tests/simulation/simulated_process.h"
#include "tests/simulation/simulated_storage.h"
#include "tests/simulation/simulated_world.h"

namespace nereus {

// Disk for checkpoints, shared by all servers of a simulated cluster. Each
// process writes one file at a time, and each file takes a drawn time. The
// production code writes the files (checkpoint_files.h).
//
// A process may die in the middle of a file. After every write, the laws check
// the files on the disk, even if the write has failed.
class SimulatedDisk {
 public:
  // Functions that the disk calls.
  struct Events {
    // A process dies in the middle of a file.
    std::function<void(SimulatedProcess& process)> crashed;
    // A process has waited for the disk, and goes on.
    std::function<void(SimulatedProcess& process)> answered;
  };

  // `world` is not owned and must outlive this.
  SimulatedDisk(uint64_t storage_seed, SimulatedWorld* world, Events events);

  // Writes a server's share of a checkpoint, and then tells the server the
  // outcome.
  void Save(SimulatedProcess& process, const SaveCheckpoint& save);
  // Reads a server's share of a checkpoint, and then runs `rest`: at once, or
  // with SlowReads after a while, in which the server does nothing else. If the
  // share is damaged, the server tells the coordinator, and does nothing more
  // until the job goes back.
  void Load(SimulatedProcess& process, const LoadCheckpoint& load,
            SimulatedProcess::Task rest);

  // Returns the time at which the next manifest is written, one after another.
  absl::Time NextManifestAt();
  // Writes the manifest that makes a checkpoint whole, and removes older
  // checkpoints.
  struct Written {
    absl::Status status;   // OK if the manifest is on disk.
    bool crashed = false;  // True if the coordinator dies during the write.
  };
  Written WriteManifest(const CompleteCheckpoint& complete);
  // Writes the manifest of a checkpoint that the job has gone back without. No
  // law hears of it: DropLateManifest must follow.
  absl::Status WriteLateManifest(const CompleteCheckpoint& complete);
  void DropLateManifest(const CheckpointRecord& record);

  // Looks for an older checkpoint in place of a damaged one.
  struct FoundAside {
    absl::StatusOr<CheckpointSetAside> outcome;
    bool crashed = false;  // True if the coordinator dies meanwhile.
  };
  FoundAside SetAside(const SetCheckpointAside& damaged);

  // Does what a restarted coordinator does with its checkpoints before it goes
  // on with its job. After a fault of the disk the coordinator would end, and
  // be started again: this tries again until there is no fault.
  absl::Status UpdateNewest(CheckpointLedger::State& checkpoints);

  // Kills the next server that writes its share, in the middle of the file.
  void CrashInNextShare() { crash_in_next_share_ = true; }
  // Kills the coordinator in the middle of a manifest, after `manifests` whole
  // ones.
  void CrashInManifest(int manifests) { manifests_to_crash_ = manifests; }

  // Changes a byte of the newest whole checkpoint. Returns false, and changes
  // nothing, if there is no older one of which no byte has changed.
  bool Rot(uint64_t draw);
  // Lets no manifest be written for `time`.
  void HangManifestsFor(absl::Duration time);
  // Lets this process write no share for `time`.
  void HangSharesFor(ProcessId process, absl::Duration time);
  // From now on each read takes a drawn time up to `time_max`. One in five
  // never ends; the server then ends after a lease, and another one comes.
  void SlowReads(absl::Duration time_max) { read_time_max_ = time_max; }

  SimulatedStorage& storage() { return storage_; }
  // Returns the round of the newest whole checkpoint; kInitialRound if there is
  // none.
  int64_t newest_round();
  // Number of manifests that were written without an error.
  int64_t checkpoints_made() const { return checkpoints_made_; }

 private:
  absl::Duration DrawWriteTime();
  // Reads a server's share of a checkpoint at once.
  void Read(SimulatedProcess& process, const LoadCheckpoint& load);
  // Crashes the disk's machine within the next `steps` steps of writing.
  void CrashSoon(uint64_t steps);
  // Restarts the disk's machine if it has crashed, and tells the laws that the
  // disk has changed. Returns true if the machine had crashed.
  bool Settle();

  SimulatedWorld* const world_;
  const Events events_;
  SimulatedStorage storage_;
  bool crash_in_next_share_ = false;       // See CrashInNextShare.
  std::optional<int> manifests_to_crash_;  // See CrashInManifest.
  int64_t checkpoints_made_ = 0;
  absl::Duration read_time_max_;  // See SlowReads.
  absl::Time manifest_at_;        // Time at which the last manifest is written.
  // Time at which a process's last file is written.
  std::map<ProcessId, absl::Time> written_at_;
};

}  // namespace nereus
