#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/file_storage.h"
#include "common/checkpoint/storage.h"
#include "server/process/checkpoint_files.h"
#include "server/process/coordinator_service.h"
#include "server/process/job_store.h"
#include "server/process/server.h"

namespace nereus {

// The coordinator in this process, with its state file and its lock on the
// folder of checkpoints. Start decides how the job begins: from the state in
// the state file, from a checkpoint, or as a new job.
class CoordinatorHost {
 public:
  // `storage`: the folder of checkpoints, or null. `settings`: the result of
  // ServerSettings. `tell` hears how far the verification of a checkpoint is.
  // Errors: kInvalidArgument, `restore` is neither "latest" nor
  // a round; kNotFound, the folder has no checkpoint of that round;
  // kFailedPrecondition, the options contradict the state or the checkpoints on
  // disk, or another coordinator uses the folder; those of JobStore, of
  // FolderLock and of reading a checkpoint.
  static absl::StatusOr<std::unique_ptr<CoordinatorHost>> Start(
      const ServerOptions& options, std::shared_ptr<Storage> storage,
      const std::vector<Setting>& settings, const TellProgress& tell);

  // Service for the control port.
  CoordinatorService& service() { return *service_; }

 private:
  // Keeps other coordinators out of the folder of checkpoints. Absent without a
  // folder.
  std::optional<FolderLock> folder_;
  std::unique_ptr<CoordinatorService> service_;
};

// Returns the settings that all servers of a job must share, by the names of
// their flags. Errors: those of FolderId.
absl::StatusOr<std::vector<Setting>> ServerSettings(
    const ServerOptions& options);

// Returns the coordinator's options that follow from the server's options
// alone, with a random job id. CoordinatorHost::Start adds the settings that
// all servers share, and options that follow from the state and the checkpoints
// on disk.
CoordinatorOptions MakeCoordinatorOptions(const ServerOptions& options);

}  // namespace nereus
