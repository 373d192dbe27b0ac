#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace nereus {

// Copies the caller's struct at `in`, which begins with its size as uint32_t,
// to `out`, which has `out_size` bytes. A caller with an older header has a
// shorter struct: the missing fields become zero. A caller with a newer header
// has a longer struct: the fields that this library does not know must be zero.
// `size_min`: size of the struct in the first header that had it. `alignment`:
// alignment of the struct; the size of the struct is a multiple of it in every
// header. Errors: kInvalidArgument, with `name`.
absl::Status CopyStructIn(absl::string_view name, const void* in,
                          size_t size_min, size_t alignment, void* out,
                          size_t out_size);

// Copies `value`, of `value_size` bytes, to the caller's struct at `out`. The
// first field there, the size, stays as it is. Fields of the caller that this
// library does not know become zero. Errors: kInvalidArgument, with `name`.
absl::Status CopyStructOut(absl::string_view name, const void* value,
                           size_t value_size, size_t size_min, size_t alignment,
                           void* out);

// Returns the error that CopyStructOut would return, and writes nothing.
absl::Status CheckStructOut(absl::string_view name, const void* out,
                            size_t size_min, size_t alignment);

// Returns a copy of the caller's struct (CopyStructIn).
template <typename T>
absl::StatusOr<T> ReadStruct(absl::string_view name, const T* in,
                             size_t size_min) {
  T value = {};
  NEREUS_TRY(CopyStructIn(name, in, size_min, alignof(T), &value, sizeof(T)));
  return value;
}

// Writes `value` to the caller's struct (CopyStructOut).
template <typename T>
absl::Status WriteStruct(absl::string_view name, const T& value,
                         size_t size_min, T* out) {
  return CopyStructOut(name, &value, sizeof(T), size_min, alignof(T), out);
}

}  // namespace nereus
