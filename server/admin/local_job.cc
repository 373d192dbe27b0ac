#include "server/admin/local_job.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/flags/job_file.h"
#include "common/flags/model_file.h"
#include "server/admin/local_report.h"
#include "server/process/exit_codes.h"

namespace nereus {
namespace {

constexpr absl::Duration kListenTimeout = absl::Seconds(30);

// From the last worker's end to the last server's.
// After the job: for the evaluation of what was trained.
constexpr absl::Duration kWorkerEndTimeout = absl::Minutes(10);
constexpr absl::Duration kServerEndTimeout = absl::Seconds(15);

// For the processes to end by themselves once they are asked to.
constexpr absl::Duration kStopGrace = absl::Seconds(5);

// A process that dies takes others with it at once; which of them ended first
// is not told, so those that end within this time are looked at together.
constexpr absl::Duration kSettleTime = absl::Seconds(1);

constexpr absl::Duration kDisplayPeriod = absl::Milliseconds(200);
constexpr size_t kErrorLinesMax = 12;
constexpr char kCoordinator[] = "coordinator";
constexpr char kFirstShard[] = "shard 0";  // Coordinates without restarts.
constexpr char kKeepsShards[] =
    "--backup=1 keeps a copy of each shard, --checkpoint-dir=DIR what to go "
    "back to";
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
  progress_.resize(options_.spec.workers);
  absl::StatusOr<LocalOutcome> outcome = RunProcesses();
  display_->Clear();
  group_->Stop(kStopGrace);
  group_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(std::filesystem::path(files_.job).parent_path(),
                              ignored);
  return outcome;
}

absl::StatusOr<LocalOutcome> LocalJob::RunProcesses() {
  NEREUS_RETURN_IF_ERROR(StartCoordinator());
  NEREUS_ASSIGN_OR_RETURN(
      int signal,
      WaitUntil([this] { return coordinator_.has_value(); },
                absl::Now() + kListenTimeout,
                absl::StrCat(members_[0].name, " does not listen after ",
                             absl::FormatDuration(kListenTimeout))));
  if (signal != 0) return LocalOutcome{signal, restarts_, lost_, {}};
  display_->PrintLine(absl::StrCat(
      "coordinator at ", coordinator_->control,
      "; nereusctl status --server=", coordinator_->control, " shows the job"));
  NEREUS_RETURN_IF_ERROR(StartOthers());

  NEREUS_ASSIGN_OR_RETURN(signal,
                          WaitUntil([this] { return WorkersHaveEnded(); },
                                    absl::InfiniteFuture(), ""));
  if (signal != 0) return LocalOutcome{signal, restarts_, lost_, {}};
  const absl::StatusOr<int> servers_end =
      WaitUntil([this] { return group_->running() == 0; },
                absl::Now() + kServerEndTimeout,
                absl::StrCat("all workers are done, but ",
                             absl::FormatDuration(kServerEndTimeout),
                             " later a server still runs"));
  // One that stood still at the end may not know it yet, and is stopped.
  if (!servers_end.ok() && !JobIsFinished()) return servers_end.status();
  signal = servers_end.value_or(0);
  if (signal != 0) return LocalOutcome{signal, restarts_, lost_, {}};
  return LocalOutcome{0, restarts_, lost_, std::move(results_)};
}

absl::Status LocalJob::StartCoordinator() {
  std::string folder =
      (std::filesystem::temp_directory_path() / "nereus-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot make ", folder, ": ", strerror(errno)));
  }
  files_ = {folder + "/job.conf", folder + "/coordinator.sqlite"};
  NEREUS_RETURN_IF_ERROR(WriteTextFile(files_.job, JobText(options_.spec)));
  Member member;
  member.is_server = true;
  const bool hosts = options_.restarts == 0;
  member.name = hosts ? kFirstShard : kCoordinator;
  member.arguments = hosts ? ServerArguments(options_, files_, 0, "")
                           : CoordinatorArguments(options_, files_, /*port=*/0);
  return StartProcess(std::move(member));
}

absl::Status LocalJob::StartOthers() {
  const std::string& coordinator = coordinator_->control;
  const int first_shard = options_.restarts == 0 ? 1 : 0;
  for (int shard = first_shard; shard < options_.spec.shards; ++shard) {
    Member member;
    member.name = absl::StrCat("shard ", shard);
    member.is_server = true;
    member.arguments = ServerArguments(options_, files_, shard, coordinator);
    NEREUS_RETURN_IF_ERROR(StartProcess(std::move(member)));
  }
  for (int worker = 0; worker < options_.spec.workers; ++worker) {
    Member member;
    member.name = absl::StrCat("worker ", worker);
    member.slot = worker;
    member.arguments = WorkerArguments(options_, worker, coordinator);
    NEREUS_RETURN_IF_ERROR(StartProcess(std::move(member)));
  }
  return absl::OkStatus();
}

absl::Status LocalJob::StartProcess(Member member) {
  ProcessOptions process;
  process.command = member.arguments;
  process.command.insert(process.command.begin(), member.is_server
                                                      ? programs_.server
                                                      : programs_.worker);
  // Flags may come from the environment too, and those meant for this program
  // are not meant for the ones that it starts.
  process.environment = EnvironmentWithout("NEREUS_");
  members_.push_back(std::move(member));
  return group_->Start(process).status();
}

// A coordinator that ends by itself says so.
bool LocalJob::JobHasFailed() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& m) {
    return m.name == kCoordinator && m.exit.has_value() && m.exit->code != 0;
  });
}

std::optional<absl::Time> LocalJob::FinishedAt() const {
  if (!coordinator_.has_value()) return std::nullopt;
  const absl::string_view coordinator =
      options_.restarts == 0 ? kFirstShard : kCoordinator;
  for (const Member& member : members_) {
    if (member.name == coordinator && member.exit.has_value() &&
        member.exit->ok()) {
      return member.exited_at;
    }
  }
  return std::nullopt;
}

bool LocalJob::IsToBeReplaced(const Member& member, absl::Time now) const {
  if (!HasFailed(member) || !member.mistake.empty() ||
      restarts_ >= options_.restarts || !coordinator_.has_value() ||
      JobHasFailed() || JobIsFinished()) {
    return false;
  }
  return member.exit->signal != 0 || now - member.exited_at > kSettleTime;
}

absl::Status LocalJob::ReplaceTheDead() {
  const absl::Time now = absl::Now();
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& dead = members_[i];
    if (!IsToBeReplaced(dead, now)) continue;
    ++restarts_;
    dead.is_replaced = true;
    display_->PrintLine(absl::StrCat(DescribeFailure(dead),
                                     "; it is started again (", restarts_,
                                     " of ", options_.restarts, ")"));
    Member next;
    next.name = dead.name;
    next.is_server = dead.is_server;
    next.arguments = dead.arguments;
    next.slot = dead.slot;
    if (next.name == kCoordinator) {
      // Where the others look for it.
      int port = 0;
      const std::string& control = coordinator_->control;
      if (!absl::SimpleAtoi(control.substr(control.rfind(':') + 1), &port)) {
        return absl::InternalError(absl::StrCat("no port in ", control));
      }
      next.arguments = CoordinatorArguments(options_, files_, port);
    }
    NEREUS_RETURN_IF_ERROR(StartProcess(std::move(next)));
  }
  return absl::OkStatus();
}

bool LocalJob::IsToBeMissed(const Member& member) const {
  // It died as the job ended, which it has found no more; or stands still.
  if (JobIsFinished() && !member.is_server && member.mistake.empty() &&
      !member.is_done) {
    const bool is_late = !member.exit.has_value() &&
                         absl::Now() - *FinishedAt() > kWorkerEndTimeout;
    return is_late || HasFailed(member);
  }
  const bool was_killed = member.exit.has_value() && member.exit->signal != 0;
  if (options_.restarts > 0 || member.is_server || member.is_done ||
      !was_killed || !member.mistake.empty()) {
    return false;
  }
  // Before the job runs, it waits for all of them.
  const bool runs =
      std::any_of(progress_.begin(), progress_.end(),
                  [](const auto& each) { return each.has_value(); });
  return runs &&
         std::any_of(members_.begin(), members_.end(), [](const Member& other) {
           return !other.is_server && !other.exit.has_value();
         });
}

void LocalJob::MissTheDead() {
  for (Member& member : members_) {
    if (member.is_missed || !IsToBeMissed(member)) continue;
    member.is_missed = true;
    ++lost_;
    progress_[member.slot].reset();
    const std::string what = member.exit.has_value()
                                 ? DescribeFailure(member)
                                 : member.name + " does not end";
    display_->PrintLine(
        JobIsFinished()
            ? absl::StrCat(what, "; the job was finished without it")
            : absl::StrCat(what, "; the job goes on without it. ",
                           Hint(member)));
  }
}

std::string LocalJob::Hint(const Member& member) const {
  if (!member.mistake.empty() || !member.exit.has_value()) return "";
  if (options_.restarts > 0 && restarts_ >= options_.restarts) {
    return absl::StrCat("all ", options_.restarts,
                        " restarts are used: --restarts=N allows more");
  }
  if (member.exit->signal == 0) return "";
  if (options_.restarts == 0) {
    return absl::StrCat("--restarts=N starts processes that die again",
                        member.is_server && !options_.spec.options.backup
                            ? ", --backup=1 keeps a copy of each shard"
                            : "");
  }
  const bool is_shard = member.is_server && member.name != kCoordinator;
  if (is_shard && !options_.spec.options.backup &&
      options_.checkpoint_dir.empty()) {
    return kKeepsShards;
  }
  return "";
}

template <typename Predicate>
absl::StatusOr<int> LocalJob::WaitUntil(const Predicate& is_done,
                                        absl::Time deadline,
                                        const std::string& deadline_message) {
  while (true) {
    NEREUS_RETURN_IF_ERROR(ReplaceTheDead());
    MissTheDead();
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
  if (auto* progress = std::get_if<WorkerProgress>(&event)) {
    progress_[member.slot] = *progress;
    has_run_ = true;
    return absl::OkStatus();
  }
  if (member.is_done) return absl::InvalidArgumentError("it was done twice");
  member.is_done = true;
  results_.push_back(std::get<WorkerResult>(std::move(event)));
  results_.back().name = member.name;
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
  // The report says so.
  if (members_[process].is_server && exit.code == kExitNotSaved) {
    members_[process].exit = ProcessExit();
  }
  members_[process].exited_at = absl::Now();
  exits_.push_back(process);
}

bool LocalJob::HasFailed(const Member& member) const {
  if (member.is_replaced || member.is_missed) return false;
  if (!member.mistake.empty()) return true;
  if (!member.exit.has_value()) return false;
  if ((member.is_server || member.is_done) && JobIsFinished()) return false;
  const bool is_early =
      member.is_server ? !coordinator_.has_value() : !member.is_done;
  return !member.exit->ok() || is_early;
}

bool LocalJob::AnyHasFailed() const {
  const bool waits = options_.restarts > restarts_ && !JobHasFailed() &&
                     coordinator_.has_value();
  return std::any_of(members_.begin(), members_.end(), [&](const Member& m) {
    return HasFailed(m) && !(waits && m.mistake.empty());
  });
}

bool LocalJob::WorkersHaveEnded() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) {
    return m.is_server || m.is_missed || m.exit.has_value();
  });
}

std::string LocalJob::DescribeFailure(const Member& member) const {
  std::string text = member.name;
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

std::string LocalJob::ReasonIn(const std::vector<const Member*>& failed) {
  const std::string of_the_job = "the job failed: ";
  for (const Member* member : failed) {
    for (const std::string& line : member->error_lines) {
      const size_t at = line.find(of_the_job);
      if (at != std::string::npos) return line.substr(at + of_the_job.size());
    }
  }
  const auto& lines = failed[0]->error_lines;
  if (lines.empty() || !absl::StrContains(lines.back(), " ERROR ")) return "";
  const size_t end_of_tag = lines.back().find("] ");
  return end_of_tag == std::string::npos ? ""
                                         : lines.back().substr(end_of_tag + 2);
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
    const bool counts = HasFailed(member) || member.is_missed;
    if (member.mistake.empty() && counts) failed.push_back(&member);
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
  const std::string reason = ReasonIn(failed);
  absl::StrAppend(&message, "\nthe job failed: ", DescribeFailure(*failed[0]),
                  reason.empty() ? "" : ": ", reason);
  if (absl::StrContains(reason, "there is no checkpoint to go on from")) {
    absl::StrAppend(&message, "; ", kKeepsShards);
    return absl::AbortedError(message);
  }
  // The first one that says something: what ended the job may be another end
  // than the first.
  for (const Member* member : failed) {
    const std::string hint = Hint(*member);
    if (hint.empty()) continue;
    absl::StrAppend(&message, "; ", hint);
    break;
  }
  return absl::AbortedError(message);
}

}  // namespace nereus
