#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"

namespace nereus {

// The safetensors format (github.com/huggingface/safetensors, "Format") for
// float32 tensors. A file has three parts: the length of the header, 8 bytes,
// little-endian; the header, a JSON object with the tensors' names, shapes and
// places; and the values, little-endian, row-major, one tensor after the other.

// Place of one float32 tensor in a file.
struct SafetensorsTensor {
  std::string name;            // UTF-8; not "__metadata__".
  std::vector<int64_t> shape;  // Extents, each >= 0; empty: a single value.
  int64_t offset = 0;          // First byte, from the start of the data.
  int64_t bytes = 0;           // Length of the values.

  bool operator==(const SafetensorsTensor&) const = default;
};

// Header of a file.
struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // Sorted by offset; without holes.
  std::map<std::string, std::string> metadata;  // "__metadata__".
  int64_t data_offset = 0;  // Byte of the file at which the data begins.

  bool operator==(const SafetensorsHeader&) const = default;
};

// Number of bytes before the header.
inline constexpr int64_t kSafetensorsPrefixBytes = 8;

// Length in bytes of the longest header that the format allows.
inline constexpr int64_t kSafetensorsHeaderBytesMax = 100'000'000;

// Largest number of dimensions of a tensor here.
inline constexpr int kSafetensorsDimensionsMax = 16;

// Returns the start of a file, up to its data. The data then begins at a
// multiple of 64 bytes, so that readers that map the file find aligned values.
//
// `tensors`: in the order of their data. Their offset and bytes are ignored;
// they follow from the shapes. Errors: kInvalidArgument: a name that comes
// twice or is reserved; a name or metadata that is not UTF-8; an impossible
// shape; a header above the limit.
absl::StatusOr<std::string> EncodeSafetensorsHeader(
    absl::Span<const SafetensorsTensor> tensors,
    const std::map<std::string, std::string>& metadata);

// Returns the length of the header of a file of `file_bytes`, from the file's
// first kSafetensorsPrefixBytes. The input may be hostile, as for all decoders
// here. Errors: kInvalidArgument: too few bytes, or a length above the limit or
// above the rest of the file.
absl::StatusOr<int64_t> DecodeSafetensorsPrefix(absl::string_view prefix,
                                                int64_t file_bytes);

// Reads `header`, the bytes after the prefix in a file of `file_bytes`.
// Stricter than the format's text: tensors have no other fields, and only
// spaces may follow the object.
//
// Errors: kInvalidArgument, naming the tensor and both values: not JSON of that
// form; a name that comes twice; another type than F32; offsets that do not fit
// the shape, overlap, leave a hole or do not end with the file.
absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(
    absl::string_view header, int64_t file_bytes);

}  // namespace nereus
