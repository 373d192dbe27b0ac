#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/job.h"

namespace nereus {

// One shard's file of a checkpoint.
struct ManifestFile {
  std::string name;  // In the checkpoint's folder; a ValidateStoragePart name.
  int64_t bytes = 0;
  uint32_t crc32c = 0;  // Of the whole file.

  bool operator==(const ManifestFile&) const = default;
};

// What a checkpoint is of: all that a job needs beside the values to go on.
// Written last, it makes a checkpoint complete.
struct Manifest {
  std::string job;  // The job's name: printable ASCII without spaces.

  // The shards have every layer as of this round, 0 to kCheckpointRoundMax.
  int64_t round = 0;
  // Contributions of all steps up to and with this round's: where in its
  // examples the job is.
  int64_t contributions_before = 0;

  OptimizerOptions optimizer;
  OptimizerPlace optimizer_place = OptimizerPlace::kServer;
  // Arrays of optimizer state, as of Job: OptimizerStateCount, or the callers'.
  int32_t state_arrays = 0;
  std::vector<LayerSpec> layers;    // In forward order.
  std::vector<ManifestFile> files;  // By shard.

  bool operator==(const Manifest&) const = default;

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

inline constexpr char kManifestFormat[] = "nereus-checkpoint";
inline constexpr int64_t kManifestVersion = 1;

// Limits: of the text, which no valid manifest reaches, and of the job's name.
inline constexpr int64_t kManifestBytesMax = int64_t{64} << 20;
inline constexpr int64_t kManifestJobBytesMax = 256;

// JSON text whose last field is the CRC-32C of all text before it. Equal
// manifests give equal text. Errors: as of Validate.
absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest);

// Reads what EncodeManifest wrote; `text` may be torn or hostile. No text that
// was cut off or changed is accepted, but for one chance in 2^32.
//
// Errors: kInvalidArgument: not such text, a wrong checksum, or as of Validate;
// kUnimplemented, written by another version. Messages name the field and
// both values.
absl::StatusOr<Manifest> DecodeManifest(absl::string_view text);

}  // namespace nereus
