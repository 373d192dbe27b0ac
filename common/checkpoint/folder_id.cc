#include "common/checkpoint/folder_id.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "common/base/identity.h"
#include "common/base/status.h"

namespace nereus {
namespace {

constexpr size_t kDigits = 16;

// Writes a new file. If the file cannot be written as a whole, removes it
// again.
absl::Status Write(const std::string& path, const std::string& id) {
  const Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644));
  if (!file.valid()) {
    return UnavailableError("cannot make ", path, ": ", strerror(errno));
  }
  errno = ENOSPC;  // If write() takes only some bytes, it does not set errno.
  const bool written = write(file.get(), id.data(), id.size()) ==
                           static_cast<ssize_t>(id.size()) &&
                       fsync(file.get()) == 0;
  if (written) return absl::OkStatus();
  const int error = errno;
  unlink(path.c_str());
  return UnavailableError("cannot write ", path, ": ", strerror(error));
}

// Returns the first bytes of a file, without spaces around them.
absl::StatusOr<std::string> Read(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(2 * kDigits, '\0');
  const ssize_t bytes =
      file.valid() ? read(file.get(), text.data(), text.size()) : -1;
  if (bytes < 0) {
    return UnavailableError("cannot read ", path, ": ", strerror(errno));
  }
  text.resize(bytes);
  return std::string(absl::StripAsciiWhitespace(text));
}

// Makes the file with a new identity, unless the file exists. Writes the file
// under another name first and then makes a link to it, so that the file is
// complete as soon as it exists. If two processes do this at the same time, the
// identity is that of the process that makes the link first.
absl::Status MakeUnlessThere(const std::string& path) {
  if (access(path.c_str(), F_OK) == 0) return absl::OkStatus();
  const std::string id =
      absl::StrCat(absl::Hex(DrawUniqueId(), absl::kZeroPad16));
  const std::string draft = absl::StrCat(path, ".", id);
  NEREUS_TRY(Write(draft, id));
  int result = link(draft.c_str(), path.c_str());
  if (result != 0 && errno != EEXIST) {
    // The file system has no links.
    result = renameat2(AT_FDCWD, draft.c_str(), AT_FDCWD, path.c_str(),
                       RENAME_NOREPLACE);
  }
  if (result != 0 && errno != EEXIST) {
    // Nor can it rename without replacing. If several processes do this at the
    // same time, the identity is that of the last process.
    result = rename(draft.c_str(), path.c_str());
  }
  const int error = errno;
  unlink(draft.c_str());
  if (result == 0 || error == EEXIST) return absl::OkStatus();
  return UnavailableError("cannot make ", path, ": ", strerror(error));
}

}  // namespace

absl::StatusOr<std::string> FolderId(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kFolderIdFile);
  NEREUS_TRY(MakeUnlessThere(path));
  const std::string id = NEREUS_TRY(Read(path));
  const bool is_id =
      id.size() == kDigits && absl::c_all_of(id, absl::ascii_isxdigit);
  if (is_id) return id;
  return DataLossError(path, " is not a folder's id: remove it");
}

absl::StatusOr<FolderLock> FolderLock::Take(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kFolderIdFile);
  NEREUS_TRY(MakeUnlessThere(path));
  // NFS locks only files that are open for writing.
  Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid() && (errno == EACCES || errno == EROFS)) {
    file = Descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }
  if (!file.valid()) {
    return UnavailableError("cannot open ", path, ": ", strerror(errno));
  }
  // After any other error, treats the file system as one without locks.
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return FailedPreconditionError("the coordinator of another job has ",
                                   folder, ": give each its own");
  }
  return FolderLock(std::move(file));
}

}  // namespace nereus
