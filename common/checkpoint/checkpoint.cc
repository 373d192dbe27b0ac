#include "common/checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/checkpoint/manifest.h"

namespace nereus {
namespace {

// Checks that all files of a manifest exist and have the length that the
// manifest states. Errors: kFailedPrecondition; the message names the file, and
// both lengths if they differ.
absl::Status CheckFiles(Storage& storage, const Manifest& manifest) {
  const std::string folder = CheckpointFolder(manifest.round);
  std::map<std::string, int64_t> bytes_by_name;
  const auto entries = storage.List(folder);
  if (!entries.ok() && !absl::IsNotFound(entries.status())) {
    return entries.status();
  }
  if (entries.ok()) {
    for (const StorageEntry& entry : *entries) {
      if (!entry.is_folder) bytes_by_name[entry.name] = entry.bytes;
    }
  }
  for (const ManifestFile& file : manifest.files) {
    const auto found = bytes_by_name.find(file.name);
    if (found == bytes_by_name.end()) {
      return FailedPreconditionError(folder, "/", file.name, " is missing");
    }
    if (found->second != file.bytes) {
      return FailedPreconditionError(folder, "/", file.name, " has ",
                                     found->second,
                                     " bytes, the manifest says ", file.bytes);
    }
  }
  return absl::OkStatus();
}

// Returns OK if `status` is kNotFound: the file or folder that the caller
// wanted to remove does not exist. Otherwise returns `status`.
absl::Status IgnoreNotFound(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

// True if a checkpoint with this error is listed as damaged: kUnimplemented,
// too (another format). False if the storage has failed. A disk that does not
// answer must not make a good checkpoint look damaged. kFailedPrecondition
// counts as damage: there is a folder where a file should be.
bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsFailedPrecondition(status) ||
         absl::IsUnimplemented(status);
}

// Returns the manifest of a complete checkpoint. Errors: those of ReadManifest;
// kDataLoss, a file is missing or has another length.
absl::StatusOr<Manifest> ReadComplete(Storage& storage, int64_t round) {
  Manifest manifest = NEREUS_TRY(ReadManifest(storage, round));
  const absl::Status files = CheckFiles(storage, manifest);
  if (files.ok()) return manifest;
  if (!absl::IsFailedPrecondition(files)) return files;
  // Perhaps another process is removing the checkpoint. It removes the manifest
  // first. So if the manifest is gone, returns kNotFound and not kDataLoss.
  NEREUS_TRY(storage.FileBytes(ManifestName(round)));
  return DataLossError(files.message());
}

}  // namespace

// Checks the files just before the manifest makes the checkpoint complete.
absl::Status WriteManifest(Storage& storage, const Manifest& manifest) {
  std::string text = NEREUS_TRY(EncodeManifest(manifest));
  NEREUS_TRY(CheckFiles(storage, manifest));
  const std::string name = ManifestName(manifest.round);
  const absl::Status written =
      storage.WriteNewFile(name, {Buffer::View(text.data(), std::ssize(text))});
  if (!absl::IsAlreadyExists(written)) return written;
  const absl::StatusOr<Manifest> there = ReadManifest(storage, manifest.round);
  if (there.ok() && *there == manifest) return absl::OkStatus();
  return AlreadyExistsError(
      name, " exists and is another one: ",
      there.ok()
          ? absl::StrCat(
                "of job ", there->job,
                ", which has files such "
                "as ",
                there->files.empty() ? "none" : there->files.front().name)
          : std::string(there.status().message()),
      ". Do two jobs write to this folder?");
}

absl::StatusOr<Manifest> ReadManifest(Storage& storage, int64_t round) {
  if (round < 0 || round > kCheckpointRoundMax) {
    return NotFoundError("there is no checkpoint of round ", round);
  }
  const std::string name = ManifestName(round);
  const int64_t bytes = NEREUS_TRY(storage.FileBytes(name));
  if (bytes > kManifestBytesMax) {
    return DataLossError(name, " has ", bytes, " bytes, at most ",
                         kManifestBytesMax);
  }
  std::string text(bytes, '\0');
  const absl::Status read =
      storage.ReadFile(name, 0, Buffer::View(text.data(), bytes));
  // kOutOfRange means that the file has become shorter since FileBytes.
  if (absl::IsOutOfRange(read)) return DataLossError(read.message());
  NEREUS_TRY(read);
  auto manifest = DecodeManifest(text);
  if (absl::IsInvalidArgument(manifest.status())) {
    return DataLossError(name, ": ", manifest.status().message());
  }
  if (!manifest.ok()) {
    return Prefixed(manifest.status(), name, ": ");
  }
  if (manifest->round != round) {
    return DataLossError(name, " is of round ", manifest->round, ", not ",
                         round);
  }
  return manifest;
}

absl::StatusOr<CheckpointList> ListCheckpoints(Storage& storage) {
  CheckpointList list;
  const auto entries = storage.List("");
  if (absl::IsNotFound(entries.status())) return list;
  if (!entries.ok()) return entries.status();
  std::vector<int64_t> rounds;
  for (const StorageEntry& entry : *entries) {
    const std::optional<int64_t> round = ParseCheckpointFolder(entry.name);
    if (entry.is_folder && round.has_value()) rounds.push_back(*round);
  }
  std::sort(rounds.rbegin(), rounds.rend());
  for (const int64_t round : rounds) {
    auto manifest = ReadComplete(storage, round);
    if (manifest.ok()) {
      list.complete.push_back(*std::move(manifest));
    } else if (absl::IsNotFound(manifest.status())) {
      list.unfinished.push_back(
          {round, CheckpointFolder(round),
           NotFoundError("it has no manifest: it is being written, was never "
                         "finished, or was copied in part")});
    } else if (IsDamage(manifest.status())) {
      list.damaged.push_back(
          {round, CheckpointFolder(round), manifest.status()});
    } else {
      return manifest.status();
    }
  }
  return list;
}

const UnusableCheckpoint* CheckpointList::NewestIfDamaged() const {
  if (damaged.empty()) return nullptr;
  const UnusableCheckpoint& newest = damaged.front();
  return complete.empty() || newest.round > complete.front().round ? &newest
                                                                   : nullptr;
}

// The manifest goes first: a crash in between leaves an unfinished checkpoint,
// not a damaged one.
absl::Status RemoveCheckpoint(Storage& storage, int64_t round) {
  if (round < 0 || round > kCheckpointRoundMax) return absl::OkStatus();
  NEREUS_TRY(IgnoreNotFound(storage.RemoveFile(ManifestName(round))));
  return IgnoreNotFound(storage.RemoveTree(CheckpointFolder(round)));
}

absl::StatusOr<std::string> SetAside(Storage& storage, int64_t round) {
  const std::string folder = CheckpointFolder(round);
  std::set<std::string> taken;
  std::vector<StorageEntry> entries = NEREUS_TRY(storage.List(""));
  for (StorageEntry& entry : entries) taken.insert(std::move(entry.name));
  const std::string name = absl::StrCat("set-aside-", folder);
  std::string to = name;
  for (int i = 2; taken.contains(to); ++i) to = absl::StrCat(name, "-", i);
  NEREUS_TRY(storage.RenameFolder(folder, to));
  return to;
}

absl::Status KeepLast(Storage& storage, int count) {
  NEREUS_CHECK(count >= 1) << count;
  const CheckpointList list = NEREUS_TRY(ListCheckpoints(storage));
  if (list.complete.empty()) return absl::OkStatus();
  const int64_t newest = list.complete.front().round;
  for (const auto* unusable : {&list.unfinished, &list.damaged}) {
    for (const UnusableCheckpoint& checkpoint : *unusable) {
      if (checkpoint.round >= newest) continue;
      if (absl::IsUnimplemented(checkpoint.why)) continue;
      NEREUS_TRY(RemoveCheckpoint(storage, checkpoint.round));
    }
  }
  // Removes the oldest checkpoint first, so that after a crash in between the
  // newest ones are left.
  for (size_t i = list.complete.size(); i > static_cast<size_t>(count); --i) {
    NEREUS_TRY(RemoveCheckpoint(storage, list.complete[i - 1].round));
  }
  return absl::OkStatus();
}

}  // namespace nereus
