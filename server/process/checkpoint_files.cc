#include "server/process/checkpoint_files.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/checkpoint_layout.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/shard_writer.h"
#include "common/checkpoint/tensor_name.h"

namespace nereus {
namespace {

// Returns a manifest together with the coordinator's record of it.
FoundCheckpoint Found(Manifest manifest) {
  FoundCheckpoint found;
  found.manifest = std::move(manifest);
  found.record.round = found.manifest.round;
  found.record.contributions = found.manifest.contributions_before;
  for (const ManifestFile& file : found.manifest.files) {
    found.record.files.push_back({file.name, file.bytes, file.crc32c});
  }
  return found;
}

}  // namespace

CheckpointPart WritePart(Storage& storage, const Job& job,
                         const SaveCheckpoint& save) {
  CheckpointPart part;
  part.epoch = job.epoch;
  part.shard = save.shard;
  part.round = save.round;
  const std::vector<std::string> states =
      StateNames(job.options.optimizer_place, job.options.optimizer.rule,
                 job.state_arrays);
  const absl::StatusOr<ManifestFile> written =
      WriteShard(storage, {save.round, save.shard, job.shards(), job.epoch, job.id},
                 job.model(), states, save.values);
  if (!written.ok()) {
    part.error = std::string(written.status().message());
    return part;
  }
  part.file = written->name;
  part.bytes = written->bytes;
  part.crc = written->crc32c;
  return part;
}

absl::Status ReadPart(Storage& storage, const LoadCheckpoint& load,
                      const CheckpointReader::Progress& progress) {
  Manifest manifest = NEREUS_TRY(ReadManifest(storage, load.round));
  CheckpointReader reader =
      NEREUS_TRY(CheckpointReader::Open(&storage, std::move(manifest)));
  return reader.ReadInto(load.values, progress);
}

absl::Status WriteWhole(Storage& storage, const std::string& job_name,
                        const CompleteCheckpoint& complete) {
  const Job& job = *complete.job;
  Manifest manifest;
  manifest.job = job_name;
  manifest.round = complete.record.round;
  manifest.contributions_before = complete.record.contributions;
  manifest.optimizer = job.options.optimizer;
  manifest.optimizer_place = job.options.optimizer_place;
  manifest.state_arrays = job.state_arrays;
  manifest.layers.assign(job.model().begin(), job.model().end());
  manifest.worker_settings = complete.worker_settings;
  for (const CheckpointFile& file : complete.record.files) {
    manifest.files.push_back({file.name, file.bytes, file.crc});
  }
  return WriteManifest(storage, manifest);
}

absl::Status FinishCheckpoint(Storage& storage, int kept,
                              const std::string& job_name,
                              const CompleteCheckpoint& complete) {
  NEREUS_TRY(WriteWhole(storage, job_name, complete));
  const absl::Status removed = KeepLast(storage, kept);
  if (!removed.ok()) {
    NEREUS_LOG(Warning, {LogEvent::kCheckpoint})
        << "older checkpoints are not all removed: " << removed.message();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<FoundCheckpoint>> FindNewest(Storage& storage) {
  CheckpointList list = NEREUS_TRY(ListCheckpoints(storage));
  if (const UnusableCheckpoint* const damaged = list.NewestIfDamaged()) {
    return Prefixed(damaged->why, "the newest checkpoint, of round ",
                    damaged->round, ", cannot be used: ");
  }
  if (list.complete.empty()) return std::nullopt;
  return Found(std::move(list.complete.front()));
}

absl::StatusOr<FoundCheckpoint> FindRound(Storage& storage, int64_t round) {
  Manifest manifest = NEREUS_TRY(ReadManifest(storage, round));
  return Found(std::move(manifest));
}

absl::Status SetAsideAfter(Storage& storage, int64_t round, bool unfinished) {
  const CheckpointList list = NEREUS_TRY(ListCheckpoints(storage));
  const auto set_aside = [&](int64_t later, absl::string_view why) {
    if (later <= round) return absl::OkStatus();
    const std::string folder = NEREUS_TRY(SetAside(storage, later));
    NEREUS_LOG(Warning, {LogEvent::kCheckpoint, later})
        << "the checkpoint of round " << later << " " << why
        << ": its folder is now " << folder << ", which you may remove";
    return absl::OkStatus();
  };
  for (const Manifest& manifest : list.complete) {
    NEREUS_TRY(set_aside(manifest.round,
                         absl::StrCat("is later than round ", round,
                                      ", from which the job goes on")));
  }
  for (const UnusableCheckpoint& damaged : list.damaged) {
    NEREUS_TRY(set_aside(
        damaged.round,
        absl::StrCat("cannot be used (", damaged.why.message(), ")")));
  }
  if (!unfinished) return absl::OkStatus();
  for (const UnusableCheckpoint& checkpoint : list.unfinished) {
    NEREUS_TRY(set_aside(checkpoint.round,
                         "has no manifest, so it was not finished, or was "
                         "copied in part"));
  }
  return absl::OkStatus();
}

absl::Status UpdateNewest(Storage& storage, const std::string& job,
                          std::optional<CheckpointRecord>& newest) {
  const CheckpointList list = NEREUS_TRY(ListCheckpoints(storage));
  if (list.NewestIfDamaged() != nullptr) {
    const int64_t whole =
        list.complete.empty() ? kInitialRound : list.complete.front().round;
    NEREUS_TRY(SetAsideAfter(storage, whole, /*unfinished=*/false));
    if (newest.has_value() && newest->round > whole) newest.reset();
  }
  std::optional<FoundCheckpoint> found = NEREUS_TRY(FindNewest(storage));
  if (found.has_value() && found->manifest.job == job) {
    newest = std::move(found->record);
  }
  return absl::OkStatus();
}

absl::Status CheckRestore(absl::string_view restore) {
  int64_t round = 0;
  if (restore == "latest") return absl::OkStatus();
  if (absl::SimpleAtoi(restore, &round) && round >= 0) return absl::OkStatus();
  return InvalidArgumentError("--restore is \"", restore,
                              "\", must be latest or a round");
}

absl::Status WithOthers(const absl::Status& error, int64_t round,
                        absl::string_view flag, Storage& storage) {
  const absl::StatusOr<CheckpointList> list = ListCheckpoints(storage);
  std::vector<int64_t> others;
  if (list.ok()) {
    for (const Manifest& manifest : list->complete) {
      if (manifest.round != round) others.push_back(manifest.round);
    }
  }
  if (others.empty()) return error;
  return absl::Status(error.code(), absl::StrCat(error.message(), "; ", flag,
                                                 "=ROUND takes another one: ",
                                                 absl::StrJoin(others, ", ")));
}

}  // namespace nereus
