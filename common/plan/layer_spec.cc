#include "common/plan/layer_spec.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "common/base/json_fields.h"
#include "common/base/names.h"
#include "common/base/status.h"

namespace nereus {
namespace {

constexpr Named<LayerKind> kNames[] = {{LayerKind::kFullyConnected, "fc"},
                                       {LayerKind::kConvolution, "conv"},
                                       {LayerKind::kEmbedding, "embedding"},
                                       {LayerKind::kVector, "vector"}};

// Returns a name for messages, escaped and cut, because a name from a peer or a
// file may contain any bytes.
std::string PrintableName(absl::string_view name) {
  std::string text = absl::CHexEscape(name.substr(0, kLayerNameBytesMax));
  if (name.size() > kLayerNameBytesMax) text += "...";
  return text;
}

bool IsPrintable(char c) { return c >= ' ' && c <= '~'; }

// Returns OK if 1 <= value <= max.
absl::Status ValidateRange(const LayerSpec& layer, absl::string_view field,
                           int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return InvalidArgumentError("layer ", layer.name, " has ", field, " ", value,
                              ", not from 1 to ", max);
}

// Returns OK if the layer may have this number of rows.
absl::Status ValidateRows(const LayerSpec& layer) {
  const bool is_learnt = layer.has_factors && (layer.rows == kRowsNotKnown ||
                                               layer.rows == kFactorsLost);
  if (is_learnt) return absl::OkStatus();
  return ValidateRange(layer, "rows", layer.rows, kLayerRowsMax);
}

// Returns the part of a layer's description about its rows and factors.
std::string DescribeRows(const LayerSpec& layer) {
  if (layer.has_factors && layer.rows == kRowsNotKnown) {
    return "with factors, rows not known yet";
  }
  if (layer.has_factors && layer.rows == kFactorsLost) {
    return "without factors, which it had";
  }
  return absl::StrCat(layer.rows, " rows",
                      layer.has_factors ? ", with factors" : "");
}

// Running FNV-1a hash, 64 bits.
class Fingerprint {
 public:
  // Adds the length first, so that "ab", "c" and "a", "bc" differ.
  void Add(absl::string_view text) {
    Add(std::ssize(text));
    for (const char c : text) AddByte(static_cast<unsigned char>(c));
  }

  // Adds the lowest byte first, so that the machine's byte order does not
  // matter.
  void Add(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    for (int shift = 0; shift < 64; shift += 8) AddByte((bits >> shift) & 0xff);
  }

  uint64_t value() const { return value_; }

 private:
  void AddByte(uint64_t byte) { value_ = (value_ ^ byte) * 0x100000001b3; }

  // Hash so far; FNV's offset basis at first.
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace

absl::string_view LayerKindName(LayerKind kind) { return NameOf<kNames>(kind); }

absl::StatusOr<LayerKind> ParseLayerKind(absl::string_view name) {
  return ParseName<kNames>("layer kind", name);
}

void ListLayerFields(JsonFields& fields, LayerSpec& layer) {
  fields.Text("name", layer.name);
  fields.Name("kind", layer.kind, LayerKindName, ParseLayerKind);
  fields.Integer("m", layer.m, 1, kLayerParametersMax);
  fields.Integer("n", layer.n, 1, kLayerParametersMax);
  fields.Integer("parameters", layer.parameters, 1, kLayerParametersMax);
  fields.Integer("rows", layer.rows, kFactorsLost, kLayerRowsMax);
}

std::string DescribeLayer(const LayerSpec& layer) {
  return absl::StrCat(PrintableName(layer.name), " ", LayerKindName(layer.kind),
                      " ", layer.m, "x", layer.n, ", ", layer.parameters,
                      " parameters, ", DescribeRows(layer));
}

absl::Status ValidateLayerName(absl::string_view name) {
  if (name.empty()) {
    return InvalidArgumentError("a layer has an empty name");
  }
  if (name.size() > kLayerNameBytesMax) {
    return InvalidArgumentError("the name of layer ", PrintableName(name),
                                " has ", name.size(), " bytes, at most ",
                                kLayerNameBytesMax);
  }
  if (!absl::c_all_of(name, IsPrintable)) {
    return InvalidArgumentError("the name of layer ", PrintableName(name),
                                " is not printable ASCII");
  }
  return absl::OkStatus();
}

absl::Status ValidateLayer(const LayerSpec& layer) {
  NEREUS_TRY(ValidateLayerName(layer.name));
  if (LayerKindName(layer.kind) == "unknown") {
    return InvalidArgumentError("layer ", layer.name,
                                " has unknown kind number ",
                                static_cast<int>(layer.kind));
  }
  NEREUS_TRY(ValidateRange(layer, "m", layer.m, kLayerParametersMax));
  NEREUS_TRY(ValidateRange(layer, "n", layer.n, kLayerParametersMax));
  NEREUS_TRY(ValidateRange(layer, "parameters", layer.parameters,
                           kLayerParametersMax));
  NEREUS_TRY(ValidateRows(layer));
  // Compares m * n with the parameters by a division, because m * n of a
  // hostile layer may overflow.
  if (layer.m > layer.parameters / layer.n) {
    return InvalidArgumentError("layer ", layer.name, " has ", layer.parameters,
                                " parameters, fewer than its matrix ", layer.m,
                                "x", layer.n, " has elements");
  }
  const int64_t beside_matrix = layer.parameters - layer.m * layer.n;
  if (layer.kind == LayerKind::kFullyConnected && beside_matrix != 0 &&
      beside_matrix != layer.m) {
    return InvalidArgumentError("fully connected layer ", layer.name, " has ",
                                layer.parameters, " parameters, its matrix ",
                                layer.m, "x", layer.n, " ", layer.m * layer.n,
                                ", with a bias ", layer.m * layer.n + layer.m);
  }
  if (layer.has_factors && layer.kind != LayerKind::kFullyConnected) {
    return InvalidArgumentError("layer ", DescribeLayer(layer),
                                ": only fully connected layers have factors");
  }
  return absl::OkStatus();
}

absl::Status ValidateLayers(absl::Span<const LayerSpec> layers) {
  if (layers.empty() || layers.size() > kLayersMax) {
    return InvalidArgumentError("a model has ", layers.size(),
                                " layers, not from 1 to ", kLayersMax);
  }
  absl::flat_hash_set<absl::string_view> names;
  int64_t total = 0;
  for (const LayerSpec& layer : layers) {
    NEREUS_TRY(ValidateLayer(layer));
    if (!names.insert(layer.name).second) {
      return InvalidArgumentError("two layers have the name ", layer.name);
    }
    total += layer.parameters;
    if (total > kModelParametersMax) {
      return InvalidArgumentError("the model has ", total,
                                  " parameters with layer ", layer.name,
                                  ", at most ", kModelParametersMax);
    }
  }
  return absl::OkStatus();
}

// Hashes the names of kinds and not their numbers, because two builds may
// number the enum differently.
uint64_t ModelSignature(absl::Span<const LayerSpec> layers) {
  Fingerprint fingerprint;
  fingerprint.Add(std::ssize(layers));
  for (const LayerSpec& layer : layers) {
    fingerprint.Add(layer.name);
    fingerprint.Add(LayerKindName(layer.kind));
    fingerprint.Add(layer.m);
    fingerprint.Add(layer.n);
    fingerprint.Add(layer.parameters);
    fingerprint.Add(layer.rows);
    fingerprint.Add(static_cast<int64_t>(layer.has_factors));
  }
  return fingerprint.value();
}

absl::Status CompareModels(absl::Span<const LayerSpec> ours,
                           absl::Span<const LayerSpec> theirs,
                           absl::string_view theirs_name) {
  // Reports the first difference only: if a layer in the middle is missing, all
  // later layers differ.
  const size_t common = std::min(ours.size(), theirs.size());
  for (size_t i = 0; i < common; ++i) {
    if (ours[i] == theirs[i]) continue;
    return FailedPreconditionError("layer ", i, " of ", theirs_name, " is ",
                                   DescribeLayer(theirs[i]), "; ours is ",
                                   DescribeLayer(ours[i]));
  }
  if (ours.size() == theirs.size()) return absl::OkStatus();
  const bool lacks = theirs.size() < ours.size();
  return FailedPreconditionError(
      theirs_name, " has ", theirs.size(), " layers, we have ", ours.size(),
      lacks ? "; it lacks layer " : "; we lack layer ", common, ", ",
      DescribeLayer(lacks ? ours[common] : theirs[common]));
}

std::vector<LayerSpec> WithRowsOf(absl::Span<const LayerSpec> job,
                                  absl::Span<const LayerSpec> layers) {
  std::vector<LayerSpec> all(layers.begin(), layers.end());
  for (size_t i = 0; i < std::min(all.size(), job.size()); ++i) {
    const bool learns =
        all[i].rows == kRowsNotKnown || job[i].rows == kFactorsLost;
    if (all[i].has_factors && job[i].has_factors && learns) {
      all[i].rows = job[i].rows;
    }
  }
  return all;
}

}  // namespace nereus
