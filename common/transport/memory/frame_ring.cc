#include "common/transport/memory/frame_ring.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace nereus {
namespace {

// Where frames begin. Of what is left at the end of the circle, if the next
// frame does not fit: a header's length of this, and the rest as it is.
constexpr size_t kAlignment = 64;
constexpr uint8_t kSkip[kFrameHeaderBytes] = {};
static_assert(kFrameHeaderBytes == kAlignment);
static_assert(FrameRing::kCapacity % kAlignment == 0);
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// A writer that sleeps is woken when so much is free: the largest frame, and
// what is skipped before it.
constexpr uint64_t kEnoughRoom = 2 * FrameRing::kSlotBytes;

size_t Rounded(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// What is between head and tail, as one side has it and the other says.
absl::StatusOr<uint64_t> Filled(uint64_t head, uint64_t tail) {
  const uint64_t filled = head - tail;
  if (filled <= FrameRing::kCapacity && filled % kAlignment == 0) return filled;
  return absl::InvalidArgumentError(
      absl::StrCat("shared memory: ", head, " bytes are written and ", tail,
                   " read, of ", FrameRing::kCapacity, " that it has"));
}

}  // namespace

absl::StatusOr<bool> FrameRingWriter::Push(const FrameHeader& header,
                                           const Buffer& payload) {
  NEREUS_ASSIGN_OR_RETURN(
      const uint64_t filled,
      Filled(head_, control_.tail.load(std::memory_order_acquire)));
  const size_t at = head_ % kCapacity;
  const auto bytes = static_cast<size_t>(payload.bytes());
  const size_t needed = Rounded(kFrameHeaderBytes + bytes);
  const size_t skipped = needed > kCapacity - at ? kCapacity - at : 0;
  if (skipped + needed > kCapacity - filled) return false;
  if (skipped > 0) std::memcpy(data_ + at, kSkip, sizeof(kSkip));
  uint8_t* const place = skipped > 0 ? data_ : data_ + at;
  EncodeFrameHeader(header, place);
  if (bytes > 0) std::memcpy(place + kFrameHeaderBytes, payload.data(), bytes);
  head_ += skipped + needed;
  // In one order with the reader's word that it sleeps: one of the two sees
  // the other.
  control_.head.store(head_, std::memory_order_seq_cst);
  return true;
}

bool FrameRingWriter::TakeSleeper() {
  return control_.reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
         control_.reader_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

bool FrameRingWriter::MaySleep() {
  control_.writer_sleeps.store(1, std::memory_order_seq_cst);
  const uint64_t tail = control_.tail.load(std::memory_order_seq_cst);
  const bool room = head_ - tail + kEnoughRoom <= kCapacity;
  if (room) Awake();
  return !room;
}

absl::StatusOr<bool> FrameRingReader::Front(FrameHeader& header,
                                            Buffer& payload) {
  NEREUS_ASSIGN_OR_RETURN(
      uint64_t filled,
      Filled(control_.head.load(std::memory_order_acquire), tail_));
  if (filled == 0) return false;
  uint64_t from = tail_;
  // Looked at where nobody can change it.
  uint8_t bytes[kFrameHeaderBytes];
  std::memcpy(bytes, data_ + from % kCapacity, sizeof(bytes));
  if (std::memcmp(bytes, kSkip, sizeof(kSkip)) == 0) {
    const size_t left = kCapacity - from % kCapacity;
    if (filled <= left) {
      return absl::InvalidArgumentError(
          "shared memory: nothing follows where some is skipped");
    }
    from += left;
    filled -= left;
    std::memcpy(bytes, data_, sizeof(bytes));
  }
  NEREUS_ASSIGN_OR_RETURN(header, DecodeFrameHeader(bytes));
  const size_t needed = Rounded(kFrameHeaderBytes + header.payload_bytes);
  const size_t at = from % kCapacity;
  if (needed > filled || needed > kCapacity - at) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: ", DescribeFrame(header), ": ", filled,
                     " bytes are there"));
  }
  payload = Buffer::View(data_ + at + kFrameHeaderBytes, header.payload_bytes);
  next_ = from + needed;
  return true;
}

void FrameRingReader::Pop() {
  tail_ = next_;
  control_.tail.store(tail_, std::memory_order_seq_cst);
}

bool FrameRingReader::TakeSleeper() {
  if (control_.writer_sleeps.load(std::memory_order_seq_cst) == 0) return false;
  const uint64_t head = control_.head.load(std::memory_order_acquire);
  const bool room = head - tail_ + kEnoughRoom <= kCapacity;
  return room &&
         control_.writer_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

bool FrameRingReader::MaySleep() {
  control_.reader_sleeps.store(1, std::memory_order_seq_cst);
  const bool nothing = control_.head.load(std::memory_order_seq_cst) == tail_;
  if (!nothing) Awake();
  return nothing;
}

}  // namespace nereus
