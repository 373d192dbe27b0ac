#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/status.h"
#include "common/tensor/arrival.h"

namespace nereus {

// Counted reference to a contiguous range of host memory.
//
// Frames carry payloads as buffers, so a gradient can travel from the caller's
// memory to the kernel without a copy. Each part of the program that still
// needs the bytes holds a reference. A buffer is a value: copying it adds a
// reference to the same bytes.
//
// The count is thread-safe; the bytes are not guarded. By convention, the
// holder of a reference writes only to bytes that no other holder uses at that
// time. If unique() is true, there is no other counted reference (View counts
// none). A holder that writes while a frame still refers to the bytes can make
// that frame a mixture of two steps.
class Buffer {
 public:
  // Makes a buffer without bytes.
  Buffer() = default;

  // Allocates memory, aligned to 64 bytes. Allocate leaves it uninitialised.
  // `bytes` >= 0. Without enough memory, throws std::bad_alloc.
  static Buffer Allocate(int64_t bytes);
  static Buffer AllocateZeroed(int64_t bytes);

  // Allocates zeroed memory if `model` has memory; else returns
  // SizeOnly(bytes).
  static Buffer AllocateLike(const Buffer& model, int64_t bytes);

  // Refers to memory of another owner. `released` is called once, when the last
  // reference is gone, on the thread that drops it. `arrival` tells which bytes
  // are written; null: all of them.
  static Buffer Borrow(void* data, int64_t bytes,
                       std::function<void()> released,
                       std::shared_ptr<Arrival> arrival = nullptr);

  // Refers to memory of another owner without counting. The caller guarantees
  // that the memory outlives every use of the buffer. For example, a
  // transport's scratch outlives the call that reads it.
  static Buffer View(void* data, int64_t bytes);

  // Makes a buffer with a length and no memory: data() is null. Simulations
  // that model only time use it.
  static Buffer SizeOnly(int64_t bytes);

  // A copy adds a reference, a move does not.
  Buffer(const Buffer& other);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer other) noexcept;
  ~Buffer();

  // First byte; null if the buffer is default-constructed or made by SizeOnly.
  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }  // Length in bytes.

  // Returns the bytes as float32 values. REQUIRES: data() is aligned to 4
  // bytes.
  float* floats() const { return reinterpret_cast<float*>(data_); }
  int64_t float_count() const {
    return bytes_ / static_cast<int64_t>(sizeof(float));
  }

  // Returns bytes [offset, offset + bytes), with a reference to the same
  // memory. REQUIRES: the range is inside this buffer.
  Buffer Slice(int64_t offset, int64_t bytes) const;

  // True if all bytes of this buffer are written; always true for memory
  // without an arrival (Borrow).
  bool IsThere() const;
  // Waits until all bytes of this buffer are written. Errors: those of
  // Arrival::Await.
  absl::Status Await() const;

  // Waits until no device reads values of an earlier round from this memory
  // (Arrival::AwaitUnread). Does not wait for other holders on the host.
  void AwaitUnread() const;

  // Returns the bfloat16 form of these float32 values, in memory with its own
  // arrival. Returns an empty buffer if Arrival::bfloat16 gives none.
  Buffer AsBfloat16() const;

  // Returns the number of references to the memory, slices included; 0 for a
  // buffer that is default-constructed or made by View or SizeOnly.
  int64_t references() const;
  // True if this is the only reference. Then all that former holders did with
  // the bytes happened before this call.
  bool unique() const { return references() == 1; }

 private:
  // Memory and its count of references.
  struct Storage;

  // Takes over one reference to `storage`.
  Buffer(Storage* storage, uint8_t* data, int64_t bytes);

  Storage* storage_ = nullptr;  // Null: no count (references() is 0).
  uint8_t* data_ = nullptr;     // First byte of this range.
  int64_t bytes_ = 0;           // Length of this range.
};

}  // namespace nereus
