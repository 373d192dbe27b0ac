#include "server/process/checkpoint_files.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/shard_writer.h"
#include "server/coordinator/coordinator_options.h"

namespace nereus {
namespace {

// Number of threads that verify a checkpoint. More would hardly read faster.
constexpr int kVerifyThreadsMax = 4;

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

// True if a job can go on from a checkpoint: it has the job's model, apart from
// what may differ between jobs (rows, factors), and the job's optimizer.
bool IsFor(const Manifest& manifest, const Job& job) {
  const absl::Span<const LayerSpec> model = job.model();
  return manifest.optimizer_place == job.options.optimizer_place &&
         manifest.optimizer.rule == job.options.optimizer.rule &&
         manifest.state_arrays == job.state_arrays &&
         absl::c_equal(
             manifest.layers, model, [](const auto& a, const auto& b) {
               return a.name == b.name && a.parameters == b.parameters;
             });
}

// True if a manifest is of this job, and of a time that the job has gone back
// from: servers have collected its values before epoch `restarted_in`. Such a
// manifest comes late, because its disk hung.
bool IsLate(const Manifest& manifest, uint64_t job, uint64_t restarted_in) {
  return absl::c_any_of(manifest.files, [&](const ManifestFile& file) {
    const std::optional<ShardFile> named = ParseShardFileName(file.name);
    return named.has_value() && named->epoch < restarted_in &&
           named->job == (job & 0xffffffff);
  });
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
  const absl::StatusOr<ManifestFile> written = WriteShard(
      storage, {save.round, save.shard, job.shards(), job.epoch, job.id},
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
                      const ReadProgress& progress) {
  const absl::Status read = [&]() -> absl::Status {
    Manifest manifest = NEREUS_TRY(ReadManifest(storage, load.round));
    CheckpointReader reader =
        NEREUS_TRY(CheckpointReader::Open(&storage, std::move(manifest)));
    const int64_t total = NEREUS_TRY(reader.BytesToRead(load.values));
    int64_t done = 0;
    progress(done, total);
    return reader.ReadInto(
        load.values, [&](int64_t bytes) { progress(done += bytes, total); });
  }();
  // Either its files are whole and lack elements, or there is no manifest any
  // more: the checkpoint was set aside, or removed as an old one, while this
  // server was slow.
  return absl::IsNotFound(read) ? DataLossError(read.message()) : read;
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
  const absl::Status written = WriteManifest(storage, manifest);
  if (!absl::IsAlreadyExists(written)) return written;
  const absl::StatusOr<Manifest> there = ReadManifest(storage, manifest.round);
  if (!there.ok() || !IsLate(*there, job.id, complete.restarted_in)) {
    return written;
  }
  NEREUS_TRY(storage.RemoveFile(ManifestName(manifest.round)));
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

absl::Status VerifyTold(Storage& storage, const FoundCheckpoint& found,
                        const TellProgress& tell) {
  const int64_t all = found.record.bytes();
  std::atomic<int64_t> done = 0;
  const auto say = [&](int64_t bytes) {
    tell(absl::StrFormat(
        "verifying the checkpoint of round %d, %.3g of %.3g GB",
        found.record.round, static_cast<double>(done += bytes) / 1e9,
        static_cast<double>(all) / 1e9));
  };
  say(0);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return VerifyCheckpoint(storage, found.manifest,
                          std::clamp(cores, 1, kVerifyThreadsMax), say);
}

absl::StatusOr<std::optional<FoundCheckpoint>> FindNewestWhole(
    Storage& storage,
    absl::FunctionRef<absl::Status(const FoundCheckpoint&)> check,
    const TellProgress& tell) {
  CheckpointList list = NEREUS_TRY(ListCheckpoints(storage));
  // Damage of each damaged checkpoint, by round.
  std::map<int64_t, std::string, std::greater<>> damaged;
  for (const UnusableCheckpoint& each : list.damaged) {
    if (absl::IsUnimplemented(each.why) && &each == list.NewestIfDamaged()) {
      return Prefixed(each.why, "the newest checkpoint, of round ", each.round,
                      ", cannot be used: ");
    }
    damaged.emplace(each.round, each.why.message());
  }
  for (Manifest& manifest : list.complete) {
    FoundCheckpoint found = Found(std::move(manifest));
    const int64_t round = found.record.round;
    NEREUS_TRY(check(found));
    const absl::Status whole = VerifyTold(storage, found, tell);
    if (!whole.ok() && !absl::IsDataLoss(whole)) return whole;
    if (!whole.ok()) {
      damaged.emplace(round, whole.message());
      continue;
    }
    for (const auto& [other, why] : damaged) {
      if (other < round) break;
      NEREUS_LOG(Warning, {LogEvent::kCheckpoint, other})
          << "the checkpoint of round " << other << " is damaged: " << why
          << ". The job goes on from that of round " << round
          << ", which costs " << other - round
          << (other - round == 1 ? " step" : " steps");
    }
    return found;
  }
  if (damaged.empty()) return std::nullopt;
  return DataLossError(
      "all checkpoints are damaged: ",
      absl::StrJoin(damaged, "; ", [](std::string* out, const auto& each) {
        absl::StrAppend(out, "that of round ", each.first, ": ", each.second);
      }));
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
                          uint64_t job_id,
                          CheckpointLedger::State& checkpoints) {
  std::optional<CheckpointRecord>& newest = checkpoints.newest;
  const CheckpointList list = NEREUS_TRY(ListCheckpoints(storage));
  if (list.NewestIfDamaged() != nullptr) {
    const int64_t whole =
        list.complete.empty() ? kInitialRound : list.complete.front().round;
    NEREUS_TRY(SetAsideAfter(storage, whole, /*unfinished=*/false));
    if (newest.has_value() && newest->round > whole) newest.reset();
  }
  const int64_t known = newest.has_value() ? newest->round : kInitialRound;
  for (const Manifest& manifest : list.complete) {
    if (manifest.round > known && manifest.job == job &&
        IsLate(manifest, job_id, checkpoints.restarted_in)) {
      NEREUS_LOG(Warning, {LogEvent::kCheckpoint, manifest.round})
          << "the manifest of round " << manifest.round
          << " came after the job had gone back without it: it is removed";
      NEREUS_TRY(storage.RemoveFile(ManifestName(manifest.round)));
    }
  }
  std::optional<FoundCheckpoint> found = NEREUS_TRY(FindNewest(storage));
  if (found.has_value() && found->manifest.job == job) {
    newest = std::move(found->record);
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointSetAside> SetDamagedAside(Storage& storage,
                                                   const Job& job,
                                                   int64_t round) {
  CheckpointList list = NEREUS_TRY(ListCheckpoints(storage));
  CheckpointSetAside outcome;
  for (const UnusableCheckpoint& other : list.damaged) {
    if (other.round != round) outcome.unusable.push_back(other.round);
  }
  for (Manifest& manifest : list.complete) {
    if (manifest.round >= round) continue;
    if (!IsFor(manifest, job)) {
      outcome.unusable.push_back(manifest.round);
      continue;
    }
    FoundCheckpoint older = Found(std::move(manifest));
    older.record.contributions = ConvertContributions(
        older.record.contributions, older.manifest.layers, job.model());
    outcome.older = std::move(older.record);
    break;
  }
  absl::c_sort(outcome.unusable, std::greater<>());
  if (!outcome.older.has_value()) return outcome;
  absl::StatusOr<std::string> folder = SetAside(storage, round);
  if (folder.ok()) {
    outcome.folder = *std::move(folder);
  } else if (!absl::IsNotFound(folder.status())) {
    NEREUS_LOG(Warning, {LogEvent::kCheckpoint, round})
        << "the damaged checkpoint of round " << round
        << " cannot be renamed: " << folder.status().message();
  }
  return outcome;
}

absl::Status DropLateManifest(Storage& storage,
                              const CheckpointRecord& record) {
  const absl::StatusOr<FoundCheckpoint> found =
      FindRound(storage, record.round);
  if (absl::IsNotFound(found.status())) return absl::OkStatus();
  if (!found.ok()) return found.status();
  // Another life of the job may have made a checkpoint of this round by now.
  if (!absl::c_equal(found->record.files, record.files)) {
    return absl::OkStatus();
  }
  return storage.RemoveFile(ManifestName(record.round));
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
