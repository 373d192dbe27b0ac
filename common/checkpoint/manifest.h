#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/job.h"
#include "common/protocol/setting.h"

namespace nereus {

// Names of a checkpoint's files in a storage. Example, with two shards:
//
//   round-000000000120/shard-0-of-2-epoch-7-1a2b3c4d.safetensors
//   round-000000000120/shard-1-of-2-epoch-7-1a2b3c4d.safetensors
//   round-000000000120/manifest.json

// Largest round that fits the 12 digits of a folder's name.
inline constexpr int64_t kCheckpointRoundMax = 999'999'999'999;

// Returns "round-000000000120". REQUIRES: 0 <= round <= kCheckpointRoundMax.
std::string CheckpointFolder(int64_t round);

// Returns the round for which CheckpointFolder returns `name`; nothing if there
// is no such round.
std::optional<int64_t> ParseCheckpointFolder(absl::string_view name);

// Returns "round-000000000120/manifest.json". REQUIRES: 0 <= round <=
// kCheckpointRoundMax.
std::string ManifestName(int64_t round);

// Facts that identify one shard's file of a checkpoint.
struct ShardFile {
  int64_t round = 0;  // Round of the checkpoint.
  int shard = 0;      // Shard of the values, 0 to shards - 1.
  int shards = 1;     // Number of shards, 1 to kServersMax.
  // Epoch in which the server collected the values. It is part of the file's
  // name: if a server counts as dead but still writes, its file has another
  // name than the file of the server that has replaced it.
  uint64_t epoch = 0;
  // Id of the job. Its lower 32 bits are part of the file's name, because each
  // job counts its epochs from 1: a server of an earlier job in this folder may
  // still write.
  uint64_t job = 0;

  bool operator==(const ShardFile&) const = default;
};

// Returns the name of the file in the checkpoint's folder:
// "shard-0-of-2-epoch-7-1a2b3c4d.safetensors".
std::string ShardFileName(const ShardFile& file);

// Returns the facts in the name of a file, without the round, and with the
// lower 32 bits of the job; nothing if no server gives a file this name. In
// checkpoints of Nereus before 0.2 the names lack the job: it is 0 here.
std::optional<ShardFile> ParseShardFileName(absl::string_view name);

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
