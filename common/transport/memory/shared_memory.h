#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/socket.h"
#include "common/protocol/hello.h"

namespace nereus {

// Memory of two processes on one host. It has no name in any file system: the
// kernel frees it when neither has it, however they end.
class SharedMemory {
 public:
  // New, zero and of a fixed length. Errors: kUnavailable.
  static absl::StatusOr<SharedMemory> Create(size_t bytes);

  // What another process has created and offers, if this one may have it: both
  // see the same processes, and run as the same user. Errors: kUnavailable,
  // this side cannot; kInvalidArgument, it is something else.
  static absl::StatusOr<SharedMemory> Open(const SharedMemoryOffer& offer,
                                           size_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) = delete;
  ~SharedMemory();

  // For Open, until Settle.
  const SharedMemoryOffer& offer() const { return offer_; }
  // Nobody is to open it any more.
  void Settle() { descriptor_.Close(); }

  // Page-aligned.
  uint8_t* data() const { return data_; }

 private:
  SharedMemory(Descriptor descriptor, uint8_t* mapping, size_t mapped,
               const SharedMemoryOffer& offer);
  static absl::StatusOr<SharedMemory> Map(Descriptor descriptor, size_t bytes,
                                          const SharedMemoryOffer& offer);

  Descriptor descriptor_;
  SharedMemoryOffer offer_;
  uint8_t* mapping_ = nullptr;  // A page with the offer's token, then data_.
  size_t mapped_ = 0;
  uint8_t* data_ = nullptr;
};

}  // namespace nereus
