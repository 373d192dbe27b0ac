#include "common/checkpoint/manifest.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "common/base/crc32c.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_layout.h"
#include "common/checkpoint/shown_name.h"
#include "common/checkpoint/storage.h"
#include "common/plan/cost_model.h"
#include "nlohmann/json.hpp"

// Manifests as JSON text. EncodeManifest validates, writes the fields and
// appends the checksum (EndOf). DecodeManifest goes the other way: first the
// checksum over the raw text (CheckText), then the JSON, then format and
// version, then the fields (ReadFields), then Validate. The text may be
// hostile: its length, its depth and each number are bounded before they are
// used. FieldReader keeps the first error, so that a function reads all its
// fields and asks once.

namespace nereus {
namespace {

using Json = nlohmann::ordered_json;

// Bound of contributions and bytes: large enough for any job, small enough that
// sums fit.
constexpr int64_t kCountMax = int64_t{1} << 56;

// Nesting of a manifest: the object, its lists, and the objects in them.
constexpr int kDepthMax = 3;

// Returns the end of the text: the checksum of all text before it.
std::string EndOf(absl::string_view before) {
  return absl::StrFormat(",\n  \"crc32c\": \"%08x\"\n}\n",
                         Crc32c(before.data(), before.size()));
}

// Returns the shortest decimal that gives this float again: 0.1 and not
// 0.10000000149.
double ShortDecimal(float value) {
  for (int digits = 6; digits <= 9; ++digits) {
    const std::string text = absl::StrFormat("%.*g", digits, value);
    const double decimal = std::strtod(text.c_str(), nullptr);
    if (static_cast<float>(decimal) == value) return decimal;
  }
  return value;
}

// Reader of the fields of one JSON object. It keeps the first error; fields
// that are read after it are zero.
class FieldReader {
 public:
  // `where`: name of the object in messages. `object` must outlive this.
  FieldReader(const Json& object, std::string where)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) Fail("is not a JSON object");
  }

  // Returns a whole number from `min` to `max`; 0 after an error.
  int64_t Integer(const char* name, int64_t min, int64_t max) {
    const Json* field = Find(name, Json::value_t::number_unsigned);
    if (field == nullptr) return 0;
    // No field of a manifest is negative.
    const auto value = field->get<uint64_t>();
    if (value >= static_cast<uint64_t>(min) &&
        value <= static_cast<uint64_t>(max)) {
      return static_cast<int64_t>(value);
    }
    Fail(absl::StrCat(name, " is ", value, ", not from ", min, " to ", max));
    return 0;
  }

  // Returns a number that fits a float32.
  float Float(const char* name) {
    const Json* field = Find(name, Json::value_t::number_float);
    if (field == nullptr) return 0.0f;
    const auto value = field->get<double>();
    if (std::abs(value) <= std::numeric_limits<float>::max()) {
      return static_cast<float>(value);
    }
    Fail(absl::StrCat(name, " is ", value, ", not a float32"));
    return 0.0f;
  }

  // Returns a string.
  std::string Text(const char* name) {
    const Json* field = Find(name, Json::value_t::string);
    return field == nullptr ? "" : field->get<std::string>();
  }

  // Returns a list of 1 to `count_max` items.
  const Json& List(const char* name, int64_t count_max) {
    static const Json& empty = *new Json(Json::array());
    const Json* field = Find(name, Json::value_t::array);
    if (field == nullptr) return empty;
    const auto count = static_cast<int64_t>(field->size());
    if (count >= 1 && count <= count_max) return *field;
    Fail(absl::StrCat(name, " has ", count, " items, not from 1 to ",
                      count_max));
    return empty;
  }

  // Returns an object.
  const Json& Object(const char* name) {
    static const Json& empty = *new Json(Json::object());
    const Json* field = Find(name, Json::value_t::object);
    return field == nullptr ? empty : *field;
  }

  // First error, or OK.
  const absl::Status& status() const { return status_; }

 private:
  // Returns the field if it exists with this type; else notes the error.
  const Json* Find(const char* name, Json::value_t type) {
    if (!status_.ok()) return nullptr;
    const auto field = object_.find(name);
    if (field == object_.end()) {
      Fail(absl::StrCat(name, " is missing"));
      return nullptr;
    }
    // A float may be written as an integer: "0" for 0.0.
    const bool fits =
        field->type() == type ||
        (type == Json::value_t::number_float && field->is_number());
    if (fits) return &*field;
    Fail(absl::StrCat(
        name, " is ", field->type_name(),
        field->is_number() ? absl::StrCat(" ", field->dump()) : std::string(),
        ", not ", Json(type).type_name()));
    return nullptr;
  }

  // Notes an error, unless there is one already.
  void Fail(absl::string_view message) {
    if (!status_.ok()) return;
    status_ = InvalidArgumentError(where_, ": ", message);
  }

  const Json& object_;       // Object that is read.
  const std::string where_;  // Name of the object in messages.
  absl::Status status_;      // First error.
};

absl::Status ValidateJobName(const std::string& name) {
  const bool printable =
      absl::c_all_of(name, [](char c) { return c > ' ' && c <= '~'; });
  if (!name.empty() && name.size() <= kManifestJobBytesMax && printable) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("manifest: job is ", ShownName(name),
                              ", not 1 to ", kManifestJobBytesMax,
                              " printable characters without spaces");
}

absl::Status ValidateRange(absl::string_view name, int64_t value, int64_t max) {
  if (value >= 0 && value <= max) return absl::OkStatus();
  return InvalidArgumentError("manifest: ", name, " is ", value,
                              ", not from 0 to ", max);
}

absl::Status ValidateState(const Manifest& manifest) {
  NEREUS_TRY(
      ValidateRange("state_arrays", manifest.state_arrays, kStateArraysMax));
  const UpdateRule rule = manifest.optimizer.rule;
  if (manifest.optimizer_place == OptimizerPlace::kWorker ||
      manifest.state_arrays == OptimizerStateCount(rule)) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("manifest: state_arrays is ",
                              manifest.state_arrays, ", ", UpdateRuleName(rule),
                              " has ", OptimizerStateCount(rule));
}

absl::Status ValidateFiles(absl::Span<const ManifestFile> files) {
  if (files.empty() || files.size() > kServersMax) {
    return InvalidArgumentError("manifest: files has ", files.size(),
                                " items, not from 1 to ", kServersMax);
  }
  std::set<absl::string_view> names;
  for (const ManifestFile& file : files) {
    NEREUS_TRY(ValidateStoragePart(file.name));
    NEREUS_TRY(ValidateRange(absl::StrCat("bytes of ", file.name), file.bytes,
                             kCountMax));
    if (!names.insert(file.name).second) {
      return InvalidArgumentError("manifest: file ", file.name,
                                  " is there twice");
    }
  }
  return absl::OkStatus();
}

Json OptimizerJson(const OptimizerOptions& optimizer) {
  Json json;
  json["rule"] = std::string(UpdateRuleName(optimizer.rule));
  json["learning_rate"] = ShortDecimal(optimizer.learning_rate);
  json["momentum"] = ShortDecimal(optimizer.momentum);
  json["weight_decay"] = ShortDecimal(optimizer.weight_decay);
  json["beta1"] = ShortDecimal(optimizer.beta1);
  json["beta2"] = ShortDecimal(optimizer.beta2);
  json["epsilon"] = ShortDecimal(optimizer.epsilon);
  return json;
}

Json LayerJson(const LayerSpec& layer) {
  Json json;
  json["name"] = layer.name;
  json["kind"] = std::string(LayerKindName(layer.kind));
  json["m"] = layer.m;
  json["n"] = layer.n;
  json["parameters"] = layer.parameters;
  json["rows"] = layer.rows;
  return json;
}

Json FileJson(const ManifestFile& file) {
  Json json;
  json["name"] = file.name;
  json["bytes"] = file.bytes;
  json["crc32c"] = file.crc32c;
  return json;
}

absl::StatusOr<OptimizerOptions> ReadOptimizer(const Json& json) {
  FieldReader fields(json, "manifest: optimizer");
  OptimizerOptions optimizer;
  const std::string rule = fields.Text("rule");
  optimizer.learning_rate = fields.Float("learning_rate");
  optimizer.momentum = fields.Float("momentum");
  optimizer.weight_decay = fields.Float("weight_decay");
  optimizer.beta1 = fields.Float("beta1");
  optimizer.beta2 = fields.Float("beta2");
  optimizer.epsilon = fields.Float("epsilon");
  NEREUS_TRY(fields.status());
  optimizer.rule = NEREUS_TRY(ParseUpdateRule(rule));
  return optimizer;
}

absl::StatusOr<LayerSpec> ReadLayer(const Json& json, size_t index) {
  FieldReader fields(json, absl::StrCat("manifest: layer ", index));
  LayerSpec layer;
  layer.name = fields.Text("name");
  const std::string kind = fields.Text("kind");
  layer.m = fields.Integer("m", 1, kLayerParametersMax);
  layer.n = fields.Integer("n", 1, kLayerParametersMax);
  layer.parameters = fields.Integer("parameters", 1, kLayerParametersMax);
  layer.rows = fields.Integer("rows", 1, kLayerRowsMax);
  NEREUS_TRY(fields.status());
  layer.kind = NEREUS_TRY(ParseLayerKind(kind));
  return layer;
}

absl::StatusOr<ManifestFile> ReadFileEntry(const Json& json, size_t index) {
  FieldReader fields(json, absl::StrCat("manifest: file ", index));
  ManifestFile file;
  file.name = fields.Text("name");
  file.bytes = fields.Integer("bytes", 0, kCountMax);
  file.crc32c = static_cast<uint32_t>(fields.Integer("crc32c", 0, UINT32_MAX));
  NEREUS_TRY(fields.status());
  return file;
}

// Checks length and checksum, before the JSON is parsed. Errors:
// kInvalidArgument.
absl::Status CheckText(absl::string_view text) {
  if (std::ssize(text) > kManifestBytesMax) {
    return InvalidArgumentError("manifest: ", text.size(), " bytes, at most ",
                                kManifestBytesMax);
  }
  const size_t end_bytes = EndOf("").size();
  if (text.size() < end_bytes) {
    return InvalidArgumentError("manifest: ", text.size(),
                                " bytes, its checksum alone has ", end_bytes);
  }
  const absl::string_view before = text.substr(0, text.size() - end_bytes);
  const std::string expected = EndOf(before);
  const absl::string_view found = text.substr(before.size());
  if (found == expected) return absl::OkStatus();
  return InvalidArgumentError("manifest: torn or changed: its ", text.size(),
                              " bytes end in ", ShownName(found),
                              ", not in the checksum of what is before it, ",
                              ShownName(expected));
}

absl::StatusOr<Manifest> ReadFields(const Json& json) {
  FieldReader fields(json, "manifest");
  Manifest manifest;
  manifest.job = fields.Text("job");
  manifest.round = fields.Integer("round", 0, kCheckpointRoundMax);
  manifest.contributions_before =
      fields.Integer("contributions_before", 0, kCountMax);
  const std::string place = fields.Text("optimizer_place");
  manifest.state_arrays =
      static_cast<int32_t>(fields.Integer("state_arrays", 0, kStateArraysMax));
  const Json& optimizer = fields.Object("optimizer");
  const Json& layers = fields.List("layers", kLayersMax);
  const Json& files = fields.List("files", kServersMax);
  NEREUS_TRY(fields.status());
  manifest.optimizer_place = NEREUS_TRY(ParseOptimizerPlace(place));
  manifest.optimizer = NEREUS_TRY(ReadOptimizer(optimizer));
  for (const Json& item : layers) {
    LayerSpec layer = NEREUS_TRY(ReadLayer(item, manifest.layers.size()));
    manifest.layers.push_back(std::move(layer));
  }
  for (const Json& item : files) {
    ManifestFile file = NEREUS_TRY(ReadFileEntry(item, manifest.files.size()));
    manifest.files.push_back(std::move(file));
  }
  NEREUS_TRY(manifest.Validate());
  return manifest;
}

}  // namespace

absl::Status Manifest::Validate() const {
  NEREUS_TRY(ValidateJobName(job));
  NEREUS_TRY(ValidateRange("round", round, kCheckpointRoundMax));
  NEREUS_TRY(
      ValidateRange("contributions_before", contributions_before, kCountMax));
  NEREUS_TRY(optimizer.Validate());
  NEREUS_TRY(ValidateState(*this));
  NEREUS_TRY(ValidateLayers(layers));
  return ValidateFiles(files);
}

absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest) {
  NEREUS_TRY(manifest.Validate());
  Json json;
  json["format"] = kManifestFormat;
  json["version"] = kManifestVersion;
  json["job"] = manifest.job;
  json["round"] = manifest.round;
  json["contributions_before"] = manifest.contributions_before;
  json["optimizer_place"] =
      std::string(OptimizerPlaceName(manifest.optimizer_place));
  json["state_arrays"] = manifest.state_arrays;
  json["optimizer"] = OptimizerJson(manifest.optimizer);
  json["layers"] = Json::array();
  for (const LayerSpec& layer : manifest.layers) {
    json["layers"].push_back(LayerJson(layer));
  }
  json["files"] = Json::array();
  for (const ManifestFile& file : manifest.files) {
    json["files"].push_back(FileJson(file));
  }
  std::string text = json.dump(2);
  // Cuts off the end of the object, "\n}": the checksum comes before it.
  text.resize(text.size() - 2);
  text += EndOf(text);
  return text;
}

absl::StatusOr<Manifest> DecodeManifest(absl::string_view text) {
  NEREUS_TRY(CheckText(text));
  // Drops values that nest deeper than a manifest does: the library recurses,
  // and a hostile text would exhaust the stack.
  const auto shallow = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kDepthMax;
  };
  const Json json = Json::parse(text.begin(), text.end(), shallow,
                                /*allow_exceptions=*/false);
  FieldReader fields(json, "manifest");
  const std::string format = fields.Text("format");
  const int64_t version = fields.Integer("version", 0, INT64_MAX);
  NEREUS_TRY(fields.status());
  if (format != kManifestFormat) {
    return InvalidArgumentError("manifest: format is ", ShownName(format),
                                ", not ", kManifestFormat);
  }
  if (version != kManifestVersion) {
    return UnimplementedError("manifest: version is ", version,
                              ", this build reads ", kManifestVersion);
  }
  return ReadFields(json);
}

}  // namespace nereus
