#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/storage.h"
#include "common/protocol/outbox.h"
#include "server/coordinator/checkpoint_ledger.h"
#include "server/coordinator/coordinator.h"

namespace nereus {

// What machines and coordinator ask of the disk; each call blocks as long as
// that takes, and none keeps anything. Errors of all: those of
// common/checkpoint.

// Writes a shard's share. What went wrong is in the part, not a status.
CheckpointPart WritePart(Storage& storage, const Job& job,
                         const SaveCheckpoint& save);

// Reads values into the buffers that the action has.
absl::Status ReadPart(Storage& storage, const LoadCheckpoint& load);

// Writes the manifest that makes a checkpoint whole. Then KeepLast: whatever
// comes of that, this one is there.
absl::Status WriteWhole(Storage& storage, const std::string& job_name,
                        const CompleteCheckpoint& complete);

// The newest checkpoint that is whole, with its manifest; nothing if there is
// none.
struct FoundCheckpoint {
  Manifest manifest;
  CheckpointRecord record;
};
absl::StatusOr<std::optional<FoundCheckpoint>> FindNewest(Storage& storage);

// The one of `round`. Errors: as of ReadManifest.
absl::StatusOr<FoundCheckpoint> FindRound(Storage& storage, int64_t round);

}  // namespace nereus
