#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
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

// Returns the newest checkpoint; nothing if none was ever complete. Errors:
// also kDataLoss or kUnimplemented, the newest checkpoint is damaged, or
// another version of Nereus has written it: an older one must not replace it
// silently.
absl::StatusOr<std::optional<FoundCheckpoint>> FindNewest(Storage& storage);

// Returns the checkpoint of `round`. Reads only the manifest; VerifyCheckpoint
// checks the other files. Errors: those of ReadManifest.
absl::StatusOr<FoundCheckpoint> FindRound(Storage& storage, int64_t round);

// Sets aside all checkpoints after `round`, from which a job goes on: the job
// will write others of their rounds. Logs the new names of their folders.
absl::Status SetAsideAfter(Storage& storage, int64_t round);

// Sets `newest`, what a restarted coordinator knows of the newest checkpoint of
// its running job, to that in the storage: the coordinator may have died after
// it wrote a manifest and before it saved its state. Sets damaged checkpoints
// that are newer aside: the job writes others.
absl::Status UpdateNewest(Storage& storage, const std::string& job,
                          std::optional<CheckpointRecord>& newest);

// Returns kInvalidArgument if the value of --restore is neither "latest" nor a
// round.
absl::Status CheckRestore(absl::string_view restore);

// Adds "; FLAG=ROUND takes another one: 40, 30" to an error of the checkpoint
// of `round`, with the rounds of all other complete checkpoints, if there are
// any.
absl::Status WithOthers(const absl::Status& error, int64_t round,
                        absl::string_view flag, Storage& storage);

}  // namespace nereus
