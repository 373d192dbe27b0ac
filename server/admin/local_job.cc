// Supervisor of the processes of `nereusctl local` and `nereusctl run`.
//
// Run starts the processes and calls WaitUntil for each phase of the job: the
// coordinator listens, all workers end, all servers end. WaitUntil handles the
// events of ProcessGroup and decides after each event what a dead process
// means (FateOf): ReplaceTheDead, GiveUpTheDead and Failure do what follows.
//
// A process that dies makes other processes fail, so the first process that
// has failed need not be the cause. Failure waits a second for the others.
// Then it names the cause (FailedProcesses): a process that was killed by
// SIGKILL, or else one with a line that is not understood, or else the process
// that ended first.

#include "server/admin/local_job.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/status.h"

namespace nereus {

namespace {

// Time for the coordinator to listen.
constexpr absl::Duration kListenTimeout = absl::Seconds(30);
// Time for the servers to end after the last worker has ended.
constexpr absl::Duration kServerEndTimeout = absl::Seconds(15);
// Time for the servers to end if the exits of workers decide. Servers do not
// end by themselves if a worker has exited with code 0 without leaving the job.
constexpr absl::Duration kAbandonedEndTimeout = absl::Seconds(5);
// Time for workers, and for servers, to end by themselves once they are asked
// to.
constexpr absl::Duration kWorkerGrace = absl::Seconds(10);
constexpr absl::Duration kServerGrace = absl::Seconds(5);
// Time within which several ends of processes count as one failure. Within this
// time, the order of the reports does not tell which end was the cause.
constexpr absl::Duration kSettleTime = absl::Seconds(1);
constexpr absl::Duration kDisplayPeriod = absl::Milliseconds(200);

constexpr char kCoordinator[] = "coordinator";
constexpr char kFirstShard[] = "shard 0";  // Coordinates without restarts.
constexpr char kKeepsShards[] =
    "--backup=1 keeps a copy of each shard, --checkpoint-dir=DIR keeps "
    "checkpoints to go back to";

}  // namespace

absl::StatusOr<LocalOutcome> LocalJob::Run() {
  group_ = NEREUS_TRY(ProcessGroup::Create(this));
  const absl::Status status = RunProcesses();
  display_->Clear();
  StopWorkers();
  // Not SIGTERM, with which servers would first hand over their values.
  Signal(/*servers=*/true, SIGINT);
  group_->Stop(kServerGrace);
  group_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(std::filesystem::path(files_.job).parent_path(),
                              ignored);
  if (outcome_.signal == 0) {
    NEREUS_TRY(status);
    outcome_.workers = workers_->TakeResults();
  }
  return std::move(outcome_);
}

absl::Status LocalJob::RunProcesses() {
  NEREUS_TRY(StartCoordinator());
  NEREUS_TRY(WaitUntil(
      [this] { return !coordinator_.empty(); }, SteadyNow() + kListenTimeout,
      absl::StrCat(processes_[0].name, " does not listen after ",
                   absl::FormatDuration(kListenTimeout))));
  display_->PrintLine(absl::StrCat("coordinator at ", coordinator_,
                                   "; nereusctl status --server=", coordinator_,
                                   " shows the job", PageText(options_)));
  NEREUS_TRY(StartOthers());
  NEREUS_TRY(WaitUntil([this] { return HaveEnded(/*servers=*/false); },
                       absl::InfiniteFuture(), ""));
  return AwaitServers();
}

absl::Status LocalJob::AwaitServers() {
  const bool exit_decides = workers_->exit_decides();
  const absl::Duration limit =
      exit_decides ? kAbandonedEndTimeout : kServerEndTimeout;
  const absl::Status servers_end = WaitUntil(
      [this] { return HaveEnded(/*servers=*/true); }, SteadyNow() + limit,
      absl::StrCat("all workers are done, but ", absl::FormatDuration(limit),
                   " later a server still runs"));
  // A server that stood still perhaps does not know yet that the job is over.
  // That is no error: Run stops such a server.
  if (IsFinished()) return absl::OkStatus();
  if (!exit_decides || !absl::IsDeadlineExceeded(servers_end)) {
    return servers_end;
  }
  return AbortedError(
      "the job failed: all workers have ended with code 0, but the job is not "
      "finished: they did not join it, or did not leave it (Client::Leave, in "
      "Python nereus.torch.shutdown)");
}

int LocalJob::Signal(bool servers, int signal) {
  int running = 0;
  for (size_t i = 0; i < processes_.size(); ++i) {
    const LocalProcess& child = processes_[i];
    if (child.is_server != servers || child.exit.has_value()) continue;
    // Returns false for a process that could not be started.
    running += group_->Signal(static_cast<int>(i), signal) ? 1 : 0;
  }
  return running;
}

// After SIGTERM, workers leave the job early, and it makes a last checkpoint.
void LocalJob::StopWorkers() {
  int running = Signal(/*servers=*/false,
                       outcome_.signal != 0 ? outcome_.signal : SIGTERM);
  const absl::Time deadline = SteadyNow() + kWorkerGrace;
  while (running > 0 && SteadyNow() < deadline) {
    const auto signal = group_->WaitOnce(deadline - SteadyNow());
    if (!signal.ok() || *signal != 0) break;
    running = Signal(/*servers=*/false, 0);
  }
  Signal(/*servers=*/false, SIGKILL);
}

// The job file and the state of the coordinator live in a temporary folder.
absl::Status LocalJob::StartCoordinator() {
  files_ = NEREUS_TRY(MakeLocalFiles(options_.spec));
  NEREUS_TRY(MakeShareFolder(options_.share));
  LocalProcess child;
  child.is_server = true;
  child.coordinates = true;
  const bool is_shard = options_.restarts == 0;
  child.name = is_shard ? kFirstShard : kCoordinator;
  child.arguments = is_shard
                        ? ServerArguments(options_, files_, 0, "")
                        : CoordinatorArguments(options_, files_, /*port=*/"0");
  return StartProcess(std::move(child));
}

absl::Status LocalJob::StartOthers() {
  const int first_shard = options_.restarts == 0 ? 1 : 0;
  for (int shard = first_shard; shard < options_.spec.shards; ++shard) {
    LocalProcess child;
    child.name = absl::StrCat("shard ", shard);
    child.is_server = true;
    child.arguments = ServerArguments(options_, files_, shard, coordinator_);
    NEREUS_TRY(StartProcess(std::move(child)));
  }
  for (int worker = 0; worker < options_.spec.workers; ++worker) {
    LocalProcess child;
    child.name = absl::StrCat("worker ", worker);
    child.worker = worker;
    NEREUS_TRY(StartProcess(std::move(child)));
  }
  return absl::OkStatus();
}

absl::Status LocalJob::StartProcess(LocalProcess child) {
  ProcessOptions process;
  if (child.is_server) {
    process.command = child.arguments;
    process.command.insert(process.command.begin(), server_program_);
    // Removes the variables NEREUS_*, which set flags of this program. The
    // servers get their flags from the job file and from their arguments.
    process.environment = EnvironmentWithout("NEREUS_");
  } else {
    process = workers_->Program(child.worker, coordinator_);
  }
  child.started_at = absl::Now();
  processes_.push_back(std::move(child));
  return group_->Start(process).status();
}

template <typename Predicate>
absl::Status LocalJob::WaitUntil(const Predicate& is_done, absl::Time deadline,
                                 const std::string& message) {
  while (true) {
    LookAtEnds();
    NEREUS_TRY(ReplaceTheDead());
    GiveUpTheDead();
    notices_.Tell(absl::MakeSpan(processes_), FinishedAt(), SteadyNow());
    if (JobHasFailed()) NEREUS_TRY(Failure());
    if (is_done()) return absl::OkStatus();
    const absl::Time now = SteadyNow();
    if (now >= deadline) return DeadlineExceededError(message);
    if (const std::string text = workers_->Progress(); !text.empty()) {
      display_->Show(text, now);
    }
    outcome_.signal =
        NEREUS_TRY(group_->WaitOnce(std::min(kDisplayPeriod, deadline - now)));
    if (outcome_.signal != 0) return CancelledError("a signal came");
  }
}

void LocalJob::LookAtEnds() {
  if (coordinator_.empty()) return;
  end_check_.Look(absl::MakeSpan(processes_), coordinator_, IsFinished(),
                  SteadyNow());
}

// Without the coordinator's reason, takes the last line of the first process,
// if it is a log line of level error.
std::string LocalJob::ReasonOfFailure(
    const std::vector<const LocalProcess*>& failed) const {
  if (last_status_.ok() && !last_status_->reason.empty()) {
    return last_status_->reason;
  }
  const auto& lines = failed[0]->error_lines;
  if (lines.empty() || !absl::StrContains(lines.back(), " ERROR ")) return "";
  const size_t end_of_tag = lines.back().find("] ");
  return end_of_tag == std::string::npos ? ""
                                         : lines.back().substr(end_of_tag + 2);
}

void LocalJob::OnOutputLine(int process, const std::string& line) {
  LocalProcess& child = processes_[process];
  absl::Status status;
  if (!child.is_server) {
    const absl::StatusOr<bool> is_result =
        workers_->OnOutputLine(child.worker, line);
    status = is_result.status();
    if (is_result.value_or(false) && std::exchange(child.is_done, true)) {
      status = InvalidArgumentError("it has reported its result twice");
    }
  } else if (coordinator_.empty()) {
    absl::StatusOr<std::string> address = ParseListeningLine(line);
    status = address.status();
    coordinator_ = std::move(address).value_or("");
  }
  if (!status.ok() && child.mistake.empty()) {
    child.mistake =
        absl::StrCat("wrote a line that is not understood: ", status.message());
  }
}

// After a signal, shows no lines: the servers log that workers have gone.
void LocalJob::OnErrorLine(int process, const std::string& line) {
  LocalProcess& child = processes_[process];
  const std::string text = AsTextLine(line);
  if (!child.is_server && workers_->ShowErrorLine(child.worker, line)) return;
  child.error_lines.push_back(text.substr(0, LocalProcess::kErrorLineBytesMax));
  if (child.error_lines.size() > LocalProcess::kErrorLinesMax) {
    child.error_lines.pop_front();
  }
  if (outcome_.signal == 0 && IsLineShown(text, options_.log.level)) {
    display_->PrintLineOf(child.name, line);
  }
}

void LocalJob::OnExit(int process, const ProcessExit& exit) {
  LocalProcess& child = processes_[process];
  if (!child.is_server) {
    workers_->OnExit(child.worker, exit);
    if (workers_->exit_decides()) child.is_done = exit.ok();
  }
  // If the model was not saved, the process has not failed. The report says so.
  const bool is_not_saved = child.is_server && exit.code == kExitNotSaved;
  outcome_.is_not_saved = outcome_.is_not_saved || is_not_saved;
  child.exit = is_not_saved ? ProcessExit() : exit;
  child.since = SteadyNow();
  child.ended_at = absl::Now();
  if (child.coordinates) last_status_ = ReadLastStatus(files_.last_status);
  exits_.push_back(process);
}

// A coordinator ends without an error only after all workers have left.
std::optional<absl::Time> LocalJob::FinishedAt() const {
  for (const LocalProcess& child : processes_) {
    if (child.coordinates && !coordinator_.empty() && child.exit.has_value() &&
        child.exit->ok()) {
      return child.since;
    }
  }
  return std::nullopt;
}

JobSituation LocalJob::Situation() const {
  JobSituation job;
  job.exit_decides = workers_->exit_decides();
  job.restarts = options_.restarts;
  job.restarts_left = options_.restarts - outcome_.restarts;
  job.backup = options_.spec.options.backup;
  job.min_workers = options_.spec.min_workers;
  job.listens = !coordinator_.empty();
  job.trains = end_check_.has_begun() || workers_->has_progress();
  job.finished_at = FinishedAt();
  for (const LocalProcess& child : processes_) {
    const bool has_ended = child.exit.has_value();
    job.running_workers += !child.is_server && !has_ended ? 1 : 0;
    if (options_.restarts > 0 && child.coordinates && has_ended &&
        child.exit->code != 0) {
      job.coordinator_failed = true;
    }
  }
  return job;
}

bool LocalJob::JobHasFailed() const {
  const JobSituation job = Situation();
  return absl::c_any_of(processes_, [&](const auto& each) {
    return FateOf(each, job, SteadyNow()) == Fate::kFailsJob;
  });
}

// A process that was killed is started again at once. A process that exited
// perhaps did so because the job has failed, so its restart waits kSettleTime.
absl::Status LocalJob::ReplaceTheDead() {
  const absl::Time now = SteadyNow();
  for (size_t i = 0; i < processes_.size(); ++i) {
    LocalProcess& dead = processes_[i];
    const bool is_due = dead.was_killed() || now - dead.since > kSettleTime;
    if (!is_due || FateOf(dead, Situation(), now) != Fate::kRestart) continue;
    ++outcome_.restarts;
    dead.is_replaced = true;
    display_->PrintLine(
        absl::StrCat(dead.DescribeFailure(), "; it is started again (",
                     outcome_.restarts, " of ", options_.restarts, ")"));
    LocalProcess next;
    next.name = dead.name;
    next.is_server = dead.is_server;
    next.coordinates = dead.coordinates;
    next.arguments = dead.arguments;
    next.worker = dead.worker;
    next.is_restart = true;
    next.since = now;
    if (next.coordinates) {
      // The other processes, if there are any, look for it at its old port.
      const std::string port =
          coordinator_.empty()
              ? "0"
              : coordinator_.substr(coordinator_.rfind(':') + 1);
      next.arguments = CoordinatorArguments(options_, files_, port);
      std::error_code ignored;
      std::filesystem::remove(files_.last_status, ignored);
      last_status_ = NotFoundError("it runs");
    }
    NEREUS_TRY(StartProcess(std::move(next)));
  }
  return absl::OkStatus();
}

void LocalJob::GiveUpTheDead() {
  const absl::Time now = SteadyNow();
  for (LocalProcess& child : processes_) {
    if (FateOf(child, Situation(), now) != Fate::kGivenUp) continue;
    child.is_given_up = true;
    if (child.is_server) {
      ++outcome_.lost_servers;
    } else {
      ++outcome_.lost;
      workers_->OnGivenUp(child.worker);
    }
    const std::string failure =
        child.exit.has_value()
            ? child.DescribeFailure()
            : child.name + (child.is_late ? " was started again too late"
                                          : " does not end");
    display_->PrintLine(
        IsFinished() || child.is_late
            ? absl::StrCat(failure, "; the job was finished without it")
            : absl::StrCat(failure, "; the job goes on without it. ",
                           Hint(child)));
  }
}

// Names a flag only if it would have helped against this end.
std::string LocalJob::Hint(const LocalProcess& child) const {
  const bool has_backup = options_.spec.options.backup;
  if (!child.mistake.empty() || !child.exit.has_value()) return "";
  if (IsVerdict(child, Situation())) return "";
  if (options_.restarts > 0 && outcome_.restarts >= options_.restarts) {
    return absl::StrCat("all ", options_.restarts,
                        " restarts are used: --restarts=N allows more");
  }
  if (!child.was_killed()) return "";
  if (options_.restarts == 0) {
    return absl::StrCat("--restarts=N starts processes that die again",
                        child.is_server && !has_backup
                            ? ", --backup=1 keeps a copy of each shard"
                            : "");
  }
  const bool is_shard = child.is_server && !child.coordinates;
  const bool is_kept = has_backup || !options_.checkpoint_dir.empty();
  return is_shard && !is_kept ? kKeepsShards : "";
}

// Returns the processes that failed, the likely cause first: the processes that
// were killed by SIGKILL, then those with a line that is not understood, then
// the others in the order of their ends. No process of a job kills another, so
// a kill is a cause even if it was seen late. But a process may abort because
// another one has failed.
std::vector<const LocalProcess*> LocalJob::FailedProcesses() const {
  const JobSituation job = Situation();
  std::vector<const LocalProcess*> failed;
  for (const LocalProcess& child : processes_) {
    if (!child.mistake.empty()) failed.push_back(&child);
  }
  for (const int process : exits_) {
    const LocalProcess& child = processes_[process];
    const bool counts = HasFailed(child, job) || child.is_given_up;
    if (child.mistake.empty() && counts) failed.push_back(&child);
  }
  absl::c_stable_sort(failed, [](auto* a, auto* b) {
    return a->was_killed_from_outside() && !b->was_killed_from_outside();
  });
  return failed;
}

// While Failure waits, the coordinator may end because the job has finished.
// Then a server that has died is no failure, and the job goes on to its end.
absl::Status LocalJob::Failure() {
  const absl::Time deadline = SteadyNow() + kSettleTime;
  int signal = 0;
  while (signal == 0 && group_->running() > 0 && SteadyNow() < deadline) {
    const auto next = group_->WaitOnce(deadline - SteadyNow());
    if (!next.ok()) break;
    signal = *next;
  }
  LookAtEnds();
  GiveUpTheDead();
  if (!JobHasFailed()) {
    outcome_.signal = signal;
    return signal == 0 ? absl::OkStatus() : CancelledError("a signal came");
  }
  const std::vector<const LocalProcess*> failed = FailedProcesses();
  failed_.process = failed[0]->name;
  if (!failed[0]->is_server) failed_.worker = failed[0]->exit;
  const std::string cause = failed[0]->DescribeFailure();
  std::string details;
  if (!failed[0]->error_lines.empty()) {
    absl::StrAppend(&details, cause, "; its last lines:\n");
    for (const std::string& line : failed[0]->error_lines) {
      absl::StrAppend(&details, "  ", line, "\n");
    }
  }
  for (size_t i = 1; i < failed.size(); ++i) {
    if (details.empty()) absl::StrAppend(&details, cause, "\n");
    absl::StrAppend(&details, "and then ", failed[i]->DescribeFailure(), "\n");
  }
  const std::string reason = ReasonOfFailure(failed);
  // Takes the first hint of any failed process: the end that made the job fail
  // can be that of a later process in the list.
  std::string hint;
  if (last_status_.ok() && last_status_->state == JobState::kLost) {
    hint = kKeepsShards;
  }
  for (const LocalProcess* child : failed) {
    if (hint.empty()) hint = Hint(*child);
  }
  return AbortedError(details, "the job failed: ", cause,
                      reason.empty() ? "" : ": ", reason,
                      hint.empty() ? "" : "; ", hint);
}

namespace {

// Time that a process may run after another worker, or after the job, has ended
// before EndNotices tells the user.
constexpr absl::Duration kTellTime = absl::Seconds(3);

bool IsRunningWorker(const LocalProcess& child) {
  return !child.is_server && !child.exit.has_value();
}

}  // namespace

void EndNotices::Tell(absl::Span<LocalProcess> processes,
                      std::optional<absl::Time> finished_at, absl::Time now) {
  if (finished_at.has_value()) {
    TellOfLateEnds(processes, *finished_at, now);
  } else if (exit_decides_ && absl::c_any_of(processes, IsRunningWorker)) {
    TellOfEarlyEnds(processes, now);
  }
}

// A program that ends before it joins looks like one that has done its part.
void EndNotices::TellOfEarlyEnds(absl::Span<LocalProcess> processes,
                                 absl::Time now) {
  for (LocalProcess& child : processes) {
    if (child.is_told || !child.is_done) continue;
    if (now - child.since < kTellTime) continue;
    child.is_told = true;
    display_->PrintLine(
        absl::StrCat(child.name,
                     " has ended with code 0 while others run; if "
                     "it did not join the job, they wait for it"));
  }
}

void EndNotices::TellOfLateEnds(absl::Span<const LocalProcess> processes,
                                absl::Time finished_at, absl::Time now) {
  if (is_late_told_ || now - finished_at < kTellTime) return;
  is_late_told_ = true;
  std::vector<std::string> names;
  for (const LocalProcess& child : processes) {
    if (IsRunningWorker(child)) names.push_back(child.name);
  }
  if (names.empty()) return;
  const std::string list = absl::StrJoin(names, ", ");
  display_->PrintLine("the job is finished; waiting for the end of " + list);
}

}  // namespace nereus
