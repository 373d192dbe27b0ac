#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace nereus {

// Returns what tells a folder from any other: 16 hexadecimal digits in its file
// `nereus-folder-id`, which the first process that asks makes. Processes that
// name one folder by different paths, or from different hosts, get the same;
// those that name two folders by one path do not. A copy of a folder has the
// same.
//
// Errors: kUnavailable, the file can neither be made nor read; kDataLoss, it
// has something else.
absl::StatusOr<std::string> FolderId(const std::string& folder);

// A folder kept by one process alone, until this is destroyed or the process
// ends. Where the file system knows no locks, it keeps nobody out.
class FolderLock {
 public:
  // Errors: kFailedPrecondition, another process has it; kUnavailable, the file
  // of the folder's ID cannot be made or opened.
  static absl::StatusOr<FolderLock> Take(const std::string& folder);

  FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FolderLock& operator=(FolderLock&& other) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace nereus
