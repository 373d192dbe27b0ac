#pragma once

#include <cstddef>
#include <cstdint>

namespace nereus {

// CRC-32C (Castagnoli, RFC 3720) of `bytes` bytes at `data`, by ISA-L in
// hardware where there is any. Continue a checksum over several pieces with
// ExtendCrc32c.
uint32_t Crc32c(const void* data, size_t bytes);
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes);

}  // namespace nereus
