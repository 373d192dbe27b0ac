#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"

namespace nereus {

class JsonFields;

// Kind of a layer, as far as synchronisation and cost depend on it.
enum class LayerKind {
  // "fc": y = x W^T + b. Its weight gradient may have factors.
  kFullyConnected,
  kConvolution,  // "conv": the matrix has one row for each output channel.
  kEmbedding,    // "embedding": one row for each word.
  kVector,       // "vector": normalisation scales and shifts, lone biases.
};

// Returns the name in model tables: "fc".
absl::string_view LayerKindName(LayerKind kind);

// Returns the kind of that name. Errors: kInvalidArgument, with the name and
// the known ones.
absl::StatusOr<LayerKind> ParseLayerKind(absl::string_view name);

// Shape of one layer: a weight matrix and the values that travel with it (bias,
// or normalisation scale and shift). They lie flat in memory, the matrix
// (row-major, M x N) first. All workers must have the same layers in the same
// order; the coordinator refuses a worker that differs. A value type.
struct LayerSpec {
  // Name, unique within a model: 1 to kLayerNameBytesMax characters of
  // printable ASCII, so that it can stand in any message, file or table.
  std::string name;
  LayerKind kind = LayerKind::kVector;  // Kind of the layer.

  // M, the number of rows of the matrix: outputs. >= 1.
  int64_t m = 0;
  // N, the number of columns of the matrix: inputs. For a convolution:
  // in_channels / groups * kernel height * kernel width. >= 1.
  int64_t n = 0;

  // Number of elements in all: m * n and the values outside of the matrix. A
  // fully connected layer has m * n or, with its bias, m * n + m.
  int64_t parameters = 0;

  // K of the papers: number of rows of the layer's input on one worker in one
  // step. The batch size in a network of images, batch size times sequence
  // length in a transformer.
  int64_t rows = 0;

  // True if every worker pushes this layer by its factors in every step, so
  // that a plan may send them instead of the gradient. Fully connected layers
  // only.
  bool has_factors = false;

  bool operator==(const LayerSpec&) const = default;
};

// Limits on a model from a file or from the network. Sums and products of a
// valid model's sizes fit the plan's integers.
inline constexpr int64_t kLayerNameBytesMax = 256;
inline constexpr int64_t kLayersMax = 65536;
inline constexpr int64_t kLayerParametersMax = int64_t{1} << 40;
inline constexpr int64_t kModelParametersMax = int64_t{1} << 40;
inline constexpr int64_t kLayerRowsMax = int64_t{1} << 30;

// Lists the fields of a layer in JSON, except for "has_factors". A reader
// checks the ranges, and ValidateLayer the rest.
void ListLayerFields(JsonFields& fields, LayerSpec& layer);

// Returns the layer for messages: "fc6 fc 4096x25088, 102764544 parameters, 32
// rows".
std::string DescribeLayer(const LayerSpec& layer);

// Returns OK if `name` may be the name of a layer. Errors: kInvalidArgument,
// with the name, escaped and cut.
absl::Status ValidateLayerName(absl::string_view name);

// Returns OK if `layer` by itself may be part of a model: its name is valid,
// its sizes are in range and consistent. Errors: kInvalidArgument, naming the
// layer and its values.
absl::Status ValidateLayer(const LayerSpec& layer);

// Returns OK if `layers` may be a model: 1 to kLayersMax valid layers, unique
// names, at most kModelParametersMax elements in all. Errors: kInvalidArgument,
// naming the layer and its values.
absl::Status ValidateLayers(absl::Span<const LayerSpec> layers);

// Returns a 64-bit hash (FNV-1a) of every field of every layer, in order. It is
// the same on every machine, so two processes can compare their models by it.
// The hash detects mistakes, not attacks.
uint64_t ModelSignature(absl::Span<const LayerSpec> layers);

// Returns OK if both are the same model. Errors: kFailedPrecondition, naming
// the first layer that differs and both its shapes; `theirs_name` names the
// process that has `theirs`.
absl::Status CompareModels(absl::Span<const LayerSpec> ours,
                           absl::Span<const LayerSpec> theirs,
                           absl::string_view theirs_name);

}  // namespace nereus
