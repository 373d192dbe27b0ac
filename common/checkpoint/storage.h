#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Limits of a name in a storage, and of one part of it.
inline constexpr int64_t kStorageNameBytesMax = 1024;
inline constexpr int64_t kStoragePartBytesMax = 200;

// End of the names of unfinished files.
inline constexpr absl::string_view kTemporarySuffix = ".tmp";

// Returns OK if `part` may be the name of one file or folder: letters, digits
// and "._-", not "." or "..", 1 to kStoragePartBytesMax bytes. So no name from
// a manifest leads out of the storage. Errors: kInvalidArgument, with the name,
// escaped and cut.
absl::Status ValidateStoragePart(absl::string_view part);

// Returns OK if `name` may name a file or folder of a storage: parts with "/"
// between them. Errors: kInvalidArgument.
absl::Status ValidateStorageName(absl::string_view name);

// File or folder in a folder.
struct StorageEntry {
  // Name of the file or folder, without the folders above it.
  std::string name;
  bool is_folder = false;  // True for a folder.
  int64_t bytes = 0;       // Length of a file; 0 for a folder.

  bool operator==(const StorageEntry&) const = default;
};

// Place where checkpoints are kept: whole files, in folders, by names that
// ValidateStorageName allows, relative to a root. FileStorage implements it on
// disks; tests implement it in memory, with faults.
//
// All calls block for as long as a disk takes, so no driver thread may make
// them. An implementation says whether several threads may call it. Nothing is
// cached: a file that one process has written is read by another process that
// has the same storage.
//
// Errors of all calls: kInvalidArgument, a bad name; kNotFound, no such file or
// folder; kPermissionDenied; kResourceExhausted, no space left;
// kFailedPrecondition, a file where a folder should be or the reverse;
// kUnavailable, any other failure of the disk: try again. Messages name the
// path.
class Storage {
 public:
  virtual ~Storage() = default;

  // Makes file `name` of `pieces`, one after the other, and the folders above
  // it. Replaces a file of that name. Once OK is returned the file survives a
  // crash of the machine. At any moment before, and after a failure, a reader
  // finds the old file (or none, if there was none) or the whole new file. A
  // file with kTemporarySuffix may stay after a crash.
  //
  // `pieces`: host memory, read before the call returns, not kept.
  virtual absl::Status WriteFile(const std::string& name,
                                 absl::Span<const Buffer> pieces) = 0;

  // Reads bytes [offset, offset + into.bytes()) of a file to `into`, host
  // memory; its contents are undefined on failure. Errors: also kOutOfRange,
  // the file is shorter.
  virtual absl::Status ReadFile(const std::string& name, int64_t offset,
                                const Buffer& into) = 0;

  // Returns the length of a file in bytes.
  virtual absl::StatusOr<int64_t> FileBytes(const std::string& name) = 0;

  // Lists a folder, by name, ascending; "" is the root. Entries that are
  // neither file nor folder, or have a name that ValidateStoragePart refuses,
  // are left out.
  virtual absl::StatusOr<std::vector<StorageEntry>> List(
      const std::string& folder) = 0;

  // Removes one file. Once OK is returned, the file does not come back after a
  // crash.
  virtual absl::Status RemoveFile(const std::string& name) = 0;

  // Renames a folder in the root. After a crash the folder has one of both
  // names. Errors: also kFailedPrecondition, `to` is a file or a folder that is
  // not empty.
  virtual absl::Status RenameFolder(const std::string& from,
                                    const std::string& to) = 0;

  // Removes a folder and everything in it, in any order; links are removed, not
  // followed. After a failure or a crash any part of it may be left.
  virtual absl::Status RemoveTree(const std::string& folder) = 0;
};

}  // namespace nereus
