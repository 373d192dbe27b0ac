// Storage on a file system. Read WriteFile first. It makes a temporary file,
// writes it, flushes it (fsync), renames it, and flushes each folder above it.
// Without the first fsync, after a crash the file could have its name but not
// its data. Without the flushes of the folders, the file could lack its name
// after a crash, although WriteFile had returned OK. ErrorOf turns each error
// of the operating system into a Status with the path.

#include "common/checkpoint/file_storage.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "common/base/descriptor.h"
#include "common/base/identity.h"
#include "common/base/status.h"

namespace nereus {

namespace {

// Largest number of bytes of one call of read or write. Linux takes at most 2
// GiB in a call, so a longer buffer needs several calls.
constexpr int64_t kCallBytesMax = int64_t{1} << 30;

// Returns the Status for an errno, with one of the codes in storage.h.
absl::Status ErrorOf(int error, absl::string_view action,
                     absl::string_view path) {
  const std::string text = absl::StrCat("cannot ", action, " ", path, ": ",
                                        std::generic_category().message(error));
  switch (error) {
    case ENOENT:
      return NotFoundError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return PermissionDeniedError(text);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ResourceExhaustedError(text);
    case ENOTDIR:
    case EISDIR:
    case EEXIST:
    case ENOTEMPTY:
      return FailedPreconditionError(text);
    default:
      return UnavailableError(text);
  }
}

// Opens a file or folder; tries again if a signal interrupts the call.
int OpenRetrying(const std::string& path, int flags) {
  int fd;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// Writes all bytes of a buffer. One call of write() can take fewer bytes, so
// this calls it in a loop.
absl::Status WriteAll(int fd, const Buffer& piece, const std::string& path) {
  int64_t done = 0;
  while (done < piece.bytes()) {
    const ssize_t written = write(
        fd, piece.data() + done, std::min(piece.bytes() - done, kCallBytesMax));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrorOf(errno, "write", path);
    if (written == 0) {
      return UnavailableError("cannot write ", path, ": ", done, " of ",
                              piece.bytes(), " bytes were taken, then none");
    }
    done += written;
  }
  return absl::OkStatus();
}

// Waits until the disk has all bytes of a file, or all names in a folder. `fd`:
// the open file or folder.
absl::Status Flush(int fd, const std::string& path) {
  if (fsync(fd) == 0) return absl::OkStatus();
  return ErrorOf(errno, "flush", path);
}

// Waits until the disk has all names in a folder. The contents of the files may
// not be on the disk yet.
absl::Status FlushFolder(const std::string& path) {
  const Descriptor folder(OpenRetrying(path, O_RDONLY | O_DIRECTORY));
  if (!folder.valid()) return ErrorOf(errno, "open", path);
  return Flush(folder.get(), path);
}

// Creates a file that no process has, and returns it open. Sets `temporary` to
// its path. Its mode is that of any new file, by the process's umask: servers
// of other users may have to read it (mkostemps would make it unreadable).
int CreateTemporary(const std::string& path, std::string& temporary) {
  int fd;
  do {
    temporary =
        absl::StrCat(path, ".", absl::Hex(DrawUniqueId(), absl::kZeroPad16),
                     kTemporarySuffix);
    fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd < 0 && (errno == EINTR || errno == EEXIST));
  return fd;
}

// Writes, flushes and closes a new file. `fd` is the open file, which this
// function closes in any case.
absl::Status WriteAndFlush(int fd, absl::Span<const Buffer> pieces,
                           const std::string& path) {
  Descriptor file(fd);
  for (const Buffer& piece : pieces) {
    NEREUS_TRY(WriteAll(fd, piece, path));
  }
  NEREUS_TRY(Flush(fd, path));
  // Some file systems report only here that a write has failed.
  if (close(file.Release()) != 0) return ErrorOf(errno, "close", path);
  return absl::OkStatus();
}

// True if a file system refuses a call with this errno because it does not have
// the call.
bool IsUnsupported(int error) {
  return error == EPERM || error == ENOTSUP || error == EOPNOTSUPP ||
         error == ENOSYS || error == EINVAL || error == EMLINK;
}

// Gives a temporary file its name. Errors: also kAlreadyExists, there is a file
// with this name. link() decides this in one step, on all file systems that
// have hard links, NFS too. Some others (FAT, some of FUSE) have renameat2().
// If a file system has neither, a file that another process gives the name at
// the same moment is replaced.
absl::Status LinkNew(const std::string& temporary, const std::string& path) {
  const auto exists = [&] { return AlreadyExistsError(path, " exists"); };
  if (link(temporary.c_str(), path.c_str()) == 0) {
    unlink(temporary.c_str());
    return absl::OkStatus();
  }
  if (errno == EEXIST) return exists();
  if (!IsUnsupported(errno)) return ErrorOf(errno, "link to", path);
  if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(),
                RENAME_NOREPLACE) == 0) {
    return absl::OkStatus();
  }
  if (errno == EEXIST) return exists();
  if (!IsUnsupported(errno)) return ErrorOf(errno, "rename to", path);
  if (access(path.c_str(), F_OK) == 0) return exists();
  if (rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return ErrorOf(errno, "rename to", path);
}

// Returns the folder above `name`; "" is the root.
std::string FolderOf(absl::string_view name) {
  const size_t slash = name.rfind('/');
  return std::string(
      name.substr(0, slash == absl::string_view::npos ? 0 : slash));
}

// Returns the path of the folder above the folder `path`. `path` may be
// relative.
std::string FolderAbove(const std::string& path) {
  const std::string above = std::filesystem::path(path).parent_path();
  return above.empty() ? "." : above;
}

// Makes one folder, if it does not exist.
absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0) return absl::OkStatus();
  const int error = errno;
  std::error_code ignored;
  // If the folder exists, some file systems report another error than EEXIST.
  if (std::filesystem::is_directory(path, ignored)) return absl::OkStatus();
  return ErrorOf(error, "make the folder", path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileStorage>> FileStorage::Open(
    std::string root) {
  if (root.empty()) {
    return InvalidArgumentError("a storage's folder has an empty name");
  }
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  std::error_code ignored;
  const bool is_new = !std::filesystem::exists(root, ignored);
  NEREUS_TRY(MakeFolder(root));
  if (is_new) NEREUS_TRY(FlushFolder(FolderAbove(root)));
  return std::unique_ptr<FileStorage>(new FileStorage(std::move(root)));
}

std::string FileStorage::PathOf(const std::string& name) const {
  return name.empty() ? root_ : absl::StrCat(root_, "/", name);
}

absl::Status FileStorage::MakeFolders(const std::string& name) const {
  for (size_t slash = name.find('/'); slash != std::string::npos;
       slash = name.find('/', slash + 1)) {
    NEREUS_TRY(MakeFolder(PathOf(name.substr(0, slash))));
  }
  return absl::OkStatus();
}

absl::Status FileStorage::FlushFolders(const std::string& name) const {
  std::string folder = name;
  do {
    folder = FolderOf(folder);
    NEREUS_TRY(FlushFolder(PathOf(folder)));
  } while (!folder.empty());
  return absl::OkStatus();
}

absl::Status FileStorage::WriteAndPublish(
    const std::string& name, absl::Span<const Buffer> pieces,
    absl::FunctionRef<absl::Status(const std::string&, const std::string&)>
        publish) {
  NEREUS_TRY(ValidateStorageName(name));
  NEREUS_TRY(MakeFolders(name));
  const std::string path = PathOf(name);
  std::string temporary;
  const int fd = CreateTemporary(path, temporary);
  if (fd < 0) return ErrorOf(errno, "create", temporary);
  absl::Status status = WriteAndFlush(fd, pieces, temporary);
  if (status.ok()) status = publish(temporary, path);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return FlushFolders(name);
}

absl::Status FileStorage::WriteFile(const std::string& name,
                                    absl::Span<const Buffer> pieces) {
  return WriteAndPublish(
      name, pieces, [](const std::string& temporary, const std::string& path) {
        if (rename(temporary.c_str(), path.c_str()) == 0) {
          return absl::OkStatus();
        }
        return ErrorOf(errno, "rename to", path);
      });
}

absl::Status FileStorage::WriteNewFile(const std::string& name,
                                       absl::Span<const Buffer> pieces) {
  return WriteAndPublish(name, pieces, LinkNew);
}

// The pages are clean since the fsync of the writer, so the system can drop
// them. File systems without pages ignore the call.
void FileStorage::ForgetCached(const std::string& name) {
  if (!ValidateStorageName(name).ok()) return;
  const Descriptor file(OpenRetrying(PathOf(name), O_RDONLY));
  if (file.valid()) {
    posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

absl::Status FileStorage::ReadFile(const std::string& name, int64_t offset,
                                   const Buffer& into) {
  NEREUS_TRY(ValidateStorageName(name));
  const std::string path = PathOf(name);
  const Descriptor file(OpenRetrying(path, O_RDONLY));
  if (!file.valid()) return ErrorOf(errno, "open", path);
  int64_t done = 0;
  while (done < into.bytes()) {
    const ssize_t got =
        pread(file.get(), into.data() + done,
              std::min(into.bytes() - done, kCallBytesMax), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrorOf(errno, "read", path);
    if (got == 0) {
      return OutOfRangeError(path, " ends at byte ", offset + done,
                             ", before byte ", offset + into.bytes(),
                             ", up to which it is read");
    }
    done += got;
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FileStorage::FileBytes(const std::string& name) {
  NEREUS_TRY(ValidateStorageName(name));
  const std::string path = PathOf(name);
  struct stat information;
  if (stat(path.c_str(), &information) != 0) {
    return ErrorOf(errno, "look at", path);
  }
  if (!S_ISREG(information.st_mode)) {
    return FailedPreconditionError(path, " is not a regular file");
  }
  return static_cast<int64_t>(information.st_size);
}

absl::StatusOr<std::vector<StorageEntry>> FileStorage::List(
    const std::string& folder) {
  if (!folder.empty()) NEREUS_TRY(ValidateStorageName(folder));
  const std::string path = PathOf(folder);
  std::error_code error;
  std::filesystem::directory_iterator it(path, error);
  std::vector<StorageEntry> entries;
  for (; !error && it != std::filesystem::directory_iterator();
       it.increment(error)) {
    std::string name = it->path().filename().string();
    if (!ValidateStoragePart(name).ok()) continue;
    struct stat information;
    if (stat(it->path().c_str(), &information) != 0) {
      if (errno == ENOENT) continue;  // The file is gone by now.
      // A list without the entry would hide a checkpoint.
      return ErrorOf(errno, "look at", it->path().string());
    }
    if (S_ISDIR(information.st_mode)) {
      entries.push_back({std::move(name), true, 0});
    } else if (S_ISREG(information.st_mode)) {
      entries.push_back({std::move(name), false, information.st_size});
    }
  }
  if (error) return ErrorOf(error.value(), "list", path);
  absl::c_sort(entries,
               [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

absl::Status FileStorage::RemoveFile(const std::string& name) {
  NEREUS_TRY(ValidateStorageName(name));
  const std::string path = PathOf(name);
  if (unlink(path.c_str()) != 0) return ErrorOf(errno, "remove", path);
  return FlushFolder(PathOf(FolderOf(name)));
}

absl::Status FileStorage::RenameFolder(const std::string& from,
                                       const std::string& to) {
  NEREUS_TRY(ValidateStoragePart(from));
  NEREUS_TRY(ValidateStoragePart(to));
  const std::string path = PathOf(from);
  struct stat information;
  if (lstat(path.c_str(), &information) != 0) {
    return ErrorOf(errno, "look at", path);
  }
  if (!S_ISDIR(information.st_mode)) return ErrorOf(ENOTDIR, "rename", path);
  if (rename(path.c_str(), PathOf(to).c_str()) != 0) {
    return ErrorOf(errno, "rename", absl::StrCat(path, " to ", to));
  }
  return FlushFolder(root_);
}

absl::Status FileStorage::RemoveTree(const std::string& folder) {
  NEREUS_TRY(ValidateStorageName(folder));
  const std::string path = PathOf(folder);
  struct stat information;
  if (lstat(path.c_str(), &information) != 0) {
    return ErrorOf(errno, "look at", path);
  }
  if (S_ISREG(information.st_mode)) return ErrorOf(ENOTDIR, "remove", path);
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return ErrorOf(error.value(), "remove", path);
  return FlushFolder(PathOf(FolderOf(folder)));
}

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
