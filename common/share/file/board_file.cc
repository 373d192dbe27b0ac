#include "common/share/file/board_file.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/clock.h"

namespace nereus {
namespace {

// First of the bytes of the file that processes lock, one for each slot. They
// lie behind the end of the file.
constexpr off_t kLifeBytes = 1 << 20;

std::string SystemError() { return std::strerror(errno); }

// Descriptors with locks. A child that this process forks closes them, because
// the kernel frees a lock only when all copies of its descriptor are closed.
class LockDescriptors {
 public:
  static LockDescriptors& All() {
    static LockDescriptors* const all = new LockDescriptors();
    return *all;
  }
  // Opens a file. No child that is forked meanwhile has the descriptor.
  Descriptor Open(const std::string& path, int flags) {
    const std::lock_guard lock(mu_);
    Descriptor file(open(path.c_str(), flags));
    if (file.valid()) fds_.push_back(file.get());
    return file;
  }
  void Close(Descriptor& file) {
    const std::lock_guard lock(mu_);
    fds_.erase(std::remove(fds_.begin(), fds_.end(), file.get()), fds_.end());
    file.Close();
  }

 private:
  LockDescriptors() {
    pthread_atfork([] { All().mu_.lock(); }, [] { All().mu_.unlock(); },
                   [] {
                     for (const int fd : All().fds_) close(fd);
                     All().fds_.clear();
                     All().mu_.unlock();
                   });
  }

  std::mutex mu_;
  std::vector<int> fds_;
};

// True if processes of one machine see each other's writes to a mapped file of
// this file system, and its locks.
bool IsLocal(decltype(statfs::f_type) type) {
  constexpr uint32_t kXfs = 0x58465342;
  constexpr uint32_t kZfs = 0x2fc12fc1;
  constexpr uint32_t kBcachefs = 0xca451a4e;
  switch (static_cast<uint32_t>(type)) {
    case TMPFS_MAGIC:
    case RAMFS_MAGIC:
    case EXT4_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case F2FS_SUPER_MAGIC:
    case OVERLAYFS_SUPER_MAGIC:
    case kXfs:
    case kZfs:
    case kBcachefs:
      return true;
    default:
      return false;
  }
}

absl::Status CheckFolder(const std::string& folder, bool allows_group) {
  if (folder.empty() || folder.front() != '/') {
    return InvalidArgumentError("the folder to share a device is \"", folder,
                                "\", must be an absolute path");
  }
  struct stat info = {};
  if (lstat(folder.c_str(), &info) != 0) {
    return InvalidArgumentError("the folder ", folder,
                                " to share a device: ", SystemError());
  }
  if (!S_ISDIR(info.st_mode)) {
    return InvalidArgumentError(
        folder, " is no folder",
        S_ISLNK(info.st_mode) ? ", but a symbolic link: name its target" : "");
  }
  const unsigned mode = info.st_mode & 07777;
  if (!allows_group && info.st_uid != geteuid()) {
    return InvalidArgumentError("the folder ", folder, " belongs to user ",
                                info.st_uid, ", must belong to user ",
                                geteuid(), ", this process's");
  }
  const unsigned wanted = allows_group ? 0770 : 0700;
  if ((mode & 0777) != wanted) {
    return InvalidArgumentError(absl::StrFormat(
        "the folder %s has mode %04o, must have %04o: %s", folder, mode, wanted,
        allows_group ? "only members of its group may share the device"
                     : "only its user may share the device"));
  }
  struct statfs system = {};
  if (statfs(folder.c_str(), &system) != 0) {
    return UnavailableError(folder, ": ", SystemError());
  }
  if (!IsLocal(system.f_type)) {
    return InvalidArgumentError(absl::StrFormat(
        "the folder %s is on a file system of type %#x, must be on a local "
        "disk or on tmpfs, such as /dev/shm",
        folder, static_cast<uint64_t>(system.f_type)));
  }
  return absl::OkStatus();
}

// Makes DIR/board, unless another process is quicker. The file appears whole.
absl::Status Make(const std::string& folder, const BoardFile::Options& options,
                  const std::string& path) {
  std::string draft = absl::StrCat(folder, "/.board.XXXXXX");
  const Descriptor file(mkostemp(draft.data(), O_CLOEXEC));
  struct stat parent = {};
  if (!file.valid() || stat(folder.c_str(), &parent) != 0) {
    return UnavailableError("cannot make ", draft, ": ", SystemError());
  }
  // The board belongs to the group of its folder, whatever that of this process
  // and its umask are.
  const bool made =
      !options.allows_group || (fchown(file.get(), -1, parent.st_gid) == 0 &&
                                fchmod(file.get(), 0660) == 0);
  if (made) {
    errno = posix_fallocate(file.get(), 0, sizeof(TurnBoardMemory));
  }
  void* const memory =
      made && errno == 0
          ? mmap(nullptr, sizeof(TurnBoardMemory), PROT_READ | PROT_WRITE,
                 MAP_SHARED, file.get(), 0)
          : MAP_FAILED;
  if (memory == MAP_FAILED) {
    const std::string why = SystemError();
    unlink(draft.c_str());
    return UnavailableError("cannot make ", draft, ": ", why);
  }
  TurnBoard::Format(*static_cast<TurnBoardMemory*>(memory),
                    options.memory_bytes);
  munmap(memory, sizeof(TurnBoardMemory));
  const bool linked = link(draft.c_str(), path.c_str()) == 0 || errno == EEXIST;
  const std::string why = SystemError();
  unlink(draft.c_str());
  if (linked) return absl::OkStatus();
  return UnavailableError("cannot make ", path, ": ", why);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BoardFile>> BoardFile::Open(
    const Options& options) {
  // A folder of a group is made by its administrator.
  if (!options.allows_group && !options.folder.empty() &&
      options.folder.front() == '/' &&
      mkdir(options.folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return InvalidArgumentError("cannot make the folder ", options.folder,
                                " to share a device: ", SystemError());
  }
  NEREUS_TRY(CheckFolder(options.folder, options.allows_group));
  std::unique_ptr<BoardFile> file(new BoardFile());
  absl::Status mapped = file->Map(options.folder, /*writes=*/true);
  if (absl::IsNotFound(mapped)) {
    NEREUS_TRY(Make(options.folder, options, file->path_));
    mapped = file->Map(options.folder, /*writes=*/true);
  }
  NEREUS_TRY(mapped);
  if (options.memory_bytes > 0) {
    int64_t unknown = 0;
    file->memory_->memory_bytes.compare_exchange_strong(unknown,
                                                        options.memory_bytes);
  }
  NEREUS_TRY(file->Claim());
  return file;
}

absl::StatusOr<std::unique_ptr<BoardFile>> BoardFile::OpenToRead(
    const std::string& folder) {
  std::unique_ptr<BoardFile> file(new BoardFile());
  NEREUS_TRY(file->Map(folder, /*writes=*/false));
  BoardFile* const self = file.get();
  file->board_ = std::make_unique<TurnBoard>(
      file->memory_, /*own=*/-1,
      TurnBoard::Events{[self](int slot) { return self->IsAlive(slot); },
                        [] {}});
  return file;
}

absl::Status BoardFile::Map(const std::string& folder, bool writes) {
  path_ = absl::StrCat(folder, "/board");
  writes_ = writes;
  const int flags = (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW;
  locks_ = LockDescriptors::All().Open(path_, flags);
  const Descriptor mapped(open(path_.c_str(), flags));
  if (!locks_.valid() || !mapped.valid()) {
    if (errno == ENOENT) return NotFoundError("there is no ", path_);
    return UnavailableError("cannot open ", path_, ": ", SystemError());
  }
  struct stat info = {};
  if (fstat(mapped.get(), &info) != 0) {
    return UnavailableError(path_, ": ", SystemError());
  }
  if (!S_ISREG(info.st_mode) ||
      info.st_size != static_cast<off_t>(sizeof(TurnBoardMemory))) {
    return FailedPreconditionError(
        path_, " is no board of this version: it has ", info.st_size,
        " bytes, must have ", sizeof(TurnBoardMemory),
        ". Remove it while no job uses it");
  }
  void* const memory = mmap(nullptr, sizeof(TurnBoardMemory),
                            writes ? PROT_READ | PROT_WRITE : PROT_READ,
                            MAP_SHARED, mapped.get(), 0);
  if (memory == MAP_FAILED) {
    return UnavailableError("cannot map ", path_, ": ", SystemError());
  }
  memory_ = static_cast<TurnBoardMemory*>(memory);
  const uint64_t magic = memory_->magic.load();
  if (magic == TurnBoardMemory::kMagic) return absl::OkStatus();
  return FailedPreconditionError(absl::StrFormat(
      "%s begins with %#x, must begin with %#x: it is damaged, or of another "
      "version. Remove it while no job uses it",
      path_, magic, TurnBoardMemory::kMagic));
}

absl::Status BoardFile::Claim() {
  struct flock life = {};
  life.l_type = F_WRLCK;
  life.l_whence = SEEK_SET;
  life.l_len = 1;
  for (int slot = 0; slot < kTurnSlots; ++slot) {
    life.l_start = kLifeBytes + slot;
    if (fcntl(locks_.get(), F_OFD_SETLK, &life) == 0) {
      board_ = std::make_unique<TurnBoard>(
          memory_, slot,
          TurnBoard::Events{[this](int other) { return IsAlive(other); },
                            [this] {
                              syscall(SYS_futex, &memory_->changes, FUTEX_WAKE,
                                      INT32_MAX, nullptr, nullptr, 0);
                            }});
      return absl::OkStatus();
    }
    if (errno != EAGAIN && errno != EACCES) {
      return UnavailableError("cannot lock ", path_, ": ", SystemError());
    }
  }
  return ResourceExhaustedError(path_, " is full: ", kTurnSlots,
                                " processes share the device");
}

bool BoardFile::IsAlive(int slot) const {
  struct flock life = {};
  life.l_type = F_WRLCK;
  life.l_whence = SEEK_SET;
  life.l_start = kLifeBytes + slot;
  life.l_len = 1;
  // If the kernel does not tell, the slot counts as free: its turn can be
  // taken.
  return fcntl(locks_.get(), F_OFD_GETLK, &life) == 0 && life.l_type != F_UNLCK;
}

BoardFile::~BoardFile() {
  if (locks_.valid()) LockDescriptors::All().Close(locks_);
  if (board_ != nullptr && writes_) board_->Tell();
  board_.reset();
  if (memory_ != nullptr) munmap(memory_, sizeof(TurnBoardMemory));
}

void BoardFile::Await(uint32_t changes, absl::Time until) const {
  const absl::Duration time =
      std::clamp(until - SteadyNow(), absl::ZeroDuration(), kLookInterval);
  const timespec limit = absl::ToTimespec(time);
  syscall(SYS_futex, &memory_->changes, FUTEX_WAIT, changes, &limit, nullptr,
          0);
}

absl::Status BoardFile::Check() const {
  struct stat own = {};
  struct stat there = {};
  if (fstat(locks_.get(), &own) == 0 && stat(path_.c_str(), &there) == 0 &&
      own.st_dev == there.st_dev && own.st_ino == there.st_ino &&
      own.st_size == static_cast<off_t>(sizeof(TurnBoardMemory))) {
    return absl::OkStatus();
  }
  return FailedPreconditionError(
      path_, " was removed or cut while this job shares a device by it");
}

}  // namespace nereus
