#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

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

}  // namespace nereus
