#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace nereus {

// The safetensors format (github.com/huggingface/safetensors, "Format"), of
// float32 tensors: a file is the length of a header, 8 bytes little-endian; the
// header, a JSON object, that names the tensors, their shapes and where their
// values are; and the values, little-endian, row-major, one tensor after the
// other.

// One float32 tensor.
struct SafetensorsTensor {
  std::string name;            // UTF-8; not "__metadata__".
  std::vector<int64_t> shape;  // Empty: one value. Each >= 0.
  int64_t offset = 0;  // Of the first value, bytes from the data's begin.
  int64_t bytes = 0;

  bool operator==(const SafetensorsTensor&) const = default;
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;       // By offset: no holes.
  std::map<std::string, std::string> metadata;  // "__metadata__"
  int64_t data_offset = 0;  // Where the data begins in the file, bytes.

  bool operator==(const SafetensorsHeader&) const = default;
};

// The bytes before the header.
inline constexpr int64_t kSafetensorsPrefixBytes = 8;

// The format's limit of the header that follows them.
inline constexpr int64_t kSafetensorsHeaderBytesMax = 100'000'000;

// The most dimensions that a tensor may have here.
inline constexpr int kSafetensorsDimensionsMax = 16;

// What a file begins with, up to its data, which then begins at a multiple of
// 64 bytes: readers that map the file find aligned values.
//
// `tensors`: their order is that of their data; offset and bytes are ignored,
// they follow from the shapes. Errors: kInvalidArgument: a name that is there
// twice, is reserved or is not UTF-8; a shape that is not possible; a header
// above the limit.
absl::StatusOr<std::string> EncodeSafetensorsHeader(
    absl::Span<const SafetensorsTensor> tensors,
    const std::map<std::string, std::string>& metadata);

// Bytes of the header of a file of `file_bytes`, from its first
// kSafetensorsPrefixBytes. May be hostile, as all that is decoded here. Errors:
// kInvalidArgument: too few bytes, or a length above the limit or the file's.
absl::StatusOr<int64_t> DecodeSafetensorsPrefix(absl::string_view prefix,
                                                int64_t file_bytes);

// Reads `header`, what follows the prefix in a file of `file_bytes`. Stricter
// than the format, which does not say: tensors have no other fields, and spaces
// alone may follow the object.
//
// Errors: kInvalidArgument, naming the tensor and both values: not JSON of that
// form; a name that is there twice; another type than F32; offsets that do not
// fit the shape, overlap, leave a hole or do not end with the file.
absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(
    absl::string_view header, int64_t file_bytes);

}  // namespace nereus
