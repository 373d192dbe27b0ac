#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/job.h"
#include "common/protocol/setting.h"

namespace nereus {

// Entry of the manifest for one shard's file.
struct ManifestFile {
  std::string name;   // Name in the checkpoint's folder (ValidateStoragePart).
  int64_t bytes = 0;  // Length of the file.
  uint32_t crc32c = 0;  // CRC-32C of the whole file.

  bool operator==(const ManifestFile&) const = default;
};

// Description of a checkpoint: everything that a job needs to go on from it,
// except the values. The coordinator writes the manifest when all files are
// written; this makes the checkpoint complete. A value type.
struct Manifest {
  std::string job;  // Name of the job: printable ASCII without spaces.

  // Round of the checkpoint, 0 to kCheckpointRoundMax. The files have every
  // layer as of this round.
  int64_t round = 0;
  // Number of contributions in all steps up to and including this round. It
  // tells which examples the job has used.
  int64_t contributions_before = 0;

  OptimizerOptions optimizer;  // Rule and constants of the optimizer.
  // Side that runs the optimizer.
  OptimizerPlace optimizer_place = OptimizerPlace::kServer;
  // Number of arrays of optimizer state of each layer (Job::state_arrays).
  int32_t state_arrays = 0;
  std::vector<LayerSpec> layers;  // Layers of the model, in forward order.
  // Settings of the workers, such as --seed (JoinRequest::settings). A job that
  // goes on with other values is warned. Empty if unknown.
  std::vector<Setting> worker_settings;
  std::vector<ManifestFile> files;  // Files, in the order of their shards.

  bool operator==(const Manifest&) const = default;

  // Returns OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

// Values of the fields "format" and "version" in the text of a manifest.
inline constexpr char kManifestFormat[] = "nereus-checkpoint";
inline constexpr int64_t kManifestVersion = 1;

// Largest length of the text in bytes. Real manifests are much shorter.
inline constexpr int64_t kManifestBytesMax = int64_t{64} << 20;
// Largest length of a job's name in bytes.
inline constexpr int64_t kManifestJobBytesMax = 256;

// Returns the manifest as JSON text. The last field is the CRC-32C of all text
// before that field. Equal manifests give equal text. Errors: those of
// Manifest::Validate.
absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest);

// Reads a text that EncodeManifest has written. `text` may be torn or hostile.
// If the text was cut off or changed by accident, the checksum is right with a
// probability of only 2^-32.
//
// Errors: kInvalidArgument, `text` is not such a text, its checksum is wrong,
// or Manifest::Validate fails; kUnimplemented, another version of Nereus has
// written it. Messages name the field, its value and the expected value.
absl::StatusOr<Manifest> DecodeManifest(absl::string_view text);

}  // namespace nereus
