#pragma once

#include <cstddef>
#include <cstdint>

namespace nereus {

// Returns the CRC-32C (Castagnoli, RFC 3720) of `bytes` bytes at `data`. ISA-L
// computes it, by the CPU's instructions for it if there are any. ExtendCrc32c
// continues a checksum: `crc` is that of the bytes before `data`, 0 if there
// are none.
uint32_t Crc32c(const void* data, size_t bytes);
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes);

}  // namespace nereus
