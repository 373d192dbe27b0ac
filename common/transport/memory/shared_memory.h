#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/protocol/hello.h"

namespace nereus {

// Memory that two processes on one host have mapped. It has no name in any file
// system, so nothing is left behind: the kernel frees it when both processes
// have unmapped it or ended, however they end.
//
// The creator sends its offer() to the other process, which finds the memory
// through /proc. The length is sealed: neither process can cut off memory that
// the other one has mapped, which would kill that process.
class SharedMemory {
 public:
  // Creates memory of `bytes`, filled with zeros. Errors: kUnavailable.
  static absl::StatusOr<SharedMemory> Create(size_t bytes);

  // Opens memory that another process has created. Both must see the same
  // process ids (not be in different containers) and run as the same user.
  // Errors: kUnavailable, this process cannot open the memory, or the file has
  // not the name of such memory; kInvalidArgument, the file is not the memory
  // that was offered.
  static absl::StatusOr<SharedMemory> Open(const SharedMemoryOffer& offer,
                                           size_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) = delete;
  ~SharedMemory();

  // Names this memory for Open in another process, until Settle.
  const SharedMemoryOffer& offer() const { return offer_; }
  // Closes the descriptor of this process. Once both sides have called it, no
  // other process can open the memory. The mappings stay.
  void Settle() { descriptor_.Close(); }

  // First byte; aligned to a page.
  uint8_t* data() const { return data_; }

 private:
  SharedMemory(Descriptor descriptor, uint8_t* mapping, size_t mapped,
               const SharedMemoryOffer& offer);
  static absl::StatusOr<SharedMemory> Map(Descriptor descriptor, size_t bytes,
                                          const SharedMemoryOffer& offer);

  Descriptor descriptor_;  // Not valid after Settle.
  SharedMemoryOffer offer_;
  // Mapping of `mapped_` bytes: a page that begins with the offer's token, then
  // data_. Null after a move.
  uint8_t* mapping_ = nullptr;
  size_t mapped_ = 0;
  uint8_t* data_ = nullptr;
};

}  // namespace nereus
