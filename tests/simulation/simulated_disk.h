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

// The disk that all servers of a simulated cluster share, for checkpoints. Each
// process writes one file at a time, and each file takes a drawn time; the
// production code of the file formats does the writing (checkpoint_files.h).
//
// A process may die in the middle of a file. The laws look at what is on the
// disk after every write, failed or not.
class SimulatedDisk {
 public:
  // Called when a process dies in the middle of a file.
  using OnCrash = std::function<void(SimulatedProcess& process)>;

  // `world` is not owned and must outlive this.
  SimulatedDisk(uint64_t storage_seed, SimulatedWorld* world, OnCrash on_crash);

  // Writes a server's share of a checkpoint, and tells the server when done.
  void Save(SimulatedProcess& process, const SaveCheckpoint& save);
  // Reads a server's share of a checkpoint, at once.
  void Load(SimulatedProcess& process, const LoadCheckpoint& load);

  // Returns when the next manifest is on disk: one is written at a time.
  absl::Time NextManifestAt();
  // Writes the manifest that makes a checkpoint whole, and removes older ones.
  struct Written {
    absl::Status status;   // Whether the manifest is on disk.
    bool crashed = false;  // The coordinator dies, before or after that.
  };
  Written WriteManifest(const CompleteCheckpoint& complete);

  // Lets the next server die that writes its share, in the middle of the file.
  void CrashInNextShare() { crash_in_next_share_ = true; }
  // Lets the coordinator die in the middle of a manifest, when `manifests` more
  // are written.
  void CrashInManifest(int manifests) { manifests_to_crash_ = manifests; }

  SimulatedStorage& storage() { return storage_; }
  // Round of the newest whole checkpoint; kInitialRound: there is none.
  int64_t newest_round();
  // Number of manifests that were written.
  int64_t checkpoints_made() const { return checkpoints_made_; }

 private:
  absl::Duration DrawWriteTime();
  // Crashes the disk's machine within the next `steps` steps of writing.
  void CrashSoon(uint64_t steps);
  // Ends a crash of the disk's machine, if there was one, and shows the laws
  // what is on the disk. True if there was one.
  bool Settle();

  SimulatedWorld* const world_;
  const OnCrash on_crash_;
  SimulatedStorage storage_;
  bool crash_in_next_share_ = false;       // See CrashInNextShare.
  std::optional<int> manifests_to_crash_;  // See CrashInManifest.
  int64_t checkpoints_made_ = 0;
  absl::Time manifest_at_;  // Time at which the last manifest is written.
  // Time at which a process's last file is written.
  std::map<ProcessId, absl::Time> written_at_;
};

}  // namespace nereus
