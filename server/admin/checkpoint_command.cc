// Commands `checkpoint` and `checkpoints`.
//
// MakeCheckpoint asks the coordinator of a running job for a checkpoint, and
// polls the job's status until the checkpoint is whole (complete). ListEntries
// reads a folder; it needs no job. The classes at the end have the flags, and
// choose between text and JSON.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/json_text.h"
#include "common/base/status.h"
#include "common/base/text_table.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/manifest.h"
#include "common/flags/flags.h"
#include "common/rpc/admin_client.h"
#include "nlohmann/json.hpp"
#include "server/admin/checkpoint_folder.h"
#include "server/admin/commands.h"

namespace nereus {
namespace {

// Time between two looks at the status of the job.
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);

// Asks the coordinator for a checkpoint, and returns the status of the job once
// the checkpoint is whole.
absl::StatusOr<JobStatus> MakeCheckpoint(const std::string& server,
                                         absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  NEREUS_TRY(RequestCheckpoint(server, timeout));
  while (true) {
    JobStatus status =
        NEREUS_TRY(FetchJobStatus(server, deadline - SteadyNow()));
    if (!status.checkpoint.wanted) {
      if (status.checkpoint.failure.empty()) return status;
      return AbortedError(status.checkpoint.failure);
    }
    if (status.state != JobState::kRunning) {
      return AbortedError("job ", status.job, " is ",
                          JobStateName(status.state),
                          " before the checkpoint was made");
    }
    if (SteadyNow() + kPollInterval > deadline) {
      return DeadlineExceededError(
          "no checkpoint after ", absl::FormatDuration(timeout),
          "; the job makes it when the workers begin another step: look at "
          "`nereusctl status --server=",
          server, "`");
    }
    absl::SleepFor(kPollInterval);
  }
}

// A checkpoint of the folder, whole or not.
struct Entry {
  int64_t round = 0;
  absl::Status state;  // Error: reason why no job can start from it.
  Manifest manifest;   // Has no files if the checkpoint is not whole.

  bool is_whole() const { return !manifest.files.empty(); }
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const ManifestFile& file : manifest.files) bytes += file.bytes;
    return bytes;
  }
};

// Returns the checkpoints of a folder, the newest one first.
absl::StatusOr<std::vector<Entry>> ListEntries(const std::string& folder,
                                               bool verify) {
  const std::unique_ptr<FileStorage> storage =
      NEREUS_TRY(OpenCheckpointFolder(folder));
  CheckpointList list = NEREUS_TRY(ListCheckpoints(*storage));
  std::vector<Entry> entries;
  for (Manifest& manifest : list.complete) {
    Entry entry{manifest.round, absl::OkStatus(), std::move(manifest)};
    if (verify) entry.state = VerifyCheckpoint(*storage, entry.manifest);
    entries.push_back(std::move(entry));
  }
  for (const auto* unusable : {&list.unfinished, &list.damaged}) {
    for (const UnusableCheckpoint& checkpoint : *unusable) {
      entries.push_back({checkpoint.round, checkpoint.why, Manifest()});
    }
  }
  absl::c_sort(entries, [](const Entry& a, const Entry& b) {
    return a.round > b.round;
  });
  return entries;
}

// Returns a table with one line for each checkpoint. Shows "-" for the figures
// of a checkpoint that is not whole, because it has no manifest with them.
std::string EntriesTable(const std::vector<Entry>& entries) {
  if (entries.empty()) return "no checkpoints\n";
  TextTable table("rlrrrl");
  table.Row("round", "job", "contributions", "files", "bytes", "state");
  for (const Entry& entry : entries) {
    const auto shown = [&](const auto& value) {
      return entry.is_whole() ? absl::StrCat(value) : "-";
    };
    table.Row(entry.round, shown(entry.manifest.job),
              shown(entry.manifest.contributions_before),
              shown(entry.manifest.files.size()), shown(entry.bytes()),
              entry.state.ok() ? "whole" : entry.state.message());
  }
  return table.Text();
}

// Returns the checkpoints as a JSON array. "problem" is empty for a usable
// checkpoint.
std::string EntriesJson(const std::vector<Entry>& entries) {
  auto json = nlohmann::ordered_json::array();
  for (const Entry& entry : entries) {
    nlohmann::ordered_json each = {
        {"round", entry.round},
        {"folder", CheckpointFolder(entry.round)},
        {"usable", entry.state.ok()},
        {"problem", std::string(entry.state.message())}};
    if (entry.is_whole()) {
      each["job"] = entry.manifest.job;
      each["contributions"] = entry.manifest.contributions_before;
      each["files"] = entry.manifest.files.size();
      each["bytes"] = entry.bytes();
    }
    json.push_back(std::move(each));
  }
  return FormatJson(json) + "\n";
}

class CheckpointCommand final : public Command {
 public:
  CheckpointCommand()
      : Command("checkpoint",
                "Makes a checkpoint of a running job, and waits for it") {}

 private:
  void AddFlags(CLI::App& app) override {
    AddCoordinatorFlags(app, server_, timeout_seconds_);
    AddSwitch(app, "json", json_, "print JSON");
  }

  absl::StatusOr<int> Execute(std::ostream& out,
                              std::ostream& /*err*/) override {
    const JobStatus status =
        NEREUS_TRY(MakeCheckpoint(server_, absl::Seconds(timeout_seconds_)));
    const std::string folder = CheckpointFolder(status.checkpoint.round);
    if (json_) {
      out << FormatJson({{"round", status.checkpoint.round},
                         {"folder", folder},
                         {"contributions", status.checkpoint.contributions},
                         {"bytes", status.checkpoint.bytes}})
          << "\n";
    } else {
      out << "checkpoint of round " << status.checkpoint.round << ": "
          << status.checkpoint.bytes << " bytes in " << folder << "\n";
    }
    return kExitDone;
  }

  std::string server_;             // --server
  double timeout_seconds_ = 60.0;  // --timeout
  bool json_ = false;              // --json
};

class CheckpointsCommand final : public Command {
 public:
  CheckpointsCommand()
      : Command("checkpoints", "Lists the checkpoints in a folder") {}

 private:
  void AddFlags(CLI::App& app) override {
    app.add_option("folder", folder_, "the folder that --checkpoint-dir named")
        ->required();
    AddSwitch(app, "verify", verify_,
              "read all files, and compare their checksums");
    AddSwitch(app, "json", json_, "print JSON");
  }

  absl::StatusOr<int> Execute(std::ostream& out,
                              std::ostream& /*err*/) override {
    const std::vector<Entry> entries =
        NEREUS_TRY(ListEntries(folder_, verify_));
    if (entries.empty()) NEREUS_TRY(CheckIsCheckpointFolder(folder_));
    out << (json_ ? EntriesJson(entries) : EntriesTable(entries));
    // Ignores checkpoints without a manifest (kNotFound): they are unfinished,
    // not damaged.
    const bool is_damaged = absl::c_any_of(entries, [](const Entry& entry) {
      return !entry.state.ok() && !absl::IsNotFound(entry.state);
    });
    return is_damaged ? kExitFailed : kExitDone;
  }

  std::string folder_;   // Folder to list.
  bool verify_ = false;  // --verify
  bool json_ = false;    // --json
};

}  // namespace

std::unique_ptr<Command> MakeCheckpointCommand() {
  return std::make_unique<CheckpointCommand>();
}

std::unique_ptr<Command> MakeCheckpointsCommand() {
  return std::make_unique<CheckpointsCommand>();
}

}  // namespace nereus
