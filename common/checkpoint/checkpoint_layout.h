#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace nereus {

// Names of a checkpoint's files in a storage:
//
//   round-000000000120/shard-0-of-2-epoch-7.safetensors
//   round-000000000120/shard-1-of-2-epoch-7.safetensors
//   round-000000000120/manifest.json

// Largest round that fits the 12 digits of a folder's name.
inline constexpr int64_t kCheckpointRoundMax = 999'999'999'999;

// Returns "round-000000000120". REQUIRES: 0 <= round <= kCheckpointRoundMax.
std::string CheckpointFolder(int64_t round);

// Returns the round of the folder `name`; nothing if CheckpointFolder gives no
// round this name.
std::optional<int64_t> ParseCheckpointFolder(absl::string_view name);

// Returns "round-000000000120/manifest.json". REQUIRES: 0 <= round <=
// kCheckpointRoundMax.
std::string ManifestName(int64_t round);

// Identity of one shard's file.
struct ShardFile {
  int64_t round = 0;  // Round of the checkpoint.
  int shard = 0;      // Shard of the values, 0 to shards - 1.
  int shards = 1;     // Number of shards, 1 to kServersMax.
  // Epoch in which the values were collected. With the epoch in the name, a
  // server that counts as dead and still writes does not overwrite the file of
  // its successor.
  uint64_t epoch = 0;
};

// Returns "shard-0-of-2-epoch-7.safetensors", in the checkpoint's folder.
std::string ShardFileName(const ShardFile& file);

}  // namespace nereus
