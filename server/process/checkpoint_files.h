#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
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
// `load.values`. Calls `progress` before it reads, and after each block, with
// the bytes that are read and those to read. Errors: kDataLoss if, and only if,
// the checkpoint is damaged or gone: reading it again will not help.
using ReadProgress = std::function<void(int64_t done, int64_t total)>;
absl::Status ReadPart(Storage& storage, const LoadCheckpoint& load,
                      const ReadProgress& progress);

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

// Receives a text about work that takes long, for users. Called on several
// threads at a time, and often.
using TellProgress = std::function<void(const std::string&)>;

// Verifies a checkpoint with several threads, so `storage` must be thread-safe.
// Tells meanwhile how many bytes it has read: "verifying the checkpoint of
// round 7, 3 of 40 GB". Errors: those of VerifyCheckpoint.
absl::Status VerifyTold(Storage& storage, const FoundCheckpoint& found,
                        const TellProgress& tell);

// Returns the newest checkpoint of which no file is damaged; nothing if the
// storage has no checkpoint with a manifest. Reads all its files. Logs newer
// checkpoints that are damaged, and how many steps that costs. Calls `check`
// before it reads the files of a checkpoint, and returns its error. Errors:
// also kDataLoss, all checkpoints are damaged, with their rounds;
// kUnimplemented, another version of Nereus has written the newest.
absl::StatusOr<std::optional<FoundCheckpoint>> FindNewestWhole(
    Storage& storage,
    absl::FunctionRef<absl::Status(const FoundCheckpoint&)> check,
    const TellProgress& tell);

// Returns the checkpoint of `round`. Reads only the manifest; VerifyCheckpoint
// checks the other files. Errors: those of ReadManifest.
absl::StatusOr<FoundCheckpoint> FindRound(Storage& storage, int64_t round);

// Sets aside all checkpoints, complete or damaged, of rounds after `round`:
// renames their folders, so that they no longer count. The job goes on from
// `round` and will write new checkpoints of later rounds. Logs the new names of
// the folders. `unfinished`: also sets aside checkpoints without a manifest. No
// server may then be writing one.
absl::Status SetAsideAfter(Storage& storage, int64_t round, bool unfinished);

// Sets `checkpoints.newest` to the newest complete checkpoint in the storage,
// if the running job has made it: job `job` with the id `job_id`. On entry,
// `checkpoints` is the saved state of a coordinator that is started again. The
// coordinator may have died after it wrote a manifest and before it saved its
// state. Sets aside the damaged checkpoints that are newer than all complete
// ones, because the job will write new ones. Clears `newest` if it is one of
// these. Removes manifests that came after the job had gone back without them.
absl::Status UpdateNewest(Storage& storage, const std::string& job,
                          uint64_t job_id,
                          CheckpointLedger::State& checkpoints);

// Looks for the checkpoint that `job` can go back to in place of the damaged
// checkpoint of `round`: the newest one of an earlier round that has the job's
// model and optimizer. Reads only manifests, so its files may be damaged, too.
// If there is one, renames the folder of the damaged checkpoint. Otherwise the
// folder keeps its name: a job that is started again with --restore=latest must
// find it, and not begin anew. If the folder cannot be renamed, logs why.
absl::StatusOr<CheckpointSetAside> SetDamagedAside(Storage& storage,
                                                   const Job& job,
                                                   int64_t round);

// Removes the manifest of a checkpoint that the job has gone back without, if
// it is on the disk. Leaves the files.
absl::Status DropLateManifest(Storage& storage, const CheckpointRecord& record);

// Returns OK if `restore`, the value of --restore, is "latest" or a round; else
// kInvalidArgument.
absl::Status CheckRestore(absl::string_view restore);

// Returns `error`, which is about the checkpoint of `round`. If there are other
// complete checkpoints, adds their rounds to the message: "; FLAG=ROUND takes
// another one: 40, 30".
absl::Status WithOthers(const absl::Status& error, int64_t round,
                        absl::string_view flag, Storage& storage);

}  // namespace nereus
