#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/protocol/job.h"

namespace nereus {

// Values that a tensor in a shard's file has: elements [first, last) of a
// layer's parameters, or of one array of the layer's optimizer state.
struct TensorName {
  std::string layer;  // Name of the layer.
  // True if the tensor has all elements of the layer. Then `first` and `last`
  // are 0 and are not part of the tensor's name.
  bool whole = true;
  int64_t first = 0;  // First element.
  int64_t last = 0;   // Element after the last one.
  // Name of the array of state (StateNames); empty: parameters.
  std::string state;

  bool operator==(const TensorName&) const = default;
};

// Returns the names of the arrays of a layer's state, in order. With
// OptimizerPlace::kServer the names are those of OptimizerStateName. If the
// callers run the optimizer, the names are "state0", "state1" and so on.
// REQUIRES: with kServer, `state_arrays` is OptimizerStateCount(rule).
std::vector<std::string> StateNames(OptimizerPlace place, UpdateRule rule,
                                    int state_arrays);

// Returns the name of a tensor in a file, for example "fc6", "fc6.velocity",
// "fc6[524288:1048576]" or "fc6[524288:1048576].velocity".
//
// Two different tensors must have different names, whatever names the layers
// have. So some characters of a layer's name are escaped, for example "%" as
// "%25": each "%", "[" and "]"; the "." before a state's name at the end
// (".velocity"); and the first "_" if the layer's name is "__metadata__".
std::string EncodeTensorName(const TensorName& name);

// Returns the TensorName for which EncodeTensorName returns `text`. Errors:
// kInvalidArgument, there is none.
absl::StatusOr<TensorName> DecodeTensorName(absl::string_view text);

// The safetensors format (github.com/huggingface/safetensors, "Format") for
// float32 tensors. A file has three parts: a prefix of 8 bytes, which is the
// length of the header, little-endian; the header, a JSON object with the
// tensors' names, shapes and places; and the data, which are the values,
// little-endian and row-major, one tensor after the other.

// Place of one float32 tensor in a file.
struct SafetensorsTensor {
  std::string name;            // UTF-8; not "__metadata__".
  std::vector<int64_t> shape;  // Lengths, each >= 0; empty: a single value.
  int64_t offset = 0;  // First byte, counted from the start of the data.
  int64_t bytes = 0;   // Number of bytes of the values.

  bool operator==(const SafetensorsTensor&) const = default;
};

// Header of a file.
struct SafetensorsHeader {
  // Tensors in the order of their data, with no bytes between them.
  std::vector<SafetensorsTensor> tensors;
  std::map<std::string, std::string> metadata;  // Field "__metadata__".
  int64_t data_offset = 0;  // Byte of the file at which the data begins.

  bool operator==(const SafetensorsHeader&) const = default;
};

// Number of bytes of the prefix.
inline constexpr int64_t kSafetensorsPrefixBytes = 8;

// Length in bytes of the longest header that the format allows.
inline constexpr int64_t kSafetensorsHeaderBytesMax = 100'000'000;

// Largest number of dimensions of a tensor. This limit is ours; the format has
// none.
inline constexpr int kSafetensorsDimensionsMax = 16;

// Returns the prefix and the header of a file. Spaces at the end of the header
// make the data begin at a multiple of 64 bytes. So a program that maps the
// file into memory finds aligned values.
//
// `tensors`: tensors in the order of their data. Their `offset` and `bytes` are
// not read, because they follow from the shapes. Errors: kInvalidArgument: a
// name comes twice or is reserved; a name or metadata is not UTF-8; a shape is
// impossible; the header is longer than the limit.
absl::StatusOr<std::string> EncodeSafetensorsHeader(
    absl::Span<const SafetensorsTensor> tensors,
    const std::map<std::string, std::string>& metadata);

// Returns the length of the header, in bytes. `prefix` is the prefix of a file
// of `file_bytes` bytes. The input may be hostile, as for all decoders here.
// Errors: kInvalidArgument: `prefix` is too short, or the length is above the
// limit or longer than the rest of the file.
absl::StatusOr<int64_t> DecodeSafetensorsPrefix(absl::string_view prefix,
                                                int64_t file_bytes);

// Reads `header`, the header of a file of `file_bytes` bytes. This function is
// stricter than the text of the format: a tensor must have no fields but its
// type, shape and offsets, and only spaces may come behind the JSON object.
//
// Errors: kInvalidArgument, naming the tensor and the values that do not fit:
// the header is not JSON of the form of the format; a name comes twice; a type
// is not F32; offsets do not fit the shape; the tensors overlap, leave bytes
// between them or do not end at the end of the file.
absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(
    absl::string_view header, int64_t file_bytes);

}  // namespace nereus
