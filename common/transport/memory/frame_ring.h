#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/protocol/frame.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Frames on their way from one process to another, in memory that both have.
// Each has one of the two ends, and does with the other end's half of the
// memory what it does with a stranger's bytes: checks them, and copies what it
// decides by before it looks.
//
// The memory is a circle of whole frames, headers as on the wire; none crosses
// its end. What is in it needs no checksum: nothing carries it but the memory
// that all else is in.
//
//   head: bytes ever written. tail: bytes ever read, behind head.
//
// A side that finds nothing to do may sleep; the other one is told, once, to
// wake it. How is their business.
class FrameRing {
 public:
  // Room for four of the largest frames, so that one is written while another
  // is read, in caches that have a megabyte.
  static constexpr size_t kSlotBytes =
      kFrameHeaderBytes + static_cast<size_t>(kFramePayloadBytesMax);
  static constexpr size_t kCapacity = 4 * kSlotBytes;

  // What both share.
  struct alignas(64) Control {
    alignas(64) std::atomic<uint64_t> head;
    alignas(64) std::atomic<uint64_t> tail;
    alignas(64) std::atomic<uint32_t> reader_sleeps;
    alignas(64) std::atomic<uint32_t> writer_sleeps;
  };
  static constexpr size_t kBytes = sizeof(Control) + kCapacity;

 protected:
  // `memory`: kBytes, aligned to 64, zero before either end is made. Must
  // outlive this.
  explicit FrameRing(uint8_t* memory)
      : control_(*reinterpret_cast<Control*>(memory)),
        data_(memory + sizeof(Control)) {}

  Control& control_;
  uint8_t* const data_;
};

class FrameRingWriter : private FrameRing {
 public:
  explicit FrameRingWriter(uint8_t* memory) : FrameRing(memory) {}

  // Copies a frame; false: there is no room now. Errors: kInvalidArgument, the
  // other side has written nonsense.
  absl::StatusOr<bool> Push(const FrameHeader& header, const Buffer& payload);

  // After some Push: whether the reader must be woken.
  bool TakeSleeper();

  // After a Push that found no room: whether this side may sleep, as there is
  // none yet; it will be woken by the reader.
  bool MaySleep();
  void Awake() { control_.writer_sleeps.store(0, std::memory_order_relaxed); }

 private:
  uint64_t head_ = 0;
};

class FrameRingReader : private FrameRing {
 public:
  explicit FrameRingReader(uint8_t* memory) : FrameRing(memory) {}

  // The next frame; the payload is where it lies, until Pop. False: there is
  // none. Errors: kInvalidArgument, the other side has written nonsense.
  absl::StatusOr<bool> Front(FrameHeader& header, Buffer& payload);
  // REQUIRES: Front has returned true since the last Pop.
  void Pop();

  bool empty() const {
    return control_.head.load(std::memory_order_acquire) == tail_;
  }

  // After some Pop: whether the writer must be woken.
  bool TakeSleeper();

  // Whether this side may sleep, as there is nothing; it will be woken by the
  // writer.
  bool MaySleep();
  void Awake() { control_.reader_sleeps.store(0, std::memory_order_relaxed); }

 private:
  uint64_t tail_ = 0;
  uint64_t next_ = 0;  // The tail after Pop.
};

}  // namespace nereus
