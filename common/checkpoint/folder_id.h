#pragma once

#include <string>
#include <utility>

#include "common/base/descriptor.h"
#include "common/base/status.h"

namespace nereus {

// Name of the file with the identity of a folder.
inline constexpr char kFolderIdFile[] = "nereus-folder-id";

// Returns the identity of a folder: 16 hexadecimal digits in its file
// kFolderIdFile, which the first caller makes. Processes that name one
// folder by different paths, or from different hosts, get the same identity;
// processes that name two folders by one path do not. Servers send the identity
// when they join, so that the coordinator refuses a server with another folder.
// A copy of a folder has the identity of the original.
//
// Errors: kUnavailable, the file cannot be made or read; kDataLoss, the file
// has other content.
absl::StatusOr<std::string> FolderId(const std::string& folder);

// Exclusive hold of a folder by one process, until this is destroyed or the
// process ends. Two coordinators of different jobs in one folder would remove
// each other's checkpoints. On a file system without locks, Take succeeds for
// every process.
class FolderLock {
 public:
  // Takes the lock. Errors: kFailedPrecondition, another process or another
  // FolderLock has the lock; kUnavailable, the file of the folder's identity
  // cannot be made or opened.
  static absl::StatusOr<FolderLock> Take(const std::string& folder);

 private:
  explicit FolderLock(Descriptor file) : file_(std::move(file)) {}

  Descriptor file_;  // Open file that holds the lock.
};

}  // namespace nereus
