#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/descriptor.h"
#include "common/base/status.h"
#include "common/share/turn_board.h"

namespace nereus {

// The board of a device: the file DIR/board, which all processes that share the
// device map into their memory. There is no daemon.
//
// The kernel tells which processes live: each locks one byte of the file, and
// loses this lock when it dies, whatever way. A process that waits sleeps in
// the kernel (futex), and wakes when the board changes.
//
// DIR must be an absolute path of a folder on a local file system. The folder
// belongs to the user of the process, and no other user may enter it, because a
// program that may write the board can hold up the jobs of the device. Open
// makes a missing folder if its parent exists.
class BoardFile {
 public:
  struct Options {
    std::string folder;  // DIR.
    // True if DIR may belong to a group, whose members then share the device:
    // mode 0770.
    bool allows_group = false;
    // Memory of the device in bytes; 0: not known.
    int64_t memory_bytes = 0;
  };

  // Opens the board, and makes it if DIR has none. Claims a slot. Errors:
  // kInvalidArgument, DIR is no such folder; kFailedPrecondition, the board is
  // damaged or of another version; kResourceExhausted, all slots are taken;
  // kUnavailable, the system refuses to open or lock a file.
  static absl::StatusOr<std::unique_ptr<BoardFile>> Open(
      const Options& options);
  // Opens a board to read it, without a slot. Errors: those of Open; kNotFound,
  // DIR has no board.
  static absl::StatusOr<std::unique_ptr<BoardFile>> OpenToRead(
      const std::string& folder);
  // Frees the slot.
  ~BoardFile();
  BoardFile(const BoardFile&) = delete;
  BoardFile& operator=(const BoardFile&) = delete;

  TurnBoard& board() { return *board_; }
  const std::string& path() const { return path_; }

  // Number of changes of the board so far, for Await.
  uint32_t changes() const { return memory_->changes.load(); }
  // Waits until the board has changed since it had `changes`, at most until
  // `until`, and at most kLookInterval: the death of a process is no change.
  void Await(uint32_t changes, absl::Time until) const;
  static constexpr absl::Duration kLookInterval = absl::Milliseconds(50);

  // OK, or kFailedPrecondition: the file is not in DIR any more, so that other
  // processes may share the device by another board.
  absl::Status Check() const;

 private:
  BoardFile() = default;
  absl::Status Map(const std::string& folder, bool writes);
  absl::Status Claim();
  bool IsAlive(int slot) const;

  std::string path_;
  // Open file whose locks tell that this process lives. The memory is mapped
  // by another one, because a mapping would keep the locks alive in a child
  // that this process forks.
  Descriptor locks_;
  TurnBoardMemory* memory_ = nullptr;
  bool writes_ = false;
  std::unique_ptr<TurnBoard> board_;
};

}  // namespace nereus
