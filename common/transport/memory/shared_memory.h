#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/protocol/hello.h"

namespace nereus {

// Memory that two processes on one host have mapped. It is not in any file
// system, so nothing is left behind: the kernel frees it when each of the two
// has unmapped it or has ended, even by a crash.
//
// The creator sends its offer() to the other process, which finds the memory
// through /proc. The length is sealed: neither process can make the memory
// shorter. Otherwise the kernel would kill a process that uses a part which the
// other process has cut off.
class SharedMemory {
 public:
  // Creates memory of `bytes`, filled with zeros. Errors: kUnavailable.
  static absl::StatusOr<SharedMemory> Create(size_t bytes);

  // Opens memory that another process has created. The two processes must see
  // the same process ids (not be in different containers) and run as the same
  // user. Errors: kUnavailable, this process cannot open or map the memory, or
  // its name is not that of memory from Create; kInvalidArgument, the length,
  // the seals or the token are not those of the offered memory.
  static absl::StatusOr<SharedMemory> Open(const SharedMemoryOffer& offer,
                                           size_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) = delete;
  ~SharedMemory();

  // Offer with which another process can Open this memory. Valid until Settle.
  const SharedMemoryOffer& offer() const { return offer_; }
  // Closes this process's descriptor of the memory. Once both processes have
  // called Settle, no other process can open the memory. Both still have it
  // mapped.
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
