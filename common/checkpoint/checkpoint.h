#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/storage.h"

namespace nereus {

// Checkpoints in a storage that all shards share, each in a folder
// (checkpoint_layout.h): shards write their files (shard_writer.h), and when
// all have, somebody writes the manifest, which makes the checkpoint complete.
// It is written last and removed first: a crash at any moment leaves complete
// checkpoints as they were, and one that looks complete is.
// checkpoint_reader.h reads the values.
//
// No function here keeps anything; each blocks for as long as the storage
// takes. Errors of all: those of Storage, and kDataLoss for files that are
// there but damaged.

// Makes the checkpoint of `manifest.round` complete. Errors: also
// kInvalidArgument, as of Manifest::Validate; kFailedPrecondition, a file that
// is not there or has another length: nothing is written. After an error of the
// storage the checkpoint may be complete all the same: ReadManifest tells.
absl::Status WriteManifest(Storage& storage, const Manifest& manifest);

// Errors: also kNotFound, no manifest for that round; kDataLoss, a torn one, or
// of another round; kUnimplemented, of another version.
absl::StatusOr<Manifest> ReadManifest(Storage& storage, int64_t round);

struct IncompleteCheckpoint {
  int64_t round = 0;
  std::string folder;
  absl::Status why;  // Not OK.
};

struct CheckpointList {
  std::vector<Manifest> complete;                // Newest first.
  std::vector<IncompleteCheckpoint> incomplete;  // Newest first.
};

// What is in the storage; nothing, if its root is not there. Complete: the
// manifest is sound, and the files that it names have the length that it says.
// Their contents are not read: VerifyCheckpoint does that.
absl::StatusOr<CheckpointList> ListCheckpoints(Storage& storage);

// Removes a round's checkpoint, complete or not, manifest first. OK if there is
// none.
absl::Status RemoveCheckpoint(Storage& storage, int64_t round);

// Removes complete checkpoints (ListCheckpoints) but the newest `count`, and
// incomplete ones that are older than the newest complete one; newer ones may
// be under way. Keeps everything if none is complete, and what another version
// has written. A caller who distrusts
// the disk verifies the newest first. REQUIRES: count >= 1.
absl::Status KeepLast(Storage& storage, int count);

}  // namespace nereus
