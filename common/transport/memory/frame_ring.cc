#include "common/transport/memory/frame_ring.h"

#include <algorithm>
#include <cstring>

#include "common/base/status.h"

namespace nereus {
namespace {

// Frames begin at multiples of this many bytes.
constexpr size_t kAlignment = 64;
// Written in place of a header where the next frame does not fit before the end
// of the circle: the rest up to the end is skipped.
constexpr uint8_t kSkip[kFrameHeaderBytes] = {};
static_assert(kFrameHeaderBytes == kAlignment);
static_assert(FrameRing::kCapacity % kAlignment == 0);
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// Number of free bytes at which the reader wakes a sleeping writer. The largest
// frame then fits, even if almost as many bytes are skipped before it.
constexpr uint64_t kEnoughRoom = 2 * FrameRing::kSlotBytes;

// Returns the number of bytes that a frame takes in the ring. `bytes`: header
// and payload.
size_t Rounded(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Returns the number of bytes that the ring holds. The peer has set `head` or
// `tail`, so either may be nonsense. Errors: kInvalidArgument, no ring can have
// these numbers.
absl::StatusOr<uint64_t> Filled(uint64_t head, uint64_t tail) {
  const uint64_t filled = head - tail;
  if (filled <= FrameRing::kCapacity && filled % kAlignment == 0) return filled;
  return InvalidArgumentError("shared memory: the writer is at byte ", head,
                              " and the reader at byte ", tail,
                              " of a ring of ", FrameRing::kCapacity, " bytes");
}

}  // namespace

absl::StatusOr<bool> FrameRingWriter::Push(const FrameHeader& header,
                                           const Buffer& payload) {
  const uint64_t filled =
      NEREUS_TRY(Filled(head_, control_.tail.load(std::memory_order_acquire)));
  const size_t at = head_ % kCapacity;
  const auto bytes = static_cast<size_t>(payload.bytes());
  const size_t needed = Rounded(kFrameHeaderBytes + bytes);
  const size_t skipped = needed > kCapacity - at ? kCapacity - at : 0;
  if (skipped + needed > kCapacity - filled) return false;
  // Skips the end of the circle if the frame does not fit there: a frame is
  // never cut in two.
  if (skipped > 0) std::memcpy(data_ + at, kSkip, sizeof(kSkip));
  uint8_t* const place = skipped > 0 ? data_ : data_ + at;
  EncodeFrameHeader(header, place);
  if (bytes > 0) std::memcpy(place + kFrameHeaderBytes, payload.data(), bytes);
  head_ += skipped + needed;
  // Sequentially consistent, like the reader's announcement that it sleeps:
  // either the reader sees this frame, or TakeSleeper sees the announcement.
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
  uint64_t filled =
      NEREUS_TRY(Filled(control_.head.load(std::memory_order_acquire), tail_));
  if (filled == 0) return false;
  uint64_t from = tail_;
  // Copy of the header, which the writer cannot change during the checks.
  uint8_t bytes[kFrameHeaderBytes];
  std::memcpy(bytes, data_ + from % kCapacity, sizeof(bytes));
  if (std::memcmp(bytes, kSkip, sizeof(kSkip)) == 0) {
    const size_t left = kCapacity - from % kCapacity;
    if (filled <= left) {
      return InvalidArgumentError(
          "shared memory: no frame follows the skipped end of the ring");
    }
    from += left;
    filled -= left;
    std::memcpy(bytes, data_, sizeof(bytes));
  }
  header = NEREUS_TRY(DecodeFrameHeader(bytes));
  // Checks that the frame lies within the written bytes, because its length
  // comes from the peer.
  const size_t needed = Rounded(kFrameHeaderBytes + header.payload_bytes);
  const size_t at = from % kCapacity;
  if (needed > filled || needed > kCapacity - at) {
    return InvalidArgumentError("shared memory: ", DescribeFrame(header),
                                ": the ring has only ", filled, " bytes of it");
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
