#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/folder_id.h"
#include "common/checkpoint/storage.h"
#include "server/process/coordinator_service.h"
#include "server/process/job_store.h"
#include "server/process/server.h"

namespace nereus {

// The coordinator of a process with everything that it has on disk. Decides at
// the start how the job begins: as it was saved in the state file, as of a
// checkpoint, or as a new job.
class CoordinatorHost {
 public:
  // `storage`: folder of the checkpoints, or null; not owned. `settings`:
  // settings that all servers must share. Errors: kInvalidArgument, options
  // that contradict each other; kFailedPrecondition, options that contradict
  // the state or the checkpoints on disk; those of JobStore and of the storage.
  static absl::StatusOr<std::unique_ptr<CoordinatorHost>> Start(
      const ServerOptions& options, Storage* storage,
      const std::vector<Setting>& settings);

  // Service for the control port.
  CoordinatorService& service() { return *service_; }

 private:
  // Keeps another job's coordinator out of the folder for checkpoints.
  std::optional<FolderLock> folder_;
  std::unique_ptr<JobStore> store_;  // State file; null without one.
  std::unique_ptr<CoordinatorService> service_;  // Uses the store.
};

// Returns the settings that all servers of a job must share, by the names of
// their flags. Errors: those of FolderId.
absl::StatusOr<std::vector<Setting>> ServerSettings(
    const ServerOptions& options);

// Returns the coordinator's options, as far as flags decide them. The state and
// the checkpoints on disk decide the rest (CoordinatorHost::Start).
CoordinatorOptions MakeCoordinatorOptions(const ServerOptions& options);

}  // namespace nereus
