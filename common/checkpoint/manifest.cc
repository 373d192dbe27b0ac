// Manifests as JSON text. EncodeManifest validates the manifest, writes the
// fields and appends the checksum (EndOf). DecodeManifest checks the length and
// the checksum of the text (CheckText), parses the JSON, checks format and
// version, reads the fields, and calls Validate. The text may be hostile: its
// length, its depth and each number are checked before they are used.
// ListManifest and the functions above it list the fields; one list serves for
// reading and for writing.

#include "common/checkpoint/manifest.h"

#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/crc32c.h"
#include "common/base/json_fields.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/checkpoint/storage.h"
#include "common/plan/cost_model.h"
#include "nlohmann/json.hpp"

namespace nereus {

namespace {

// Returns the end of the text that begins with `before`: the field with the
// checksum of `before`.
std::string EndOf(absl::string_view before) {
  return absl::StrFormat(",\n  \"crc32c\": \"%08x\"\n}\n",
                         Crc32c(before.data(), before.size()));
}

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
                             JsonFields::kCountMax));
    if (!names.insert(file.name).second) {
      return InvalidArgumentError("manifest: file ", file.name,
                                  " occurs twice");
    }
  }
  return absl::OkStatus();
}

// Log lines repeat the settings, so they are printable and short.
absl::Status ValidateSettings(absl::Span<const Setting> settings) {
  if (settings.size() > kSettingsMax) {
    return InvalidArgumentError("manifest: worker_settings has ",
                                settings.size(), " items, at most ",
                                kSettingsMax);
  }
  for (const Setting& setting : settings) {
    for (const std::string& text : {setting.name, setting.value}) {
      const bool printable =
          absl::c_all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
      if (printable && text.size() <= kSettingBytesMax) continue;
      return InvalidArgumentError("manifest: worker_settings has ",
                                  ShownName(text), ", not at most ",
                                  kSettingBytesMax, " printable characters");
    }
  }
  return absl::OkStatus();
}

void ListOptimizer(JsonFields& fields, OptimizerOptions& optimizer) {
  fields.Name("rule", optimizer.rule, UpdateRuleName, ParseUpdateRule);
  fields.Float("learning_rate", optimizer.learning_rate);
  fields.Float("momentum", optimizer.momentum);
  fields.Float("weight_decay", optimizer.weight_decay);
  fields.Float("beta1", optimizer.beta1);
  fields.Float("beta2", optimizer.beta2);
  fields.Float("epsilon", optimizer.epsilon);
}

void ListFile(JsonFields& fields, ManifestFile& file) {
  fields.Text("name", file.name);
  fields.Count("bytes", file.bytes);
  fields.Integer("crc32c", file.crc32c, 0, UINT32_MAX);
}

void ListSetting(JsonFields& fields, Setting& setting) {
  fields.Text("name", setting.name);
  fields.Text("value", setting.value);
}

void ListManifest(JsonFields& fields, Manifest& manifest) {
  fields.Text("job", manifest.job);
  fields.Integer("round", manifest.round, 0, kCheckpointRoundMax);
  fields.Count("contributions_before", manifest.contributions_before);
  fields.Name("optimizer_place", manifest.optimizer_place, OptimizerPlaceName,
              ParseOptimizerPlace);
  fields.Integer("state_arrays", manifest.state_arrays, 0, kStateArraysMax);
  fields.Object("optimizer", manifest.optimizer, ListOptimizer);
  fields.Objects("layers", manifest.layers, ListLayerFields);
  fields.NewerObjects("worker_settings", manifest.worker_settings, ListSetting);
  fields.Objects("files", manifest.files, ListFile);
}

// Checks the length and the checksum of a text, before the JSON is parsed.
// Errors: kInvalidArgument.
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
                              ", but the text before has the checksum ",
                              ShownName(expected));
}

}  // namespace

absl::Status Manifest::Validate() const {
  NEREUS_TRY(ValidateJobName(job));
  NEREUS_TRY(ValidateRange("round", round, kCheckpointRoundMax));
  NEREUS_TRY(ValidateRange("contributions_before", contributions_before,
                           JsonFields::kCountMax));
  NEREUS_TRY(optimizer.Validate());
  NEREUS_TRY(ValidateState(*this));
  NEREUS_TRY(ValidateLayers(layers));
  NEREUS_TRY(ValidateSettings(worker_settings));
  return ValidateFiles(files);
}

absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest) {
  NEREUS_TRY(manifest.Validate());
  nlohmann::ordered_json json = {{"format", kManifestFormat},
                                 {"version", kManifestVersion}};
  JsonFields fields(json);
  Manifest copy = manifest;
  ListManifest(fields, copy);
  std::string text = json.dump(2);
  // Removes the end of the object, "\n}". EndOf appends it again, behind the
  // checksum.
  text.resize(text.size() - 2);
  text += EndOf(text);
  return text;
}

absl::StatusOr<Manifest> DecodeManifest(absl::string_view text) {
  NEREUS_TRY(CheckText(text));
  const nlohmann::json json = ParseJson(text);
  JsonFields fields(json, "manifest");
  std::string format;
  int64_t version = 0;
  fields.Text("format", format);
  fields.Integer("version", version, 0, INT64_MAX);
  NEREUS_TRY(fields.status());
  if (format != kManifestFormat) {
    return InvalidArgumentError("manifest: format is ", ShownName(format),
                                ", not ", kManifestFormat);
  }
  if (version != kManifestVersion) {
    return UnimplementedError("manifest: version is ", version,
                              ", this build reads ", kManifestVersion);
  }
  Manifest manifest;
  ListManifest(fields, manifest);
  NEREUS_TRY(fields.status());
  // A manifest does not say which layers have factors. Only those may have
  // rows that are not known, or have lost their factors.
  for (LayerSpec& layer : manifest.layers) {
    layer.has_factors = layer.rows <= 0;
  }
  NEREUS_TRY(manifest.Validate());
  return manifest;
}

namespace {

constexpr absl::string_view kFolderPrefix = "round-";
constexpr absl::string_view kFileSuffix = ".safetensors";

}  // namespace

std::string CheckpointFolder(int64_t round) {
  NEREUS_CHECK(round >= 0 && round <= kCheckpointRoundMax) << round;
  return absl::StrCat(kFolderPrefix, absl::Dec(round, absl::kZeroPad12));
}

// The comparison at the end refuses other spellings of a number, such as
// "+120", so that each round has only one name.
std::optional<int64_t> ParseCheckpointFolder(absl::string_view name) {
  absl::string_view digits = name;
  int64_t round = 0;
  if (!absl::ConsumePrefix(&digits, kFolderPrefix) ||
      !absl::SimpleAtoi(digits, &round) || round < 0 ||
      round > kCheckpointRoundMax || CheckpointFolder(round) != name) {
    return std::nullopt;
  }
  return round;
}

std::string ManifestName(int64_t round) {
  return absl::StrCat(CheckpointFolder(round), "/manifest.json");
}

std::string ShardFileName(const ShardFile& file) {
  return absl::StrCat(
      "shard-", file.shard, "-of-", file.shards, "-epoch-", file.epoch, "-",
      absl::Hex(file.job & 0xffffffff, absl::kZeroPad8), kFileSuffix);
}

// The comparison at the end refuses other spellings of the numbers.
std::optional<ShardFile> ParseShardFileName(absl::string_view name) {
  absl::string_view rest = name;
  if (!absl::ConsumePrefix(&rest, "shard-") ||
      !absl::ConsumeSuffix(&rest, kFileSuffix)) {
    return std::nullopt;
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, '-');
  ShardFile file;
  const bool has_job = parts.size() == 6;
  if ((!has_job && parts.size() != 5) || parts[1] != "of" ||
      parts[3] != "epoch" || !absl::SimpleAtoi(parts[0], &file.shard) ||
      !absl::SimpleAtoi(parts[2], &file.shards) ||
      !absl::SimpleAtoi(parts[4], &file.epoch) ||
      (has_job && !absl::SimpleHexAtoi(parts[5], &file.job))) {
    return std::nullopt;
  }
  const std::string expected =
      has_job ? ShardFileName(file)
              : absl::StrCat("shard-", file.shard, "-of-", file.shards,
                             "-epoch-", file.epoch, kFileSuffix);
  if (expected != name) return std::nullopt;
  return file;
}

}  // namespace nereus
