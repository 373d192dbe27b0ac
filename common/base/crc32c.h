#pragma once

#include <cstddef>
#include <cstdint>

namespace nereus {

// Returns the CRC-32C checksum (Castagnoli, RFC 3720) of `bytes` bytes at
// `data`. The library ISA-L computes it, with the CPU's instructions for
// CRC-32C if the CPU has them.
uint32_t Crc32c(const void* data, size_t bytes);
// Continues a checksum: returns the checksum of two ranges of bytes, one behind
// the other. `crc`: checksum of the first range; 0 if that range is empty. The
// second range is `bytes` bytes at `data`.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes);

}  // namespace nereus
