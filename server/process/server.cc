#include "server/process/server.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/descriptor_limit.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/checkpoint/file_storage.h"
#include "common/metrics/process_pages.h"
#include "common/rpc/control_server.h"
#include "server/process/checkpoint_files.h"
#include "server/process/coordinator_host.h"
#include "server/process/coordinator_pages.h"
#include "server/process/disk_thread.h"
#include "server/process/redirect_service.h"
#include "server/process/shard_process.h"
#include "server/process/starting_service.h"
#include "server/report/job_metrics.h"

// A server process has a control port, which serves the coordinator or, in
// other processes, refusals that name its address (Serve). Unless it only
// coordinates, it is also a member of the job, with a shard (Join). The main
// thread waits in AwaitEnd, and joins again after the coordinator has counted
// the process as dead:
//
//   Join --> ShardProcess --ended--> outcome --kCancelled--> JoinAgain --> Join
//                                       '--else--> AwaitEnd returns

namespace nereus {
namespace {

using Progress = CoordinatorService::Progress;

// Longest time that a coordinator waits for members that have not heard of the
// job's end.
constexpr absl::Duration kFarewellTimeout = absl::Seconds(5);

// Pause before a process joins again for the second and each later time. Each
// join costs the other members an epoch, so a process that is counted as dead
// again and again must not join too often.
constexpr absl::Duration kRejoinPause = absl::Seconds(5);

// Time in which the workers leave if they were asked to end at the same time.
constexpr absl::Duration kOthersTime = absl::Seconds(2);
// Time between two looks at whether this process has left.
constexpr absl::Duration kLeavePoll = absl::Milliseconds(10);

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(const ServerOptions& options) : options_(options) {}

  ~ServerImpl() override {
    shard_.reset();
    if (coordinator_ != nullptr) coordinator_->service().EndSessions();
    control_.reset();
  }

  // Does the work of Start.
  absl::Status Listen();

  int control_port() const override { return control_->port(); }
  int data_port() const override { return data_port_; }
  absl::Status AwaitEnd() override ABSL_LOCKS_EXCLUDED(mu_);
  bool lacks_last_checkpoint() const override {
    return coordinator_ != nullptr &&
           coordinator_->service().lacks_last_checkpoint();
  }
  std::optional<JobStatus> Status() const override {
    if (coordinator_ == nullptr) return std::nullopt;
    return coordinator_->service().Status(absl::ZeroDuration());
  }
  void Leave() override ABSL_LOCKS_EXCLUDED(mu_);
  bool has_left_early() const override { return has_left_early_; }

 private:
  // Starts the control port with the services of this process.
  absl::Status Serve();
  absl::Status OpenControlPort(const std::vector<grpc::Service*>& services);
  // Starts the pages of this process.
  absl::Status ServePages();
  // Begins a membership in shard_, which listens at `data_port`.
  absl::Status Join(int data_port);
  // Joins again after this process was counted as dead.
  absl::Status JoinAgain(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the membership has an outcome, or this process leaves the job.
  absl::Status AwaitOutcome() ABSL_LOCKS_EXCLUDED(mu_);
  // Asks the coordinator to let the shard leave, and waits for that and, in the
  // coordinator's process, for the end of the job, for kLeaveTimeout at most.
  void LeaveJob() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasOutcome() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return outcome_.has_value();
  }
  // Waits until the members know that the job is over, unless this process
  // leaves before that.
  void AwaitMembersKnow();
  // Sets the outcome of the membership, unless it has one.
  void End(const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after Listen.
  const ServerOptions options_;
  std::shared_ptr<Storage> storage_;  // Checkpoints; may be null.
  std::vector<Setting> settings_;     // Settings that all servers share.
  std::unique_ptr<CoordinatorHost> coordinator_;  // Null: in another process.
  std::unique_ptr<RedirectService> redirect_;     // Null with coordinator_.
  std::unique_ptr<StartingService> starting_;     // Null without --restore.
  std::unique_ptr<ControlServer> control_;        // Serves one of these.
  std::unique_ptr<ProcessPages> pages_;
  std::string coordinator_address_;
  int data_port_ = 0;

  Mutex mu_;
  // Not OK if the coordinator of this process cannot save its state.
  absl::Status coordinator_failure_ ABSL_GUARDED_BY(mu_);
  // Outcome of the current membership, or coordinator_failure_. Absent while
  // neither has happened.
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mu_);
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;  // True once Leave was called.

  bool has_left_early_ = false;  // See has_left_early. Used by one thread.

  // Last: its threads use the above. Null if this process only coordinates,
  // between two memberships, and after a failed Join.
  std::unique_ptr<ShardProcess> shard_;
};

absl::Status ServerImpl::Listen() {
  // Only the coordinator's flags have these numbers. ShardProcess checks the
  // numbers of the job when it enters an epoch.
  NEREUS_TRY(
      CheckDescriptors(options_.spec.workers_max(), options_.spec.shards));
  if (!options_.checkpoint_dir.empty()) {
    const DiskWatch watch(
        absl::StrCat("opening --checkpoint-dir=", options_.checkpoint_dir),
        absl::Seconds(options_.spec.lease_seconds));
    auto storage = FileStorage::Open(options_.checkpoint_dir);
    if (!storage.ok()) {
      return Prefixed(storage.status(), "--checkpoint-dir: ");
    }
    storage_ = *std::move(storage);
    settings_ = NEREUS_TRY(ServerSettings(options_));
  }
  NEREUS_TRY(Serve());
  NEREUS_TRY(ServePages());
  if (options_.coordinate_only) {
    control_->SetReady(true);
    return absl::OkStatus();
  }
  NEREUS_TRY(Join(options_.address.data_port));
  data_port_ = shard_->data_port();
  return absl::OkStatus();
}

absl::Status ServerImpl::Serve() {
  const bool coordinates =
      options_.coordinate_only || options_.coordinator_address.empty();
  std::vector<grpc::Service*> services;
  if (coordinates) {
    // The port opens before a checkpoint is verified.
    if (!options_.restore.empty()) {
      starting_ = std::make_unique<StartingService>();
      NEREUS_TRY(OpenControlPort(starting_->services()));
    }
    coordinator_ = NEREUS_TRY(CoordinatorHost::Start(
        options_, storage_, settings_, [this](const std::string& text) {
          if (starting_ != nullptr) starting_->Tell(text);
        }));
    coordinator_->service().set_on_failure([this](const absl::Status& why) {
      {
        MutexLock lock(&mu_);
        coordinator_failure_ = why;
      }
      End(why);
    });
    services = coordinator_->service().services();
  } else {
    redirect_ = std::make_unique<RedirectService>(options_.coordinator_address);
    services = redirect_->services();
  }
  if (starting_ != nullptr) {
    starting_->HandOver(services);
  } else {
    NEREUS_TRY(OpenControlPort(services));
  }
  coordinator_address_ =
      coordinates ? JoinHostPort(options_.address.host, control_->port())
                  : options_.coordinator_address;
  return absl::OkStatus();
}

absl::Status ServerImpl::OpenControlPort(
    const std::vector<grpc::Service*>& services) {
  control_ = NEREUS_TRY(ControlServer::Start(
      options_.address.listen_host(), options_.address.control_port, services));
  return absl::OkStatus();
}

absl::Status ServerImpl::ServePages() {
  if (coordinator_ == nullptr) {
    pages_ = std::make_unique<ProcessPages>();
  } else {
    const CoordinatorService& service = coordinator_->service();
    pages_ = std::make_unique<ProcessPages>(
        CoordinatorPages(service), [&service](MetricList& metrics) {
          AddJobMetrics(service.Status(), absl::Now(), metrics);
        });
  }
  return pages_->Listen(options_.address);
}

absl::Status ServerImpl::Join(int data_port) {
  shard_ = NEREUS_TRY(ShardProcess::Join(
      options_, coordinator_address_, data_port, settings_, storage_,
      control_.get(), [this](const absl::Status& outcome) { End(outcome); },
      [this] { Leave(); },
      [this](MetricList metrics) { pages_->Set(std::move(metrics)); }));
  return absl::OkStatus();
}

// Runs on the driver thread, on a thread of the session, or on the
// coordinator's ticker thread.
void ServerImpl::End(const absl::Status& outcome) {
  MutexLock lock(&mu_);
  if (!outcome_.has_value()) outcome_ = outcome;
}

absl::Status ServerImpl::JoinAgain(const absl::Status& why) {
  NEREUS_LOG(Warning, {LogEvent::kMemberLost})
      << why.message() << "; joining again";
  shard_.reset();
  {
    MutexLock lock(&mu_);
    if (!coordinator_failure_.ok()) return coordinator_failure_;
    outcome_.reset();
  }
  return Join(data_port_);
}

absl::Status ServerImpl::AwaitOutcome() {
  {
    MutexLock lock(&mu_);
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return outcome_.has_value() || leaving_;
    });
    if (outcome_.has_value()) return *outcome_;
  }
  LeaveJob();
  return absl::OkStatus();
}

// If all processes of the job were asked to end, the workers leave within
// kOthersTime, and the job then makes its last checkpoint.
void ServerImpl::LeaveJob() {
  has_left_early_ = true;
  control_->SetReady(false);
  if (shard_ != nullptr) shard_->AskToLeave();
  const absl::Time from = SteadyNow();
  while (SteadyNow() - from < kLeaveTimeout) {
    const bool has_shard = shard_ != nullptr && !HasOutcome();
    const Progress progress = coordinator_ == nullptr
                                  ? Progress::kOver
                                  : coordinator_->service().progress();
    if (!has_shard && progress == Progress::kOver) return;
    const bool is_worth_it = (has_shard && shard_->may_be_released()) ||
                             progress == Progress::kEnding;
    if (!is_worth_it && SteadyNow() - from > kOthersTime) break;
    absl::SleepFor(kLeavePoll);
  }
  if (shard_ == nullptr || HasOutcome()) return;
  NEREUS_LOG(Warning, {LogEvent::kMemberLeft})
      << "ends while no other server has all values of this "
         "shard: the job goes back to its last checkpoint";
}

void ServerImpl::Leave() {
  {
    MutexLock lock(&mu_);
    leaving_ = true;
  }
  if (coordinator_ != nullptr) coordinator_->service().Interrupt();
}

absl::Status ServerImpl::AwaitEnd() {
  if (options_.coordinate_only) {
    absl::Status outcome = coordinator_->service().AwaitEnd();
    if (absl::IsCancelled(outcome)) {
      LeaveJob();
      outcome = absl::OkStatus();
    }
    control_->SetReady(false);
    AwaitMembersKnow();
    return outcome;
  }
  absl::Status outcome = AwaitOutcome();
  bool joined_again = false;
  // kCancelled: the coordinator counts this process as dead, for example
  // because the process stood still for too long.
  while (absl::IsCancelled(outcome)) {
    control_->SetReady(false);
    if (joined_again) absl::SleepFor(kRejoinPause);
    const absl::Status joined = JoinAgain(outcome);
    joined_again = joined_again || joined.ok();
    outcome = joined.ok() ? AwaitOutcome() : joined;
  }
  control_->SetReady(false);
  if (joined_again && absl::IsOutOfRange(outcome)) {
    NEREUS_LOG(Warning, {LogEvent::kMemberLost})
        << outcome.message() << ": without this server";
    outcome = absl::OkStatus();
  }
  // From now on, this process opens no further session: the coordinator waits
  // until the sessions of all members have ended.
  if (shard_ != nullptr) shard_->StopSession();
  if (coordinator_ != nullptr) AwaitMembersKnow();
  return outcome;
}

void ServerImpl::AwaitMembersKnow() {
  CoordinatorService& service = coordinator_->service();
  if (has_left_early_ && service.progress() != Progress::kOver) return;
  service.AwaitMembersKnow(kFarewellTimeout);
}

}  // namespace

absl::Status ServerOptions::Validate() const {
  const bool coordinates = coordinate_only || coordinator_address.empty();
  if (shard < 0 || (coordinates && shard >= spec.shards)) {
    return InvalidArgumentError("shard is ", shard, ", must be in [0, ",
                                spec.shards, "), of --servers=", spec.shards);
  }
  if (shard > 0 && coordinator_address.empty() && !coordinate_only) {
    return InvalidArgumentError(
        "coordinator_address is empty; every shard but 0 needs it");
  }
  if (!coordinator_address.empty()) {
    NEREUS_TRY(CheckHostPort("coordinator_address", coordinator_address));
  }
  if (coordinate_only && !coordinator_address.empty()) {
    return InvalidArgumentError(
        "coordinator_address is given to a process that coordinates");
  }
  if (stall_threshold <= absl::ZeroDuration()) {
    return InvalidArgumentError("stall_threshold is ",
                                absl::FormatDuration(stall_threshold),
                                ", must be > 0");
  }
  if (coordinates && checkpoint_dir.empty() &&
      (spec.options.checkpoint_every > 0 || !restore.empty())) {
    return InvalidArgumentError(
        "checkpoint_dir is not given: checkpoints can neither be made "
        "(checkpoint_every) nor restored");
  }
  if (!restore.empty()) NEREUS_TRY(CheckRestore(restore));
  NEREUS_TRY(address.Validate());
  if (address.control_port == address.data_port && address.data_port != 0 &&
      !coordinate_only) {
    return InvalidArgumentError("control_port and data_port are both ",
                                address.data_port,
                                ": give two different ports");
  }
  return MakeCoordinatorOptions(*this).Validate();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options) {
  NEREUS_TRY(options.Validate());
  auto server = std::make_unique<ServerImpl>(options);
  NEREUS_TRY(server->Listen());
  return server;
}

}  // namespace nereus
