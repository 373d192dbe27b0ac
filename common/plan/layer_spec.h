#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace nereus {

enum class LayerKind {
  kFullyConnected,  // "fc": y = x W^T + b; its weight gradient may have
                    // factors.
  kConvolution,     // "conv"
  kEmbedding,       // "embedding"
  kVector,          // "vector": normalisation scales and shifts, lone biases.
};

absl::string_view LayerKindName(LayerKind kind);

// Errors: kInvalidArgument, with the name and the known ones.
absl::StatusOr<LayerKind> ParseLayerKind(absl::string_view name);

// One layer as synchronisation sees it: a weight matrix and what travels with
// it (bias, or normalisation scale and shift), flat in memory, the matrix
// (row-major M x N) first.
struct LayerSpec {
  // Unique within a model, 1 to kLayerNameBytesMax characters of printable
  // ASCII, so that it can stand in any message, file or table.
  std::string name;
  LayerKind kind = LayerKind::kVector;

  // The matrix: M outputs times N inputs. A convolution's N is in_channels /
  // groups * kernel height * kernel width.
  int64_t m = 0;
  int64_t n = 0;

  // Elements in all, m * n and what travels with it. A fully connected layer
  // has either m * n or, with its bias, m * n + m.
  int64_t parameters = 0;

  // K of the papers: rows of the layer's input on one worker in one step. The
  // batch for a network of images, batch * sequence length in a transformer.
  int64_t rows = 0;

  // True if every worker pushes this layer by its factors in every step, so
  // that a plan may send them instead of the gradient. Fully connected layers
  // only.
  bool has_factors = false;

  bool operator==(const LayerSpec&) const = default;
};

// Limits on what a model from a file or from the network may be.
inline constexpr int64_t kLayerNameBytesMax = 256;
inline constexpr int64_t kLayersMax = 65536;
inline constexpr int64_t kLayerParametersMax = int64_t{1} << 40;
inline constexpr int64_t kModelParametersMax = int64_t{1} << 40;
inline constexpr int64_t kLayerRowsMax = int64_t{1} << 30;

// "fc6 fc 4096x25088, 102764544 parameters, 32 rows", for messages.
std::string DescribeLayer(const LayerSpec& layer);

// OK if `name` could name a layer. Errors: kInvalidArgument, with the name as
// far as it can be shown.
absl::Status ValidateLayerName(absl::string_view name);

// OK if `layer` alone could be part of a model: a name, sizes in range and
// consistent. Errors: kInvalidArgument, naming the layer and its values.
absl::Status ValidateLayer(const LayerSpec& layer);

// OK if `layers` could be a model: 1 to kLayersMax valid layers, unique names,
// at most kModelParametersMax elements in all. Errors: kInvalidArgument, naming
// the layer and its values.
absl::Status ValidateLayers(absl::Span<const LayerSpec> layers);

// A 64-bit fingerprint (FNV-1a) of every field of every layer, in order: equal
// for two processes that mean the same model, and by all odds different
// otherwise. The same on every machine.
uint64_t ModelSignature(absl::Span<const LayerSpec> layers);

// OK if both are the same model. Errors: kFailedPrecondition, naming the first
// layer that differs and both its shapes; `theirs_name` says whose `theirs` is.
absl::Status CompareModels(absl::Span<const LayerSpec> ours,
                           absl::Span<const LayerSpec> theirs,
                           absl::string_view theirs_name);

}  // namespace nereus
