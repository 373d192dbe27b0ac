#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/status.h"
#include "common/tensor/arrival.h"

namespace nereus {

// Counted reference to a contiguous range of host memory.
//
// Frames carry payloads as buffers, so a gradient travels from its owner's
// memory to the kernel without a copy: each part of the program that still
// needs the bytes holds a reference. A buffer is a value: copying it adds a
// reference to the same bytes.
//
// The count is thread-safe; the bytes are not guarded. By convention only the
// holder of the sole reference may write (see unique()). A holder that writes
// while a frame still refers to the bytes sends a mixture of two steps, with a
// checksum that fits neither.
class Buffer {
 public:
  // Makes a buffer without bytes.
  Buffer() = default;

  // Allocates memory, aligned to 64 bytes. Allocate leaves it uninitialised.
  // `bytes` >= 0. Without enough memory, throws std::bad_alloc.
  static Buffer Allocate(int64_t bytes);
  static Buffer AllocateZeroed(int64_t bytes);

  // Allocates zeroed memory; a size only if `model` is a size only.
  static Buffer AllocateLike(const Buffer& model, int64_t bytes);

  // Refers to memory of another owner. `released` is called once, when the last
  // reference is gone, on the thread that drops it. With an `arrival` the
  // memory is still being written.
  static Buffer Borrow(void* data, int64_t bytes,
                       std::function<void()> released,
                       std::shared_ptr<Arrival> arrival = nullptr);

  // Refers to memory of another owner without counting. The caller guarantees
  // that it outlives every use, as a transport's scratch outlives the call that
  // gets it.
  static Buffer View(void* data, int64_t bytes);

  // Makes a size without bytes, for simulations that model time only: data() is
  // null.
  static Buffer SizeOnly(int64_t bytes);

  // Copies add a reference, moves do not.
  Buffer(const Buffer& other);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer other) noexcept;
  ~Buffer();

  // First byte; null if the buffer is empty or a size only.
  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }  // Length in bytes.

  // Returns the bytes as float32 values. REQUIRES: aligned to 4 bytes, as
  // allocated memory is, and slices of it at multiples of 4.
  float* floats() const { return reinterpret_cast<float*>(data_); }
  int64_t float_count() const {
    return bytes_ / static_cast<int64_t>(sizeof(float));
  }

  // Returns bytes [offset, offset + bytes), with a reference to the same
  // memory. REQUIRES: inside this buffer.
  Buffer Slice(int64_t offset, int64_t bytes) const;

  // True if these bytes are written, and not still arriving (Borrow).
  bool IsThere() const;
  // Waits until these bytes are written. Errors: they will never be.
  absl::Status Await() const;

  // Waits until these bytes may be overwritten (Arrival::AwaitUnread).
  void AwaitUnread() const;

  // Returns these float32 values as bfloat16, with an arrival of their own, if
  // they arrive in that form too (Arrival::bfloat16); else an empty buffer.
  Buffer AsBfloat16() const;

  // Returns the number of references to the memory, slices included; 0 for a
  // view, a size or an empty buffer.
  int64_t references() const;
  // True if this is the only reference. Then everything that other holders did
  // with the bytes happened before.
  bool unique() const { return references() == 1; }

 private:
  // Memory and its count of references.
  struct Storage;

  // Takes over one reference to `storage`.
  Buffer(Storage* storage, uint8_t* data, int64_t bytes);

  Storage* storage_ = nullptr;  // Null: a view, a size, or empty.
  uint8_t* data_ = nullptr;     // First byte of this range.
  int64_t bytes_ = 0;           // Length of this range.
};

}  // namespace nereus
