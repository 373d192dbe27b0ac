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
// process: it copies a field before it decides by it, and then checks and uses
// only the copy.
//
// The memory is a circle of whole frames with the headers of the wire format. A
// frame that does not fit before the end of the circle is put at the start.
// Payloads have no checksum here: they stay in main memory, which is trusted
// for all other values too.
//
//   head: bytes ever written.   tail: bytes ever read, never above head. Both
//   count the bytes that are skipped at the end of the circle.
//
//        tail           head
//          v              v
//   |------#####frames#####---------|   positions modulo kCapacity
//
// Neither end waits. An end with nothing to do sets its sleep flag and may
// sleep. The other end clears the flag and must then wake the sleeper. The
// owner decides how to wake it (MemoryChannel: by a byte through a socket).
class FrameRing {
 public:
  // Size of the largest frame. The ring has room for four: one can be written
  // while another is read, and the ring stays in a cache of two megabytes.
  static constexpr size_t kSlotBytes =
      kFrameHeaderBytes + static_cast<size_t>(kFramePayloadBytesMax);
  static constexpr size_t kCapacity = 4 * kSlotBytes;

  // Start of the shared memory: the counters and flags of both ends, each on a
  // cache line of its own.
  struct alignas(64) Control {
    alignas(64) std::atomic<uint64_t> head;           // Set by the writer.
    alignas(64) std::atomic<uint64_t> tail;           // Set by the reader.
    alignas(64) std::atomic<uint32_t> reader_sleeps;  // 1: wake the reader.
    alignas(64) std::atomic<uint32_t> writer_sleeps;  // 1: wake the writer.
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

  // Returns true if the reader sleeps and must be woken, once for each sleep.
  // Called after Push.
  bool TakeSleeper();

  // Announces that this end sleeps, and returns true. If there is room for a
  // frame of any size already, takes the announcement back and returns false.
  // Called after a Push that found no room.
  bool MaySleep();
  // Takes the announcement back.
  void Awake() { control_.writer_sleeps.store(0, std::memory_order_relaxed); }

 private:
  uint64_t head_ = 0;  // Control::head; the copy that the peer cannot change.
};

// The reading end of a ring. Not thread-safe.
class FrameRingReader : private FrameRing {
 public:
  explicit FrameRingReader(uint8_t* memory) : FrameRing(memory) {}

  // Reads the next frame. Returns false if the ring is empty. The payload stays
  // in the ring and is valid until Pop. A hostile writer could still change it,
  // so nothing may be decided by its values. Errors: kInvalidArgument, the
  // writer has written something that is no frame.
  absl::StatusOr<bool> Front(FrameHeader& header, Buffer& payload);
  // Frees the memory of that frame. REQUIRES: Front has returned true since the
  // last Pop.
  void Pop();

  // True if the ring has no frame that was not popped.
  bool empty() const {
    return control_.head.load(std::memory_order_acquire) == tail_;
  }

  // Returns true if the writer sleeps and must be woken, once for each sleep:
  // when there is room for a frame of any size. Called after Pop.
  bool TakeSleeper();

  // Announces that this end sleeps, and returns true. If there is a frame,
  // takes the announcement back and returns false.
  bool MaySleep();
  // Takes the announcement back.
  void Awake() { control_.reader_sleeps.store(0, std::memory_order_relaxed); }

 private:
  uint64_t tail_ = 0;  // Control::tail; the copy that the peer cannot change.
  uint64_t next_ = 0;  // Tail after the next Pop.
};

}  // namespace nereus
