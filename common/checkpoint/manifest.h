#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/job.h"

namespace nereus {

// Entry for one shard's file of a checkpoint.
struct ManifestFile {
  std::string name;   // Name in the checkpoint's folder (ValidateStoragePart).
  int64_t bytes = 0;  // Length of the file.
  uint32_t crc32c = 0;  // CRC-32C of the whole file.

  bool operator==(const ManifestFile&) const = default;
};

// Description of a checkpoint: all that a job needs to go on, except the
// values. The manifest is written last and makes the checkpoint complete. A
// value type.
struct Manifest {
  std::string job;  // Name of the job: printable ASCII without spaces.

  // Round of the checkpoint, 0 to kCheckpointRoundMax: the files have every
  // layer as of it.
  int64_t round = 0;
  // Number of contributions in all steps up to and including this round. It
  // tells which examples the job has used.
  int64_t contributions_before = 0;

  OptimizerOptions optimizer;  // Rule and constants of the optimizer.
  // Side that runs the optimizer.
  OptimizerPlace optimizer_place = OptimizerPlace::kServer;
  // Number of arrays of optimizer state (Job::state_arrays).
  int32_t state_arrays = 0;
  std::vector<LayerSpec> layers;    // Layers of the model, in forward order.
  std::vector<ManifestFile> files;  // Files, by shard.

  bool operator==(const Manifest&) const = default;

  // Returns OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

// Values of the fields "format" and "version".
inline constexpr char kManifestFormat[] = "nereus-checkpoint";
inline constexpr int64_t kManifestVersion = 1;

// Limits in bytes of the text, far above real manifests, and of the job's name.
inline constexpr int64_t kManifestBytesMax = int64_t{64} << 20;
inline constexpr int64_t kManifestJobBytesMax = 256;

// Returns the manifest as JSON text. The last field is the CRC-32C of all text
// before that field. Equal manifests give equal text. Errors: as Validate.
absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest);

// Reads a text that EncodeManifest wrote; `text` may be torn or hostile. The
// checksum detects text that was cut off or changed by accident, except with a
// probability of 2^-32.
//
// Errors: kInvalidArgument, it is no such text, its checksum is wrong, or as
// Validate; kUnimplemented, another version wrote it. Messages name the field
// and both values.
absl::StatusOr<Manifest> DecodeManifest(absl::string_view text);

}  // namespace nereus
