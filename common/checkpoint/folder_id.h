#pragma once

#include <string>
#include <utility>

#include "common/base/descriptor.h"
#include "common/base/status.h"

namespace nereus {

// Name of the file with the identity of a folder.
inline constexpr char kFolderIdFile[] = "nereus-folder-id";

// Returns the identity of a folder: 16 hexadecimal digits, which are in the
// folder's file kFolderIdFile. If there is no such file, makes it. If two
// processes share a folder, they get the same identity, whatever paths they
// use. (If the file system has neither links nor renames that do not replace,
// processes that make the file at the same time may get different identities.)
// If they have different folders, on two hosts for example, they get different
// identities, even if the paths are equal. Servers send the identity when they
// join, so that the coordinator can refuse a server with another folder. A copy
// of a folder has the identity of the original.
//
// Errors: kUnavailable, the file cannot be made or read; kDataLoss, the file
// has no identity in it.
absl::StatusOr<std::string> FolderId(const std::string& folder);

// Lock on a folder. The coordinator of one job has it, until the FolderLock is
// destroyed or the process ends. If the coordinators of two jobs used one
// folder, they would remove each other's checkpoints. If the file system
// refuses to lock files, Take succeeds for every process.
class FolderLock {
 public:
  // Takes the lock. Errors: kFailedPrecondition, another process or another
  // FolderLock of this process has the lock; kUnavailable, the file
  // kFolderIdFile cannot be made or opened.
  static absl::StatusOr<FolderLock> Take(const std::string& folder);

 private:
  explicit FolderLock(Descriptor file) : file_(std::move(file)) {}

  Descriptor file_;  // Open file that holds the lock.
};

}  // namespace nereus
