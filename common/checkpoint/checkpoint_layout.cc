#include "common/checkpoint/checkpoint_layout.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/logging.h"

namespace nereus {
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
