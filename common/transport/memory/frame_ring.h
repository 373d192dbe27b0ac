#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/tensor/buffer.h"

namespace nereus {

// A ring of frames in memory that two processes share: one writes, the other
// reads. Each process has one end. Neither end trusts the bytes of the other
// process: an end copies a field first, and then checks and uses only the copy.
//
// The memory is a circle of whole frames with the headers of the wire format. A
// frame that does not fit before the end of the circle goes to the start.
// Payloads have no checksum here: they stay in main memory, which Nereus trusts
// for all its other values too.
//
//   head: bytes ever written.   tail: bytes ever popped, never above head.
//   Both count the bytes that are skipped at the end of the circle, and the
//   padding: frames begin at multiples of 64 bytes.
//
//        tail           head
//          v              v
//   |------#####frames#####---------|   positions modulo kCapacity
//
// No method here waits. An end that cannot go on (no frame to read, or no room
// to write) sets its sleep flag, and its process may then sleep. When there is
// something to do again, the other end clears the flag (TakeSleeper), and its
// process must wake the sleeping one. MemoryChannel does so by a byte through a
// socket.
class FrameRing {
 public:
  // Bytes of the largest frame with its header. The ring has room for four such
  // frames, about 1 MiB. So one frame can be written while another is read, and
  // the ring stays in a cache of 2 MiB.
  static constexpr size_t kSlotBytes =
      kFrameHeaderBytes + static_cast<size_t>(kFramePayloadBytesMax);
  static constexpr size_t kCapacity = 4 * kSlotBytes;

  // Start of a ring's memory: the counters and flags of both ends, each on a
  // cache line of its own.
  struct alignas(64) Control {
    alignas(64) std::atomic<uint64_t> head;  // Set by the writer.
    alignas(64) std::atomic<uint64_t> tail;  // Set by the reader.
    // 1: the reader sleeps, and the writer must wake it.
    alignas(64) std::atomic<uint32_t> reader_sleeps;
    // 1: the writer sleeps, and the reader must wake it.
    alignas(64) std::atomic<uint32_t> writer_sleeps;
  };
  // Bytes of shared memory for one ring.
  static constexpr size_t kBytes = sizeof(Control) + kCapacity;

 protected:
  // `memory`: kBytes, aligned to 64, zero before either end is made. Must
  // outlive this.
  explicit FrameRing(uint8_t* memory)
      : control_(*reinterpret_cast<Control*>(memory)),
        data_(memory + sizeof(Control)) {}

  Control& control_;
  uint8_t* const data_;  // kCapacity bytes: the circle.
};

// The writing end of a ring. Not thread-safe.
class FrameRingWriter : private FrameRing {
 public:
  explicit FrameRingWriter(uint8_t* memory) : FrameRing(memory) {}

  // Copies a frame into the ring. Returns false if there is no room now.
  // Errors: kInvalidArgument, the reader has written an impossible tail.
  absl::StatusOr<bool> Push(const FrameHeader& header, const Buffer& payload);

  // True if the reader sleeps; the caller must then wake it. True only once for
  // each sleep. Called after Push.
  bool TakeSleeper();

  // Announces that this end sleeps, and returns true. But if there is room for
  // a frame of any size by now, takes the announcement back and returns false.
  // Called when frames are left to write.
  bool MaySleep();
  // Takes the announcement back.
  void Awake() { control_.writer_sleeps.store(0, std::memory_order_relaxed); }

 private:
  // Own copy of Control::head, which the peer cannot change.
  uint64_t head_ = 0;
};

// The reading end of a ring. Not thread-safe.
class FrameRingReader : private FrameRing {
 public:
  explicit FrameRingReader(uint8_t* memory) : FrameRing(memory) {}

  // Reads the next frame. Returns false if the ring is empty. The payload stays
  // in the ring and is valid until Pop. A hostile writer could still change the
  // payload, so the caller must decide nothing by its values. Errors:
  // kInvalidArgument, the writer has written something that is no frame.
  absl::StatusOr<bool> Front(FrameHeader& header, Buffer& payload);
  // Frees the memory of the frame that Front has read. REQUIRES: Front has
  // returned true since the last Pop.
  void Pop();

  // True if all frames in the ring were popped.
  bool empty() const {
    return control_.head.load(std::memory_order_acquire) == tail_;
  }

  // True if the writer sleeps and there is room for a frame of any size; the
  // caller must then wake the writer. True only once for each sleep. Called
  // after Pop.
  bool TakeSleeper();

  // Announces that this end sleeps, and returns true. But if there is a frame
  // by now, takes the announcement back and returns false.
  bool MaySleep();
  // Takes the announcement back.
  void Awake() { control_.reader_sleeps.store(0, std::memory_order_relaxed); }

 private:
  // Own copy of Control::tail, which the peer cannot change.
  uint64_t tail_ = 0;
  uint64_t next_ = 0;  // Value of tail_ after the next Pop.
};

}  // namespace nereus
