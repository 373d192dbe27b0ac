#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/folder_id.h"
#include "common/checkpoint/storage.h"
#include "server/process/coordinator_service.h"
#include "server/process/job_store.h"
#include "server/process/server.h"

namespace nereus {

// What a process that coordinates has on disk, and the service on top of it:
// the job as it was saved, or as of a checkpoint, or a new one.
class CoordinatorHost {
 public:
  // `storage`: of checkpoints, null if there are none; not owned. Errors:
  // kInvalidArgument, flags that do not fit each other; kFailedPrecondition,
  // nor what is on disk; those of JobStore and of the storage.
  static absl::StatusOr<std::unique_ptr<CoordinatorHost>> Start(
      const ServerOptions& options, Storage* storage,
      const std::vector<Setting>& settings);

  CoordinatorService& service() { return *service_; }

 private:
  std::optional<FolderLock> folder_;
  std::unique_ptr<JobStore> store_;
  std::unique_ptr<CoordinatorService> service_;  // Uses the store.
};

// What all servers of a job must have in common, by the names of their flags.
// Errors: those of FolderId.
absl::StatusOr<std::vector<Setting>> ServerSettings(
    const ServerOptions& options);

// As far as flags say it. Errors: kInvalidArgument.
CoordinatorOptions MakeCoordinatorOptions(const ServerOptions& options);

}  // namespace nereus
