#include "common/base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <limits>

namespace nereus {

uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes) {
  // ISA-L takes the length as an int and the data as a pointer to non-const.
  // The standard inverts the checksum before the first byte and after the last
  // one; ISA-L leaves that to its caller.
  auto* next = static_cast<unsigned char*>(const_cast<void*>(data));
  uint32_t state = ~crc;
  while (bytes > 0) {
    const size_t piece =
        std::min<size_t>(bytes, std::numeric_limits<int>::max());
    state = crc32_iscsi(next, static_cast<int>(piece), state);
    next += piece;
    bytes -= piece;
  }
  return ~state;
}

uint32_t Crc32c(const void* data, size_t bytes) {
  return ExtendCrc32c(0, data, bytes);
}

}  // namespace nereus
