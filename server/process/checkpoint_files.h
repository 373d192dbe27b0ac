#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/storage.h"
#include "common/protocol/outbox.h"
#include "server/coordinator/checkpoint_ledger.h"
#include "server/coordinator/coordinator.h"

namespace nereus {

// Reads and writes of checkpoints that machines and the coordinator ask for.
// Each call blocks until the disk has done it, and keeps nothing. All return
// the errors of common/checkpoint.

// Writes a shard's part of a checkpoint. An error is in the part that it
// returns (CheckpointPart::error), since the coordinator must be told.
CheckpointPart WritePart(Storage& storage, const Job& job,
                         const SaveCheckpoint& save);

// Reads values into the buffers of the action.
absl::Status ReadPart(Storage& storage, const LoadCheckpoint& load);

// Writes the manifest that makes a checkpoint complete. The caller removes old
// checkpoints afterwards (KeepLast): never before the new one counts.
absl::Status WriteWhole(Storage& storage, const std::string& job_name,
                        const CompleteCheckpoint& complete);

// A complete checkpoint: its manifest, and what the coordinator keeps of it.
struct FoundCheckpoint {
  Manifest manifest;
  CheckpointRecord record;
};
// Returns the newest complete checkpoint; nothing if there is none.
absl::StatusOr<std::optional<FoundCheckpoint>> FindNewest(Storage& storage);

// Returns the checkpoint of `round`. Errors: those of ReadManifest.
absl::StatusOr<FoundCheckpoint> FindRound(Storage& storage, int64_t round);

}  // namespace nereus
