#include "common/share/turn_board.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "common/base/logging.h"
#include "common/base/printable.h"

namespace nereus {
namespace {

using Memory = TurnBoardMemory;
using Words = std::array<uint64_t, Memory::kSlotWords>;

// Longest name of a job on a board, in bytes; longer ones are cut.
constexpr size_t kNameBytes = 64;

// Largest memory of a client, in bytes: the sum of all is a number.
constexpr int64_t kBytesMax = int64_t{1} << 50;

// Calls `field` with each field of a slot that its client writes.
template <typename Slot, typename Field>
void VisitFields(Slot& slot, Field&& field) {
  field(slot.job);
  field(slot.job_id);
  field(slot.rank);
  field(slot.process);
  field(slot.state);
  field(slot.since);
  field(slot.has_asked);
  field(slot.tried_at);
  field(slot.step);
  field(slot.key);
  field(slot.weight);
  field(slot.cost);
  field(slot.limit);
  field(slot.resident_bytes);
  field(slot.turn_bytes);
  field(slot.is_admitted);
  field(slot.turn_count);
  field(slot.turn_time);
  field(slot.wait_time);
  field(slot.step_time);
}

// Writes fields into words, one after the other.
class Writer {
 public:
  explicit Writer(Words& words) : words_(words) {}
  template <typename T>
  void operator()(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      std::array<char, kNameBytes> bytes = {};
      std::memcpy(bytes.data(), value.data(),
                  std::min(value.size(), bytes.size()));
      std::memcpy(&words_.at(next_), bytes.data(), bytes.size());
      next_ += kNameBytes / sizeof(uint64_t);
    } else if constexpr (std::is_same_v<T, absl::Time>) {
      Put(static_cast<uint64_t>(absl::ToUnixNanos(value)));
    } else if constexpr (std::is_same_v<T, absl::Duration>) {
      Put(static_cast<uint64_t>(absl::ToInt64Nanoseconds(value)));
    } else if constexpr (std::is_same_v<T, double>) {
      Put(std::bit_cast<uint64_t>(value));
    } else {
      Put(static_cast<uint64_t>(value));
    }
  }

 private:
  void Put(uint64_t word) { words_.at(next_++) = word; }

  Words& words_;
  size_t next_ = 0;
};

// Reads fields from words in the same order.
class Reader {
 public:
  explicit Reader(const Words& words) : words_(words) {}
  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      std::array<char, kNameBytes + 1> bytes = {};
      std::memcpy(bytes.data(), &words_.at(next_), kNameBytes);
      next_ += kNameBytes / sizeof(uint64_t);
      value = Printable(bytes.data());
    } else if constexpr (std::is_same_v<T, absl::Time>) {
      value = absl::FromUnixNanos(static_cast<int64_t>(Get()));
    } else if constexpr (std::is_same_v<T, absl::Duration>) {
      value = absl::Nanoseconds(static_cast<int64_t>(Get()));
    } else if constexpr (std::is_same_v<T, double>) {
      value = std::bit_cast<double>(Get());
    } else {
      value = static_cast<T>(Get());
    }
  }

 private:
  uint64_t Get() { return words_.at(next_++); }

  const Words& words_;
  size_t next_ = 0;
};

// Returns a consistent copy of a slot's words. The client may write meanwhile,
// and then this tries again: each try needs one whole Write to fail.
Words Load(const Memory::Slot& slot) {
  Words words;
  while (true) {
    const uint64_t version = slot.version.load(std::memory_order_acquire);
    const auto& copy = slot.copies[version % 2];
    for (size_t i = 0; i < words.size(); ++i) {
      words[i] = copy[i].load(std::memory_order_acquire);
    }
    if (slot.version.load(std::memory_order_relaxed) == version) return words;
  }
}

void Store(const Words& words, Memory::Slot& slot) {
  const uint64_t version = slot.version.load(std::memory_order_relaxed) + 1;
  auto& copy = slot.copies[version % 2];
  for (size_t i = 0; i < words.size(); ++i) {
    // A reader that sees a word of this Store also sees the version before it.
    copy[i].store(words[i], std::memory_order_release);
  }
  slot.version.store(version, std::memory_order_release);
}

absl::Status CheckSlot(const TurnSlot& slot) {
  const bool is_possible =
      slot.state <= TurnSlot::State::kIn && slot.rank >= 0 &&
      std::isfinite(slot.key) && std::isfinite(slot.weight) &&
      slot.weight > 0 && slot.cost >= absl::ZeroDuration() &&
      slot.limit >= absl::ZeroDuration() && slot.resident_bytes >= 0 &&
      slot.turn_bytes >= 0 && slot.resident_bytes <= kBytesMax &&
      slot.turn_bytes <= kBytesMax;
  if (is_possible) return absl::OkStatus();
  return DataLossError("the slot of job ", slot.job, " has impossible values");
}

}  // namespace

TurnBoard::TurnBoard(TurnBoardMemory* memory, int own, Events events)
    : memory_(*memory), own_(own), events_(std::move(events)) {}

void TurnBoard::Format(TurnBoardMemory& memory, int64_t memory_bytes) {
  memory.memory_bytes = memory_bytes;
  memory.magic = Memory::kMagic;
}

absl::StatusOr<TurnTable> TurnBoard::Read() const {
  TurnTable table;
  // First: a turn that is taken or given back meanwhile has another number, so
  // that Take fails.
  const uint64_t word = memory_.turn.load(std::memory_order_acquire);
  table.turn = word >> 8;
  table.holder = static_cast<int>(word & 0xff) - 1;
  if (table.holder >= kTurnSlots) {
    return DataLossError("the holder has number ", table.holder, ", must be ",
                         kTurnSlots - 1, " at most");
  }
  table.free_since = absl::FromUnixNanos(memory_.free_since);
  table.memory_bytes = memory_.memory_bytes;
  table.slots.resize(kTurnSlots);
  for (int i = 0; i < kTurnSlots; ++i) {
    // A slot that was never used costs no question about its life.
    if (memory_.slots[i].version.load(std::memory_order_acquire) == 0) continue;
    TurnSlot& slot = table.slots[i];
    slot.is_alive = i == own_ || events_.is_alive(i);
    if (!slot.is_alive) continue;
    VisitFields(slot, Reader(Load(memory_.slots[i])));
    NEREUS_TRY(CheckSlot(slot));
  }
  return table;
}

void TurnBoard::Claim(TurnSlot slot) {
  uint64_t word = memory_.turn.load();
  const uint64_t turn = word >> 8;
  if (word == WordOf(turn, own_)) {
    memory_.turn.compare_exchange_strong(word, WordOf(turn + 1, -1));
  }
  slot.state = TurnSlot::State::kOut;
  Write(slot);
  Tell();
}

void TurnBoard::Write(const TurnSlot& slot) {
  Words words = {};
  VisitFields(slot, Writer(words));
  Store(words, memory_.slots[own_]);
}

std::optional<uint64_t> TurnBoard::Take(uint64_t turn) {
  uint64_t word = memory_.turn.load();
  if (word >> 8 != turn) return std::nullopt;
  if (!memory_.turn.compare_exchange_strong(word, WordOf(turn + 1, own_))) {
    return std::nullopt;
  }
  return turn + 1;
}

bool TurnBoard::Give(uint64_t turn, absl::Time now) {
  if (!Holds(turn)) return false;
  memory_.free_since = absl::ToUnixNanos(now);
  uint64_t word = WordOf(turn, own_);
  const bool had =
      memory_.turn.compare_exchange_strong(word, WordOf(turn + 1, -1));
  Tell();
  return had;
}

bool TurnBoard::Holds(uint64_t turn) const {
  return memory_.turn.load(std::memory_order_acquire) == WordOf(turn, own_);
}

void TurnBoard::Tell() {
  memory_.changes.fetch_add(1);
  events_.changed();
}

}  // namespace nereus
