#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Limits of a name in a storage, and of one of its parts.
inline constexpr int64_t kStorageNameBytesMax = 1024;
inline constexpr int64_t kStoragePartBytesMax = 200;

// The end of the names of files that are not finished.
inline constexpr absl::string_view kTemporarySuffix = ".tmp";

// OK if `part` could be the name of one file or folder: letters, digits and
// "._-", not "." or "..", 1 to kStoragePartBytesMax bytes. Errors:
// kInvalidArgument, with the name as far as it can be shown.
absl::Status ValidateStoragePart(absl::string_view part);

// OK if `name` could name a file or folder of a storage: parts with "/" between
// them. Errors: kInvalidArgument.
absl::Status ValidateStorageName(absl::string_view name);

// What is in a folder.
struct StorageEntry {
  std::string name;  // One part.
  bool is_folder = false;
  int64_t bytes = 0;  // 0 for a folder.

  bool operator==(const StorageEntry&) const = default;
};

// Where checkpoints are kept: whole files, in folders, by names that
// ValidateStorageName allows, relative to a root.
//
// All calls block, for as long as a disk takes. An implementation says whether
// several threads may call it. Nothing is cached: what one process has written,
// another one that has the same storage reads.
//
// Errors of all calls: kInvalidArgument, a bad name; kNotFound, no such file or
// folder; kPermissionDenied; kResourceExhausted, no space left;
// kFailedPrecondition, a file where a folder should be or the reverse;
// kUnavailable, what else can go wrong with a disk. Messages name the path.
class Storage {
 public:
  virtual ~Storage() = default;

  // Makes file `name` of `pieces`, one after the other, and the folders that it
  // is in. Replaces a file of that name. Once OK is returned the file survives
  // a crash of the machine; at any moment before, a reader finds the old file,
  // no file, or the whole new one, and so after a failure. A file with
  // kTemporarySuffix may stay after a crash.
  //
  // `pieces`: host memory, read before it returns, not kept.
  virtual absl::Status WriteFile(const std::string& name,
                                 absl::Span<const Buffer> pieces) = 0;

  // Reads bytes [offset, offset + into.bytes()) of a file to `into`, host
  // memory, whose contents are undefined on failure. Errors: also kOutOfRange,
  // the file is shorter.
  virtual absl::Status ReadFile(const std::string& name, int64_t offset,
                                const Buffer& into) = 0;

  // The file's length in bytes.
  virtual absl::StatusOr<int64_t> FileBytes(const std::string& name) = 0;

  // What is in a folder, by name, ascending; "" is the root. What is neither
  // file nor folder, or has a name that ValidateStoragePart refuses, is left
  // out.
  virtual absl::StatusOr<std::vector<StorageEntry>> List(
      const std::string& folder) = 0;

  // Removes one file. Once OK is returned it does not come back after a crash.
  virtual absl::Status RemoveFile(const std::string& name) = 0;

  // Removes a folder and all that is in it, in any order; links are removed,
  // not followed. After a failure or a crash any part of it may be left.
  virtual absl::Status RemoveTree(const std::string& folder) = 0;
};

}  // namespace nereus
