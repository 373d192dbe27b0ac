#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/checkpoint/storage.h"

namespace nereus {

// A folder of a file system: a local disk, or one that all servers share.
//
// A file is written under a temporary name of its own, flushed (fsync), renamed
// and its folder flushed, so that it is there as a whole or not at all. Keeps
// no file open between calls. Thread-safe; two that write the same file at the
// same time leave one of both.
class FileStorage : public Storage {
 public:
  // Opens the folder `root`, and makes it if it is not there; the folder that
  // it is in must be. Errors: as of all calls, with the path.
  static absl::StatusOr<std::unique_ptr<FileStorage>> Open(std::string root);

  const std::string& root() const { return root_; }

  absl::Status WriteFile(const std::string& name,
                         absl::Span<const Buffer> pieces) override;
  absl::Status ReadFile(const std::string& name, int64_t offset,
                        const Buffer& into) override;
  absl::StatusOr<int64_t> FileBytes(const std::string& name) override;
  absl::StatusOr<std::vector<StorageEntry>> List(
      const std::string& folder) override;
  absl::Status RemoveFile(const std::string& name) override;
  absl::Status RemoveTree(const std::string& folder) override;

 private:
  explicit FileStorage(std::string root) : root_(std::move(root)) {}

  std::string PathOf(const std::string& name) const;

  // Makes all folders that `name` is in. Errors: as of all calls.
  absl::Status MakeFolders(const std::string& name) const;
  // Flushes all of them, from the innermost to the root.
  absl::Status FlushFolders(const std::string& name) const;

  const std::string root_;  // Without a "/" at the end.
};

}  // namespace nereus
