#include "server/admin/checkpoint_command.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/checkpoint_layout.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/file_storage.h"
#include "common/flags/flags.h"
#include "common/rpc/admin_client.h"

namespace nereus {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);

// Asks for one, and returns the job's status when it is there.
absl::StatusOr<JobStatus> MakeCheckpoint(const std::string& server,
                                         absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  NEREUS_RETURN_IF_ERROR(RequestCheckpoint(server, timeout));
  while (true) {
    NEREUS_ASSIGN_OR_RETURN(JobStatus status,
                            FetchJobStatus(server, deadline - absl::Now()));
    if (!status.checkpoint.wanted) {
      if (status.checkpoint.failure.empty()) return status;
      return absl::AbortedError(status.checkpoint.failure);
    }
    if (status.state != JobState::kRunning) {
      return absl::AbortedError(
          absl::StrCat("job ", status.job, " is ", JobStateName(status.state),
                       " before the checkpoint was made"));
    }
    if (absl::Now() + kPollInterval > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "no checkpoint after ", absl::FormatDuration(timeout),
          "; it is made as soon as the workers begin another step"));
    }
    absl::SleepFor(kPollInterval);
  }
}

// A checkpoint, as far as it is there.
struct Entry {
  int64_t round = 0;
  absl::Status state;
  Manifest manifest;  // If it is whole.

  int64_t bytes() const {
    int64_t bytes = 0;
    for (const ManifestFile& file : manifest.files) bytes += file.bytes;
    return bytes;
  }
};

absl::StatusOr<std::vector<Entry>> ListEntries(const std::string& folder,
                                               bool verify) {
  struct stat found = {};
  if (stat(folder.c_str(), &found) != 0) {
    return absl::NotFoundError(absl::StrCat(folder, ": ", strerror(errno)));
  }
  if (!S_ISDIR(found.st_mode)) {
    return absl::NotFoundError(absl::StrCat(folder, " is not a folder"));
  }
  NEREUS_ASSIGN_OR_RETURN(const std::unique_ptr<FileStorage> storage,
                          FileStorage::Open(folder));
  NEREUS_ASSIGN_OR_RETURN(CheckpointList list, ListCheckpoints(*storage));
  std::vector<Entry> entries;
  for (Manifest& manifest : list.complete) {
    Entry entry{manifest.round, absl::OkStatus(), std::move(manifest)};
    if (verify) entry.state = VerifyCheckpoint(*storage, entry.manifest);
    entries.push_back(std::move(entry));
  }
  for (const IncompleteCheckpoint& incomplete : list.incomplete) {
    entries.push_back({incomplete.round, incomplete.why, Manifest()});
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.round > b.round; });
  return entries;
}

std::string EntriesTable(const std::vector<Entry>& entries) {
  if (entries.empty()) return "no checkpoints\n";
  std::string text =
      absl::StrFormat("%12s  %-16s %14s %6s %14s  %s\n", "round", "job",
                      "contributions", "files", "bytes", "state");
  for (const Entry& entry : entries) {
    const bool whole = !entry.manifest.files.empty();
    absl::StrAppendFormat(
        &text, "%12d  %-16s %14s %6s %14s  %s\n", entry.round,
        whole ? entry.manifest.job : "-",
        whole ? absl::StrCat(entry.manifest.contributions_before) : "-",
        whole ? absl::StrCat(entry.manifest.files.size()) : "-",
        whole ? absl::StrCat(entry.bytes()) : "-",
        entry.state.ok() ? "whole" : std::string(entry.state.message()));
  }
  return text;
}

std::string EntriesJson(const std::vector<Entry>& entries) {
  auto json = nlohmann::ordered_json::array();
  for (const Entry& entry : entries) {
    const bool whole = !entry.manifest.files.empty();
    nlohmann::ordered_json each = {
        {"round", entry.round},
        {"folder", CheckpointFolder(entry.round)},
        {"usable", entry.state.ok()},
        {"problem", std::string(entry.state.message())}};
    if (whole) {
      each["job"] = entry.manifest.job;
      each["contributions"] = entry.manifest.contributions_before;
      each["files"] = entry.manifest.files.size();
      each["bytes"] = entry.bytes();
    }
    json.push_back(std::move(each));
  }
  return json.dump(2) + "\n";
}

}  // namespace

CLI::App* CheckpointCommand::Register(CLI::App& app) {
  CLI::App* const subcommand = app.add_subcommand(
      "checkpoint", "Makes a checkpoint of a running job, and waits for it");
  AddFlag(*subcommand, "server", server_,
          "HOST:PORT of the coordinator's control port")
      ->required()
      ->check([](const std::string& address) {
        return std::string(CheckHostPort("it", address).message());
      });
  AddFlag(*subcommand, "timeout", timeout_seconds_, "Seconds to wait for it")
      ->check(CLI::Range(0.001, 86400.0));
  AddSwitch(*subcommand, "json", json_, "Prints JSON");
  return subcommand;
}

int CheckpointCommand::Run(std::ostream& out, std::ostream& err) {
  const absl::StatusOr<JobStatus> status =
      MakeCheckpoint(server_, absl::Seconds(timeout_seconds_));
  if (!status.ok()) {
    err << "nereusctl checkpoint: " << std::string(status.status().message())
        << "\n";
    return kExitFailed;
  }
  if (json_) {
    out << nlohmann::ordered_json(
               {{"round", status->checkpoint.round},
                {"folder", CheckpointFolder(status->checkpoint.round)},
                {"contributions", status->checkpoint.contributions},
                {"bytes", status->checkpoint.bytes}})
               .dump(2)
        << "\n";
  } else {
    out << "checkpoint of round " << status->checkpoint.round << ": "
        << status->checkpoint.bytes << " bytes in "
        << CheckpointFolder(status->checkpoint.round) << "\n";
  }
  return kExitDone;
}

CLI::App* CheckpointsCommand::Register(CLI::App& app) {
  CLI::App* const subcommand =
      app.add_subcommand("checkpoints", "Lists the checkpoints in a folder");
  subcommand->add_option("folder", folder_, "what --checkpoint-dir named")
      ->required();
  AddSwitch(*subcommand, "verify", verify_,
            "Reads all files, and compares their checksums");
  AddSwitch(*subcommand, "json", json_, "Prints JSON");
  return subcommand;
}

int CheckpointsCommand::Run(std::ostream& out, std::ostream& err) {
  const absl::StatusOr<std::vector<Entry>> entries =
      ListEntries(folder_, verify_);
  if (!entries.ok()) {
    err << "nereusctl checkpoints: " << std::string(entries.status().message())
        << "\n";
    return kExitFailed;
  }
  out << (json_ ? EntriesJson(*entries) : EntriesTable(*entries));
  const bool damaged =
      std::any_of(entries->begin(), entries->end(), [](const Entry& entry) {
        return !entry.state.ok() && !entry.manifest.files.empty();
      });
  return damaged ? kExitFailed : kExitDone;
}

}  // namespace nereus
