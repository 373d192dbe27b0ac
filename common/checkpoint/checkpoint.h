#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/storage.h"

namespace nereus {

// Functions for checkpoints in a storage that all servers share. Each
// checkpoint is in a folder of its own (checkpoint_layout.h), which is named
// after the checkpoint's round. Servers write the files of their shards
// (shard_writer.h). When all servers have written their files, the coordinator
// writes the manifest, the description of the checkpoint. A checkpoint with a
// manifest is complete. The manifest is written last and removed first, so even
// after a crash, a checkpoint that has a manifest has all its files.
// checkpoint_reader.h reads the values.
//
// These functions keep no state. Each blocks for as long as the storage takes.
// Several threads may call them at a time if the storage is thread-safe. Errors
// of all functions: those of Storage; kDataLoss, a manifest exists but is
// damaged.

// Writes a manifest, which makes the checkpoint of `manifest.round` complete.
// Never replaces another manifest; returns OK if this one is on the disk
// already. Errors: also those of Manifest::Validate; kFailedPrecondition, a
// file is missing or has another length than in `manifest`; kAlreadyExists, the
// round has another manifest. These errors leave the storage unchanged. After
// an error of the storage, the checkpoint may be complete or not: the caller
// can find out by ReadManifest.
absl::Status WriteManifest(Storage& storage, const Manifest& manifest);

// Reads the manifest of a round's checkpoint. Errors: also kNotFound, there is
// no such manifest; kDataLoss, the manifest is torn, invalid or of another
// round; kUnimplemented, a version of Nereus with another format has written
// the manifest.
absl::StatusOr<Manifest> ReadManifest(Storage& storage, int64_t round);

// Folder of a checkpoint that cannot be used.
struct UnusableCheckpoint {
  int64_t round = 0;   // Round that the folder is named after.
  std::string folder;  // Name of the folder.
  // Reason: kNotFound if the checkpoint is unfinished; any other code if it is
  // damaged.
  absl::Status why;
};

// All checkpoints in a storage. In each vector the newest checkpoint comes
// first.
struct CheckpointList {
  std::vector<Manifest> complete;  // Manifests of the complete checkpoints.
  // Checkpoints without a manifest. Either servers are still writing the files,
  // or a crash has interrupted the writing or the removal of the checkpoint.
  std::vector<UnusableCheckpoint> unfinished;
  // Checkpoints that have a manifest, but this version cannot read it, or one
  // of the files is missing or has another length. Each of them was complete
  // once.
  std::vector<UnusableCheckpoint> damaged;

  // Returns the newest damaged checkpoint if it is newer than all complete
  // checkpoints; else null.
  const UnusableCheckpoint* NewestIfDamaged() const;
};

// Lists the checkpoints in a storage; the list is empty if the storage's root
// does not exist. A checkpoint counts as complete if its manifest is sound and
// each file has the length that the manifest states. ListCheckpoints does not
// read the files: VerifyCheckpoint does. A damaged checkpoint is an entry of
// the list, and not an error of this function.
absl::StatusOr<CheckpointList> ListCheckpoints(Storage& storage);

// Removes the checkpoint of a round, complete or not. Removes the manifest
// first. Returns OK if there is no such checkpoint.
absl::Status RemoveCheckpoint(Storage& storage, int64_t round);

// Renames the folder of a checkpoint, so that the job can write another
// checkpoint of the same round. Returns the new name:
// "set-aside-round-000000000120" or, if this name exists, the first one of
// "set-aside-round-000000000120-2", "...-3" and so on that does not exist.
// Errors: also kNotFound, the folder does not exist.
absl::StatusOr<std::string> SetAside(Storage& storage, int64_t round);

// Removes all complete checkpoints but the newest `count`. Also removes
// unfinished and damaged checkpoints that are older than the newest complete
// one. Keeps newer ones, because servers may still be writing them. Keeps
// checkpoints with a manifest of another format. If no checkpoint is complete,
// removes nothing. KeepLast does not read the files: each file of the newest
// checkpoint was read back when it was written (WriteShard). REQUIRES: count
// >= 1.
absl::Status KeepLast(Storage& storage, int count);

}  // namespace nereus
