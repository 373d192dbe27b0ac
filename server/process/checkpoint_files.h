#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/storage.h"
#include "common/protocol/outbox.h"
#include "server/coordinator/checkpoint_ledger.h"
#include "server/coordinator/coordinator.h"

namespace nereus {

// Functions with which shards and the coordinator read and write checkpoints. A
// checkpoint has a part for each shard, a file with the shard's chunks, and a
// manifest, a file that lists the parts. Each call blocks for as long as the
// disk takes. All but WritePart and CheckRestore return the errors of
// common/checkpoint.

// Writes a shard's part of a checkpoint. Returns the outcome, which the shard
// reports to the coordinator. After an error, CheckpointPart::error has the
// message.
CheckpointPart WritePart(Storage& storage, const Job& job,
                         const SaveCheckpoint& save);

// Reads the chunks of a checkpoint that `load` asks for, into the buffers in
// `load.values`. Calls `progress` after each block.
absl::Status ReadPart(Storage& storage, const LoadCheckpoint& load,
                      const CheckpointReader::Progress& progress);

// Writes the manifest of a checkpoint whose parts all shards have written. The
// manifest makes the checkpoint complete. The caller removes old checkpoints
// (KeepLast) only after this has returned OK.
absl::Status WriteWhole(Storage& storage, const std::string& job_name,
                        const CompleteCheckpoint& complete);

// Calls WriteWhole and, if it succeeds, removes all complete checkpoints but
// the newest `kept`. If old ones cannot be removed, logs why: the new one
// counts all the same.
absl::Status FinishCheckpoint(Storage& storage, int kept,
                              const std::string& job_name,
                              const CompleteCheckpoint& complete);

// Manifest of a checkpoint, and the facts from the manifest that the
// coordinator keeps in its state.
struct FoundCheckpoint {
  Manifest manifest;        // Manifest on the disk.
  CheckpointRecord record;  // Facts for the coordinator.
};

// Returns the newest checkpoint; nothing if the storage has no checkpoint with
// a manifest. Errors: also kDataLoss, the newest checkpoint is damaged, or
// kUnimplemented, another version of Nereus has written it. FindNewest then
// returns no older checkpoint, because a job must not go back further without
// the user's decision.
absl::StatusOr<std::optional<FoundCheckpoint>> FindNewest(Storage& storage);

// Returns the checkpoint of `round`. Reads only the manifest; VerifyCheckpoint
// checks the other files. Errors: those of ReadManifest.
absl::StatusOr<FoundCheckpoint> FindRound(Storage& storage, int64_t round);

// Sets aside all checkpoints, complete or damaged, of rounds after `round`:
// renames their folders, so that they no longer count. The job goes on from
// `round` and will write new checkpoints of later rounds. Logs the new names of
// the folders. `unfinished`: also sets aside checkpoints without a manifest. No
// server may then be writing one.
absl::Status SetAsideAfter(Storage& storage, int64_t round, bool unfinished);

// Sets `newest` to the newest complete checkpoint in the storage, if the
// running job `job` has made it. On entry, `newest` is the newest checkpoint
// according to the saved state of a coordinator that is started again. The
// coordinator may have died after it wrote a manifest and before it saved its
// state. Sets aside the damaged checkpoints that are newer than all complete
// ones, because the job will write new ones. Clears `newest` if it is one of
// these.
absl::Status UpdateNewest(Storage& storage, const std::string& job,
                          std::optional<CheckpointRecord>& newest);

// Returns OK if `restore`, the value of --restore, is "latest" or a round; else
// kInvalidArgument.
absl::Status CheckRestore(absl::string_view restore);

// Returns `error`, which is about the checkpoint of `round`. If there are other
// complete checkpoints, adds their rounds to the message: "; FLAG=ROUND takes
// another one: 40, 30".
absl::Status WithOthers(const absl::Status& error, int64_t round,
                        absl::string_view flag, Storage& storage);

}  // namespace nereus
