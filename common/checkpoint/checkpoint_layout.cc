#include "common/checkpoint/checkpoint_layout.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/logging.h"

namespace nereus {
namespace {

constexpr absl::string_view kFolderPrefix = "round-";

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
  return absl::StrCat("shard-", file.shard, "-of-", file.shards, "-epoch-",
                      file.epoch, ".safetensors");
}

}  // namespace nereus
