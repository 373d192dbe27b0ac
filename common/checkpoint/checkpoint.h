#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/storage.h"

namespace nereus {

// Checkpoints in a storage that all servers share, each in a folder of its own
// (checkpoint_layout.h). Servers write the files of their shards
// (shard_writer.h). When all have, the coordinator writes the manifest, which
// makes the checkpoint complete. The manifest is written last and removed
// first: a crash at any moment leaves complete checkpoints as they were, and a
// checkpoint that looks complete is complete. checkpoint_reader.h reads the
// values.
//
// These functions keep no state; each blocks for as long as the storage takes.
// Any thread, if the storage allows it. Errors of all: those of Storage, and
// kDataLoss for files that exist but are damaged.

// Makes the checkpoint of `manifest.round` complete. Errors: also
// kInvalidArgument, as Manifest::Validate; kFailedPrecondition, a file is
// missing or has another length: nothing is written. After an error of the
// storage the checkpoint may be complete nevertheless: ReadManifest tells.
absl::Status WriteManifest(Storage& storage, const Manifest& manifest);

// Reads the manifest of a round. Errors: also kNotFound, the round has none;
// kDataLoss, it is torn or belongs to another round; kUnimplemented, another
// version of Nereus wrote it.
absl::StatusOr<Manifest> ReadManifest(Storage& storage, int64_t round);

// Folder of a checkpoint that cannot be used.
struct IncompleteCheckpoint {
  int64_t round = 0;   // Round that the folder is named after.
  std::string folder;  // Name of the folder.
  absl::Status why;    // Reason; never OK.
};

// All checkpoints in a storage.
struct CheckpointList {
  std::vector<Manifest> complete;                // Newest first.
  std::vector<IncompleteCheckpoint> incomplete;  // Newest first.
};

// Lists the checkpoints in a storage; none if its root does not exist. A
// checkpoint counts as complete if its manifest is sound and the files that it
// names have the length that it states. Their contents are not read:
// VerifyCheckpoint does that.
absl::StatusOr<CheckpointList> ListCheckpoints(Storage& storage);

// Removes a round's checkpoint, complete or not, manifest first. OK if there is
// none.
absl::Status RemoveCheckpoint(Storage& storage, int64_t round);

// Removes all complete checkpoints but the newest `count`, and incomplete ones
// that are older than the newest complete one; newer ones may still be written.
// Keeps everything if no checkpoint is complete, and keeps folders of other
// versions. A caller that distrusts the disk verifies the newest checkpoint
// before. REQUIRES: count >= 1.
absl::Status KeepLast(Storage& storage, int count);

}  // namespace nereus
