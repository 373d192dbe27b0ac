#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/tensor/arrival.h"

namespace nereus {

// A counted reference to a contiguous range of host memory.
//
// Frames carry payloads as buffers, so a gradient travels from its owner's
// memory to the kernel without a copy: whoever still needs the bytes holds a
// reference. A buffer is a value: copying it adds a reference to the same
// bytes.
//
// The count is thread-safe; the bytes are not guarded. By convention the holder
// of the only reference may write (see unique()).
class Buffer {
 public:
  // No bytes.
  Buffer() = default;

  // Memory of its own, aligned to 64 bytes, not initialised. `bytes` >= 0.
  static Buffer Allocate(int64_t bytes);
  static Buffer AllocateZeroed(int64_t bytes);

  // Zeroed memory of its own; only a size if `model` is only a size.
  static Buffer AllocateLike(const Buffer& model, int64_t bytes);

  // Somebody else's memory. `released` is called once, when the last reference
  // is gone, on whichever thread that happens. With an `arrival` it is still
  // being written.
  static Buffer Borrow(void* data, int64_t bytes,
                       std::function<void()> released,
                       std::shared_ptr<Arrival> arrival = nullptr);

  // Somebody else's memory, without counting: the caller knows that it outlives
  // every use, as a transport's scratch outlives the call that is given it.
  static Buffer View(void* data, int64_t bytes);

  // A size without bytes, for simulations that model time only: data() is null.
  static Buffer SizeOnly(int64_t bytes);

  Buffer(const Buffer& other);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer other) noexcept;
  ~Buffer();

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // The same bytes as float32 values. Owned memory and sensible slices are
  // aligned.
  float* floats() const { return reinterpret_cast<float*>(data_); }
  int64_t float_count() const {
    return bytes_ / static_cast<int64_t>(sizeof(float));
  }

  // Bytes [offset, offset + bytes), sharing the count. REQUIRES: inside this
  // buffer.
  Buffer Slice(int64_t offset, int64_t bytes) const;

  // Whether these bytes are there, and not still being written (Borrow).
  bool IsThere() const;
  // Waits until they are. Errors: they never will be.
  absl::Status Await() const;

  // Waits until they may be overwritten (Arrival::AwaitUnread).
  void AwaitUnread() const;

  // Of float32 that arrive as bfloat16, too (Arrival::bfloat16): these values,
  // with an arrival of their own; otherwise nothing.
  Buffer AsBfloat16() const;

  // How many references there are, slices counted too; 0: a view, a size, or
  // nothing.
  int64_t references() const;
  // True if this is the only one: what other shard_servers did with the bytes
  // happened before.
  bool unique() const { return references() == 1; }

 private:
  struct Storage;

  Buffer(Storage* storage, uint8_t* data, int64_t bytes);

  Storage* storage_ = nullptr;  // Null: a view, a size, or nothing.
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace nereus
