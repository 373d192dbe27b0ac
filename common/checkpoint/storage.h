#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Returns a name from a file in a form for error messages: the first 300 bytes,
// escaped and in quotes. `name` may have any length and any bytes.
inline std::string ShownName(absl::string_view name) {
  constexpr size_t kShownMax = 300;
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kShownMax)), "\"",
                      name.size() > kShownMax ? "..." : "");
}

// Largest length in bytes of a name in a storage, such as
// "round-000000000120/manifest.json", and of one part between "/".
inline constexpr int64_t kStorageNameBytesMax = 1024;
inline constexpr int64_t kStoragePartBytesMax = 200;

// End of the names of files that are being written.
inline constexpr absl::string_view kTemporarySuffix = ".tmp";

// Returns OK if `part` is allowed as the name of one file or folder: it has
// only letters, digits and "._-", is not "." or "..", and has 1 to
// kStoragePartBytesMax bytes. So no name from a manifest can lead out of the
// storage. Errors: kInvalidArgument; the message has the start of the name,
// escaped.
absl::Status ValidateStoragePart(absl::string_view part);

// Returns OK if `name` is allowed as the name of a file or folder in a storage:
// parts that ValidateStoragePart allows, with "/" between them, and at most
// kStorageNameBytesMax bytes. Errors: kInvalidArgument.
absl::Status ValidateStorageName(absl::string_view name);

// Entry of a folder: a file or a folder in it.
struct StorageEntry {
  // Name of the file or folder, without the folders above it.
  std::string name;
  bool is_folder = false;  // True for a folder.
  int64_t bytes = 0;       // Length of a file; 0 for a folder.

  bool operator==(const StorageEntry&) const = default;
};

// Place where checkpoints are kept: files in folders below a root. A name is
// relative to the root, and must be one that ValidateStorageName allows. A
// process writes a file as a whole. FileStorage keeps the files on a disk;
// tests keep them in memory, and inject faults.
//
// All calls block for as long as a disk takes. So a thread that drives a
// machine must not make them, except to load a checkpoint. An implementation
// says whether several threads may call it at a time. Nothing is cached: when
// one process has written a file, any process with the same storage can read
// it.
//
// Errors of all calls: kInvalidArgument, a name is not allowed; kNotFound, the
// file or folder does not exist; kPermissionDenied, the process has no right to
// do this; kResourceExhausted, there is no space left; kFailedPrecondition,
// there is a file where a folder should be, or a folder where a file should be;
// kUnavailable, any other failure of the disk: try again. Messages name the
// path.
class Storage {
 public:
  virtual ~Storage() = default;

  // Writes file `name`, which has the bytes of `pieces`, one after the other.
  // Makes the folders above the file. Replaces the file if it exists. When
  // WriteFile has returned OK, the file survives a crash of the computer.
  // During the call, and after an error, a reader finds the whole new file or
  // the whole old file; if there was no old file, it may find none. After a
  // crash, a file with kTemporarySuffix may be left.
  //
  // `pieces`: host memory, read before the call returns, not kept.
  virtual absl::Status WriteFile(const std::string& name,
                                 absl::Span<const Buffer> pieces) = 0;

  // Writes file `name` as WriteFile does, but never replaces a file, even if
  // another process writes one with this name at the same time. Errors: also
  // kAlreadyExists, there is a file with this name, which stays as it is. It
  // may be the one that this call has written: some network file systems do the
  // work twice.
  virtual absl::Status WriteNewFile(const std::string& name,
                                    absl::Span<const Buffer> pieces) = 0;

  // Makes the next reads of a file come from the disk, as far as the system
  // allows this, and not from its memory. Does nothing if there is no such
  // file.
  virtual void ForgetCached(const std::string& name) = 0;

  // Reads bytes [offset, offset + into.bytes()) of a file to `into`, which is
  // host memory. After an error, the bytes of `into` are undefined. Errors:
  // also kOutOfRange, the file ends before the last of these bytes.
  virtual absl::Status ReadFile(const std::string& name, int64_t offset,
                                const Buffer& into) = 0;

  // Returns the length of a file in bytes.
  virtual absl::StatusOr<int64_t> FileBytes(const std::string& name) = 0;

  // Returns the entries of a folder, in ascending order of their names. The
  // folder "" is the root. Leaves out entries that are neither file nor folder,
  // and entries with a name that ValidateStoragePart refuses.
  virtual absl::StatusOr<std::vector<StorageEntry>> List(
      const std::string& folder) = 0;

  // Removes one file. When RemoveFile has returned OK, the file stays removed
  // even after a crash.
  virtual absl::Status RemoveFile(const std::string& name) = 0;

  // Renames a folder of the root; both names have one part. After a crash the
  // folder has either the old or the new name. Errors: also
  // kFailedPrecondition, `to` exists and is a file, or is a folder that is not
  // empty.
  virtual absl::Status RenameFolder(const std::string& from,
                                    const std::string& to) = 0;

  // Removes a folder and everything in it, in any order. Removes links, and not
  // the files that they lead to. After an error or a crash, any part of the
  // folder may be left.
  virtual absl::Status RemoveTree(const std::string& folder) = 0;
};

}  // namespace nereus
