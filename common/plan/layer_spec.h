#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"

namespace nereus {

class JsonFields;

// Kind of a layer. Synchronisation and cost depend on it.
enum class LayerKind {
  // "fc": y = x W^T + b. Its gradient may have factors (has_factors).
  kFullyConnected,
  kConvolution,  // "conv": the matrix has one row for each output channel.
  kEmbedding,    // "embedding": the matrix has a row for each word.
  kVector,       // "vector": normalisation scales and shifts, lone biases.
};

// Returns the name of `kind` in model tables, such as "fc".
absl::string_view LayerKindName(LayerKind kind);

// Returns the kind that is called `name`. Errors: kInvalidArgument, with the
// name and the known names.
absl::StatusOr<LayerKind> ParseLayerKind(absl::string_view name);

// Values of LayerSpec::rows that are no number of rows.
//
// The rows are not known yet: a job learns them from its workers (FactorRows).
inline constexpr int64_t kRowsNotKnown = 0;
// A worker of the job has found that the layer's gradient is no product of
// factors. The layer then goes as a dense gradient for the rest of the job.
inline constexpr int64_t kFactorsLost = -1;

// Shape of one layer: a weight matrix and the values that travel with it (bias,
// or normalisation scale and shift). All values lie in one array, first the
// matrix (M x N, row-major). All workers must have the same layers in the same
// order; the coordinator refuses a worker that differs. A value type.
struct LayerSpec {
  // Name, unique within a model: 1 to kLayerNameBytesMax characters of
  // printable ASCII, so that it can stand in any message, file or table.
  std::string name;
  LayerKind kind = LayerKind::kVector;  // Kind of the layer.

  // M, the number of rows of the matrix; in an "fc" or "conv": outputs. >= 1.
  int64_t m = 0;
  // N, the number of columns of the matrix; in an "fc": inputs. For a
  // convolution: in_channels / groups * kernel height * kernel width. >= 1.
  int64_t n = 0;

  // Number of all elements: those of the matrix, m * n, and the values beside
  // it. A fully connected layer has m * n without a bias, m * n + m with one.
  int64_t parameters = 0;

  // K of the papers: number of rows of the layer's input on one worker in one
  // step. In an image network, a fully connected layer has as many rows as the
  // worker has samples, and a convolution has one for each sample and pixel of
  // its output. In a transformer, a layer has one row for each token. With
  // has_factors also kRowsNotKnown or kFactorsLost. In a running job this is
  // the only field that changes, and only together with the plan: a job learns
  // rows, and a layer loses its factors.
  int64_t rows = kRowsNotKnown;

  // True if workers push the factors of this layer: two matrices, K x M and
  // K x N, whose product is the gradient of the weight. A plan may then send
  // the factors instead of the gradient, if K is known. In a step with more
  // than K rows a worker pushes the gradient. Only a fully connected layer may
  // have factors. This never changes in a job, not even if the layer loses its
  // factors: the places of parameters on the servers depend on it (Placement).
  bool has_factors = false;

  // True if the gradient has factors, and K is known: a plan may send them.
  bool may_send_factors() const { return has_factors && rows > 0; }

  bool operator==(const LayerSpec&) const = default;
};

// Limits on a model from a file or from the network. With them, the sums and
// products of a model's sizes fit into WideInteger (wide_integer.h).
inline constexpr int64_t kLayerNameBytesMax = 256;
inline constexpr int64_t kLayersMax = 65536;
inline constexpr int64_t kLayerParametersMax = int64_t{1} << 40;
inline constexpr int64_t kModelParametersMax = int64_t{1} << 40;
inline constexpr int64_t kLayerRowsMax = int64_t{1} << 30;

// Reads or writes the fields of a layer as JSON, except "has_factors". Reading
// checks each field by itself: call ValidateLayer afterwards.
void ListLayerFields(JsonFields& fields, LayerSpec& layer);

// Returns the text that describes a layer in messages: "fc6 fc 4096x25088,
// 102764544 parameters, 32 rows". With has_factors, ", with factors" follows,
// or what has become of them.
std::string DescribeLayer(const LayerSpec& layer);

// Returns OK if `name` may be the name of a layer. Errors: kInvalidArgument,
// with the name, escaped and cut.
absl::Status ValidateLayerName(absl::string_view name);

// Returns OK if `layer` may be part of a model: its name is valid, its sizes
// are in range and consistent, and only a fully connected layer has factors.
// Errors: kInvalidArgument, naming the layer and the wrong value.
absl::Status ValidateLayer(const LayerSpec& layer);

// Returns OK if `layers` may be a model: 1 to kLayersMax valid layers, unique
// names, at most kModelParametersMax elements in all. Errors: kInvalidArgument,
// naming the wrong layer or number.
absl::Status ValidateLayers(absl::Span<const LayerSpec> layers);

// Returns a 64-bit hash (FNV-1a) of every field of every layer, in order. The
// hash is the same in every process, so two processes of one epoch can compare
// their models by it. It detects mistakes, not attacks.
uint64_t ModelSignature(absl::Span<const LayerSpec> layers);

// Returns OK if `ours` and `theirs` are the same model. Errors:
// kFailedPrecondition. The message describes the first layer that differs, as
// in `theirs` and as in `ours`, or the first layer that one of them lacks.
// `theirs_name` is the name of the process that has `theirs`.
absl::Status CompareModels(absl::Span<const LayerSpec> ours,
                           absl::Span<const LayerSpec> theirs,
                           absl::string_view theirs_name);

// Returns the model `layers` of a worker, with the rows that the model `job` of
// a running job has learnt: in each layer of which the worker does not know the
// rows, or that has lost its factors in the job, the rows become those of the
// job. Other differences stay, for CompareModels.
std::vector<LayerSpec> WithRowsOf(absl::Span<const LayerSpec> job,
                                  absl::Span<const LayerSpec> layers);

}  // namespace nereus
