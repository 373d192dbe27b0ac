#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace nereus {

// Where in a storage the files of a checkpoint are:
//
//   round-000000000120/shard-0-of-2-epoch-7.safetensors
//   round-000000000120/shard-1-of-2-epoch-7.safetensors
//   round-000000000120/manifest.json

// A round has 12 digits in a folder's name.
inline constexpr int64_t kCheckpointRoundMax = 999'999'999'999;

// "round-000000000120". REQUIRES: 0 <= round <= kCheckpointRoundMax.
std::string CheckpointFolder(int64_t round);

// The reverse; nothing, if it is no such name.
std::optional<int64_t> ParseCheckpointFolder(absl::string_view name);

// "round-000000000120/manifest.json". REQUIRES: as above.
std::string ManifestName(int64_t round);

// One shard's file.
struct ShardFile {
  int64_t round = 0;
  int shard = 0;   // 0 to shards - 1.
  int shards = 1;  // 1 to kServersMax.
  // In which its values were collected: a shard that was counted as dead, and
  // writes all the same, does not write over its successor's file.
  uint64_t epoch = 0;
};

// "shard-0-of-2-epoch-7.safetensors", in the checkpoint's folder.
std::string ShardFileName(const ShardFile& file);

}  // namespace nereus
