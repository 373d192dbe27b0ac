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
// (shard_writer.h). When all servers have written their files, the coordinator
// writes the manifest, which makes the checkpoint complete. The manifest is
// written last and removed first. So after a crash at any moment, a checkpoint
// that has a manifest has all its files. checkpoint_reader.h reads the values.
//
// These functions keep no state; each blocks for as long as the storage takes.
// Any thread, if the storage allows it. Errors of all functions: those of
// Storage; kDataLoss, a manifest exists but is damaged.

// Makes the checkpoint of `manifest.round` complete. Errors: also
// kInvalidArgument, as Manifest::Validate; kFailedPrecondition, a file is
// missing or has another length: nothing is written. After an error of the
// storage the checkpoint may be complete nevertheless: ReadManifest tells.
absl::Status WriteManifest(Storage& storage, const Manifest& manifest);

// Reads the manifest of a round. Errors: also kNotFound, the round has none;
// kDataLoss, the manifest is torn, invalid or of another round; kUnimplemented,
// a version of Nereus with another format wrote the manifest.
absl::StatusOr<Manifest> ReadManifest(Storage& storage, int64_t round);

// Folder of a checkpoint that cannot be used.
struct UnusableCheckpoint {
  int64_t round = 0;   // Round that the folder is named after.
  std::string folder;  // Name of the folder.
  // Reason: kNotFound, the checkpoint is unfinished; else it is damaged.
  absl::Status why;
};

// All checkpoints in a storage, each vector with the newest first.
struct CheckpointList {
  std::vector<Manifest> complete;
  // Checkpoints without a manifest. Servers may still write them, or a crash
  // has interrupted the write or a removal.
  std::vector<UnusableCheckpoint> unfinished;
  // Checkpoints with a manifest that cannot be read, or without one of their
  // files. Each was complete once, so values have been lost.
  std::vector<UnusableCheckpoint> damaged;

  // Returns the newest damaged checkpoint, if it is newer than all complete
  // ones; else null.
  const UnusableCheckpoint* NewestIfDamaged() const;
};

// Lists the checkpoints in a storage; none if its root does not exist. A
// checkpoint counts as complete if its manifest is sound and each file exists
// with the length that the manifest states. The contents of the files are not
// read: VerifyCheckpoint reads them. kDataLoss and kUnimplemented are in the
// list, and are not returned.
absl::StatusOr<CheckpointList> ListCheckpoints(Storage& storage);

// Removes a round's checkpoint, complete or not, manifest first. Returns OK if
// there is none.
absl::Status RemoveCheckpoint(Storage& storage, int64_t round);

// Renames the folder of a checkpoint, so that the job can write another
// checkpoint of the round. Returns the new name, "set-aside-round-000000000120"
// or, if that is taken, with "-2" or more behind it. Errors: also kNotFound,
// the folder does not exist.
absl::StatusOr<std::string> SetAside(Storage& storage, int64_t round);

// Removes all complete checkpoints but the newest `count`, and all others that
// are older than the newest complete one. Newer unfinished checkpoints may
// still be written, so they are kept. Keeps everything if no
// checkpoint is complete. Keeps checkpoints with a manifest of another format.
// A caller that distrusts the disk verifies the newest checkpoint first.
// REQUIRES: count >= 1.
absl::Status KeepLast(Storage& storage, int count);

}  // namespace nereus
