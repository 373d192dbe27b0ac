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

// Functions with which shards and the coordinator read and write checkpoints.
// Each call blocks for as long as the disk takes. All but WritePart return the
// errors of common/checkpoint.

// Writes a shard's part of a checkpoint, and returns the outcome to tell the
// coordinator. After an error, CheckpointPart::error has the message.
CheckpointPart WritePart(Storage& storage, const Job& job,
                         const SaveCheckpoint& save);

// Reads the chunks of a checkpoint that `load` asks for, into the buffers in
// `load.values`.
absl::Status ReadPart(Storage& storage, const LoadCheckpoint& load);

// Writes the manifest of a checkpoint whose parts all shards have written. The
// manifest makes the checkpoint complete. The caller removes old checkpoints
// (KeepLast) only after this has returned OK.
absl::Status WriteWhole(Storage& storage, const std::string& job_name,
                        const CompleteCheckpoint& complete);

// Manifest of a checkpoint, and the facts from it that the coordinator keeps.
struct FoundCheckpoint {
  Manifest manifest;        // Manifest on the disk.
  CheckpointRecord record;  // Facts from it.
};

// Returns the newest complete checkpoint; nothing if there is none.
absl::StatusOr<std::optional<FoundCheckpoint>> FindNewest(Storage& storage);

// Returns the checkpoint of `round`. Reads only the manifest; VerifyCheckpoint
// checks the other files. Errors: those of ReadManifest.
absl::StatusOr<FoundCheckpoint> FindRound(Storage& storage, int64_t round);

}  // namespace nereus
