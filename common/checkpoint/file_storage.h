#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/descriptor.h"
#include "common/base/status.h"
#include "common/checkpoint/storage.h"

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

// Storage in a folder of a file system: on a local disk, or on a disk that all
// servers share.
//
// WriteFile writes a file under a temporary name, flushes it (fsync) and
// renames it. Then it flushes all folders above the file, up to the root. So
// even after a crash, the file exists as a whole or not at all. No file stays
// open between calls. Thread-safe. If two threads or processes write the same
// file at the same time, afterwards the file is that of one of them, as a
// whole.
class FileStorage : public Storage {
 public:
  // Opens the folder `root`, and makes this folder if it does not exist. The
  // folder above it must exist. Errors: those of Storage.
  static absl::StatusOr<std::unique_ptr<FileStorage>> Open(std::string root);

  // Path of the folder.
  const std::string& root() const { return root_; }

  // Implements Storage.
  absl::Status WriteFile(const std::string& name,
                         absl::Span<const Buffer> pieces) override;
  absl::Status WriteNewFile(const std::string& name,
                            absl::Span<const Buffer> pieces) override;
  void ForgetCached(const std::string& name) override;
  absl::Status ReadFile(const std::string& name, int64_t offset,
                        const Buffer& into) override;
  absl::StatusOr<int64_t> FileBytes(const std::string& name) override;
  absl::StatusOr<std::vector<StorageEntry>> List(
      const std::string& folder) override;
  absl::Status RemoveFile(const std::string& name) override;
  absl::Status RenameFolder(const std::string& from,
                            const std::string& to) override;
  absl::Status RemoveTree(const std::string& folder) override;

 private:
  explicit FileStorage(std::string root) : root_(std::move(root)) {}

  // Returns the path of a file or folder; "" is the root.
  std::string PathOf(const std::string& name) const;

  // Writes a file under a temporary name, and then calls `publish`, which gives
  // it its name.
  absl::Status WriteAndPublish(
      const std::string& name, absl::Span<const Buffer> pieces,
      absl::FunctionRef<absl::Status(const std::string& temporary,
                                     const std::string& path)>
          publish);

  // Makes those folders above `name`, below the root, that do not exist.
  // Errors: those of Storage.
  absl::Status MakeFolders(const std::string& name) const;
  // Flushes all folders above `name`, from the innermost folder to the root.
  absl::Status FlushFolders(const std::string& name) const;

  // Path of the root, without a "/" at the end.
  const std::string root_;
};

}  // namespace nereus
