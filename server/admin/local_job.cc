#include "server/admin/local_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "server/admin/local_report.h"

namespace nereus {
namespace {

constexpr absl::Duration kListenTimeout = absl::Seconds(30);

// From the last worker's end to the last server's.
constexpr absl::Duration kServerEndTimeout = absl::Seconds(15);

// For the processes to end by themselves once they are asked to.
constexpr absl::Duration kStopGrace = absl::Seconds(5);

// A process that dies takes others with it at once; which of them ended first
// is not told, so those that end within this time are looked at together.
constexpr absl::Duration kSettleTime = absl::Seconds(1);

constexpr absl::Duration kDisplayPeriod = absl::Milliseconds(200);
constexpr size_t kErrorLinesMax = 12;
constexpr size_t kShownLineBytesMax = 2000;

}  // namespace

absl::StatusOr<ServerAddresses> ParseListeningLine(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  constexpr absl::string_view kControl = "control=";
  constexpr absl::string_view kData = "data=";
  if (words.size() != 3 || words[0] != "listening" ||
      !absl::StartsWith(words[1], kControl) ||
      !absl::StartsWith(words[2], kData) ||
      words[1].size() == kControl.size() || words[2].size() == kData.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a line \"listening control=... data=...\": ",
                     line.substr(0, kShownLineBytesMax)));
  }
  return ServerAddresses{std::string(words[1].substr(kControl.size())),
                         std::string(words[2].substr(kData.size()))};
}

bool IsLineShown(absl::string_view line, LogLevel level) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::MaxSplits(' ', 2));
  if (words.size() < 3 || !absl::StartsWith(words[2], "[")) return true;
  if (words[1] == "DEBUG") return level <= LogLevel::kDebug;
  if (words[1] == "INFO") return level <= LogLevel::kInfo;
  if (words[1] == "WARNING") return level <= LogLevel::kWarning;
  return true;
}

absl::StatusOr<LocalOutcome> LocalJob::Run() {
  NEREUS_ASSIGN_OR_RETURN(group_, ProcessGroup::Create(this));
  progress_.resize(options_.workers);
  absl::StatusOr<LocalOutcome> outcome = RunProcesses();
  display_->Clear();
  group_->Stop(kStopGrace);
  group_.reset();
  return outcome;
}

absl::StatusOr<LocalOutcome> LocalJob::RunProcesses() {
  NEREUS_RETURN_IF_ERROR(StartProcess("shard 0", /*is_server=*/true,
                                      ServerArguments(options_, 0, "")));
  NEREUS_ASSIGN_OR_RETURN(
      int signal,
      WaitUntil([this] { return coordinator_.has_value(); },
                absl::Now() + kListenTimeout,
                absl::StrCat("shard 0 does not listen after ",
                             absl::FormatDuration(kListenTimeout))));
  if (signal != 0) return LocalOutcome{signal, {}};
  NEREUS_RETURN_IF_ERROR(StartOthers());

  NEREUS_ASSIGN_OR_RETURN(signal,
                          WaitUntil([this] { return WorkersHaveEnded(); },
                                    absl::InfiniteFuture(), ""));
  if (signal != 0) return LocalOutcome{signal, {}};
  NEREUS_ASSIGN_OR_RETURN(
      signal, WaitUntil([this] { return group_->running() == 0; },
                        absl::Now() + kServerEndTimeout,
                        absl::StrCat("all workers are done, but ",
                                     absl::FormatDuration(kServerEndTimeout),
                                     " later a server still runs")));
  if (signal != 0) return LocalOutcome{signal, {}};
  return LocalOutcome{0, std::move(results_)};
}

absl::Status LocalJob::StartOthers() {
  const std::string& coordinator = coordinator_->control;
  for (int shard = 1; shard < options_.servers; ++shard) {
    NEREUS_RETURN_IF_ERROR(
        StartProcess(absl::StrCat("shard ", shard), /*is_server=*/true,
                     ServerArguments(options_, shard, coordinator)));
  }
  for (int worker = 0; worker < options_.workers; ++worker) {
    NEREUS_RETURN_IF_ERROR(StartProcess(
        absl::StrCat("worker process ", worker),
        /*is_server=*/false, WorkerArguments(options_, coordinator)));
  }
  return absl::OkStatus();
}

absl::Status LocalJob::StartProcess(std::string name, bool is_server,
                                    std::vector<std::string> arguments) {
  ProcessOptions process;
  process.command = std::move(arguments);
  process.command.insert(process.command.begin(),
                         is_server ? programs_.server : programs_.worker);
  // Flags may come from the environment too, and those meant for this program
  // are not meant for the ones that it starts.
  process.environment = EnvironmentWithout("NEREUS_");
  Member& member = members_.emplace_back();
  member.name = std::move(name);
  member.is_server = is_server;
  return group_->Start(process).status();
}

template <typename Predicate>
absl::StatusOr<int> LocalJob::WaitUntil(const Predicate& is_done,
                                        absl::Time deadline,
                                        const std::string& deadline_message) {
  while (true) {
    if (AnyHasFailed()) return Failure();
    if (is_done()) return 0;
    const absl::Time now = absl::Now();
    if (now >= deadline) return absl::DeadlineExceededError(deadline_message);
    display_->Show(FormatProgress(progress_), now);
    NEREUS_ASSIGN_OR_RETURN(
        const int signal,
        group_->WaitOnce(std::min(kDisplayPeriod, deadline - now)));
    if (signal != 0) return signal;
  }
}

void LocalJob::OnOutputLine(int process, const std::string& line) {
  Member& member = members_[process];
  absl::Status status;
  if (!member.is_server) {
    status = ReadWorkerLine(member, line);
  } else if (process == 0 && !coordinator_.has_value()) {
    absl::StatusOr<ServerAddresses> addresses = ParseListeningLine(line);
    status = addresses.status();
    if (addresses.ok()) coordinator_ = *std::move(addresses);
  }
  if (!status.ok() && member.mistake.empty()) {
    member.mistake = std::string(status.message());
  }
}

absl::Status LocalJob::ReadWorkerLine(Member& member, const std::string& line) {
  NEREUS_ASSIGN_OR_RETURN(WorkerEvent event, ParseWorkerEvent(line));
  const int rank = std::visit([](const auto& e) { return e.rank; }, event);
  if (rank >= options_.workers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its rank is ", rank, ", the job has ", options_.workers, " workers"));
  }
  member.rank = rank;
  if (auto* progress = std::get_if<WorkerProgress>(&event)) {
    progress_[rank] = *progress;
    return absl::OkStatus();
  }
  if (member.is_done) return absl::InvalidArgumentError("it was done twice");
  member.is_done = true;
  results_.push_back(std::get<WorkerResult>(std::move(event)));
  return absl::OkStatus();
}

void LocalJob::OnErrorLine(int process, const std::string& line) {
  Member& member = members_[process];
  member.error_lines.push_back(line.substr(0, kShownLineBytesMax));
  if (member.error_lines.size() > kErrorLinesMax) {
    member.error_lines.pop_front();
  }
  if (IsLineShown(line, options_.log_level)) {
    display_->PrintLine(absl::StrCat(member.name, ": ", line));
  }
}

void LocalJob::OnExit(int process, const ProcessExit& exit) {
  members_[process].exit = exit;
  exits_.push_back(process);
}

bool LocalJob::HasFailed(const Member& member) const {
  if (!member.mistake.empty()) return true;
  if (!member.exit.has_value()) return false;
  const bool is_early =
      member.is_server ? !coordinator_.has_value() : !member.is_done;
  return !member.exit->ok() || is_early;
}

bool LocalJob::AnyHasFailed() const {
  return std::any_of(members_.begin(), members_.end(),
                     [this](const Member& m) { return HasFailed(m); });
}

bool LocalJob::WorkersHaveEnded() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) {
    return m.is_server || m.exit.has_value();
  });
}

std::string LocalJob::DescribeFailure(const Member& member) const {
  std::string text = member.name;
  if (member.rank.has_value()) {
    absl::StrAppend(&text, " (rank ", *member.rank, ")");
  }
  if (!member.mistake.empty()) {
    absl::StrAppend(&text, " wrote what is not understood: ", member.mistake);
  } else {
    absl::StrAppend(&text, " ", DescribeExit(*member.exit));
    if (member.exit->ok()) {
      absl::StrAppend(&text, member.is_server ? " before it listened"
                                              : " without a result");
    }
  }
  return text;
}

absl::Status LocalJob::Failure() {
  const absl::Time deadline = absl::Now() + kSettleTime;
  while (group_->running() > 0 && absl::Now() < deadline) {
    const auto signal = group_->WaitOnce(deadline - absl::Now());
    if (!signal.ok() || *signal != 0) break;
  }
  std::vector<const Member*> failed;
  for (const Member& member : members_) {
    if (!member.mistake.empty()) failed.push_back(&member);
  }
  for (const int process : exits_) {
    const Member& member = members_[process];
    if (member.mistake.empty() && HasFailed(member)) failed.push_back(&member);
  }
  // No process of ours kills another, so a killed one is the cause even if its
  // end was seen after those of its peers.
  std::stable_sort(failed.begin(), failed.end(), [](auto* a, auto* b) {
    const auto was_killed = [](const Member* member) {
      return member->exit.has_value() && member->exit->signal != 0;
    };
    return was_killed(a) && !was_killed(b);
  });
  std::string message = DescribeFailure(*failed[0]);
  if (!failed[0]->error_lines.empty()) {
    absl::StrAppend(&message, "; its last lines:");
    for (const std::string& line : failed[0]->error_lines) {
      absl::StrAppend(&message, "\n  ", line);
    }
  }
  for (size_t i = 1; i < failed.size(); ++i) {
    absl::StrAppend(&message, "\nand then ", DescribeFailure(*failed[i]));
  }
  return absl::AbortedError(message);
}

}  // namespace nereus
