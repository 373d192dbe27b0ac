#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/share/turn_table.h"

namespace nereus {

// Largest number of clients that share one device.
inline constexpr int kTurnSlots = 64;

// Memory of a board, which the processes of one device share. Each slot is
// written by its client alone, and no process ever waits for another one here.
// So a process that is killed or stopped at any instruction holds up none.
struct TurnBoardMemory {
  static constexpr uint64_t kMagic = 0x6e65726575730001;  // "nereus", version.
  static constexpr size_t kSlotWords = 32;

  // A slot is a TurnSlot as words, twice: the client writes one copy while
  // others read the other one, which `version` names by its last bit.
  struct alignas(64) Slot {
    std::atomic<uint64_t> version;
    std::array<std::array<std::atomic<uint64_t>, kSlotWords>, 2> copies;
  };

  std::atomic<uint64_t> magic;
  // Number of the turn, times 256, plus the index of its holder plus 1; plus 0:
  // the device is free. One word, so that two clients never take one turn.
  std::atomic<uint64_t> turn;
  std::atomic<int64_t> free_since;    // Nanoseconds.
  std::atomic<int64_t> memory_bytes;  // TurnTable::memory_bytes.
  // Number of changes, modulo 2^32. Clients that wait sleep on this word.
  std::atomic<uint32_t> changes;
  std::array<Slot, kTurnSlots> slots;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Access of one client to a board. Several processes may be at work on the
// memory at the same time; this object is for one thread at a time.
//
// The memory is a file of the user, so any of his programs can damage it. No
// value in it is trusted: Read returns an error if one is impossible.
class TurnBoard {
 public:
  struct Events {
    // True if the client of a slot lives.
    std::function<bool(int slot)> is_alive;
    // Wakes the clients that wait for a change of the board.
    std::function<void()> changed;
  };

  // `own`: index of this client's slot; -1: this object only reads. `memory`
  // is not owned, and must outlive this.
  TurnBoard(TurnBoardMemory* memory, int own, Events events);

  // Fills new memory, all zero, for a device with so many bytes of memory (0:
  // without limit).
  static void Format(TurnBoardMemory& memory, int64_t memory_bytes);

  // Returns the table. Errors: kDataLoss, a value is impossible.
  absl::StatusOr<TurnTable> Read() const;

  // Claims the slot for this client, which is out. A former client of the slot
  // may have died with the turn: it is free then.
  void Claim(TurnSlot slot);

  // Writes this client's slot, without telling the other clients.
  void Write(const TurnSlot& slot);
  // Takes the turn after the turn with number `turn`. Returns its number.
  // Returns nothing if another client was quicker.
  std::optional<uint64_t> Take(uint64_t turn);
  // Gives the turn with number `turn` back at `now`. Returns false if another
  // client has passed this one, so that its turn was over before.
  bool Give(uint64_t turn, absl::Time now);
  // True if `turn` is the number of the turn that this client has now.
  bool Holds(uint64_t turn) const;

  // Makes all clients that wait read the table again.
  void Tell();

  int own() const { return own_; }

 private:
  static uint64_t WordOf(uint64_t turn, int holder) {
    return turn << 8 | static_cast<uint64_t>(holder + 1);
  }

  TurnBoardMemory& memory_;
  const int own_;
  const Events events_;
};

}  // namespace nereus
