#include "worker/c_api/structs.h"

#include <algorithm>
#include <cstring>

namespace nereus {
namespace {

// Largest size, in bytes, that a caller may set: a larger size is a mistake,
// such as a struct that was never initialised.
constexpr size_t kStructBytesMax = 4096;

// Returns the size that the caller has set in its struct.
absl::StatusOr<size_t> CheckedSize(absl::string_view name, const void* data,
                                   size_t size_min, size_t alignment) {
  if (data == nullptr) return InvalidArgumentError(name, " is NULL");
  uint32_t size = 0;
  std::memcpy(&size, data, sizeof(size));
  if (size >= size_min && size <= kStructBytesMax && size % alignment == 0) {
    return size;
  }
  return InvalidArgumentError(
      name, ".size is ", size, ", must be a multiple of ", alignment, ", from ",
      size_min, " to ", kStructBytesMax, ": set it to sizeof the struct");
}

}  // namespace

absl::Status CopyStructIn(absl::string_view name, const void* in,
                          size_t size_min, size_t alignment, void* out,
                          size_t out_size) {
  const size_t size = NEREUS_TRY(CheckedSize(name, in, size_min, alignment));
  const auto* const bytes = static_cast<const char*>(in);
  for (size_t i = out_size; i < size; ++i) {
    if (bytes[i] == 0) continue;
    return InvalidArgumentError(
        name, " has a value at byte ", i, ", and this library knows only the ",
        out_size,
        " bytes of an older nereus.h: install a newer library, or "
        "set the new fields to zero");
  }
  std::memset(out, 0, out_size);
  std::memcpy(out, in, std::min(size, out_size));
  return absl::OkStatus();
}

absl::Status CheckStructOut(absl::string_view name, const void* out,
                            size_t size_min, size_t alignment) {
  return CheckedSize(name, out, size_min, alignment).status();
}

absl::Status CopyStructOut(absl::string_view name, const void* value,
                           size_t value_size, size_t size_min, size_t alignment,
                           void* out) {
  const size_t size = NEREUS_TRY(CheckedSize(name, out, size_min, alignment));
  const size_t known = std::min(size, value_size);
  constexpr size_t kHead = sizeof(uint32_t);
  auto* const bytes = static_cast<char*>(out);
  std::memcpy(bytes + kHead, static_cast<const char*>(value) + kHead,
              known - kHead);
  std::memset(bytes + known, 0, size - known);
  return absl::OkStatus();
}

}  // namespace nereus
