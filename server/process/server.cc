#include "server/process/server.h"

#include <malloc.h>

#include <optional>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/descriptor_limit.h"
#include "common/base/identity.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/file_storage.h"
#include "common/driver/member_process.h"
#include "common/protocol/stall_watch.h"
#include "common/rpc/control_server.h"
#include "server/process/checkpoint_files.h"
#include "server/process/checkpoint_writer.h"
#include "server/process/coordinator_host.h"
#include "server/process/redirect_service.h"
#include "server/shard/server_machine.h"

namespace nereus {
namespace {

// How long a coordinator stays for members that have not heard the end.
constexpr absl::Duration kFarewellTimeout = absl::Seconds(5);

// Between two joins of one process that is counted as dead again and again:
// each costs the others an epoch.
constexpr absl::Duration kRejoinPause = absl::Seconds(5);

std::string DescribeWorkers(const Job& job, const std::vector<int>& ranks) {
  constexpr size_t kNamedMax = 8;
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < kNamedMax; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ",
                    job.NameOf(PeerId::Worker(ranks[i])));
  }
  if (ranks.size() > kNamedMax) {
    absl::StrAppend(&text, " and ", ranks.size() - kNamedMax, " others");
  }
  return text;
}

std::string DescribeMissing(const Job& job, const Shard::OpenRound& open) {
  if (open.missing_copy == -1) {
    return DescribeWorkers(job, open.missing_workers);
  }
  return absl::StrCat(PeerName(PeerId::Shard(open.missing_copy)), "'s copy");
}

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(const ServerOptions& options) : options_(options) {}

  ~ServerImpl() override {
    Leave();
    if (coordinator_ != nullptr) coordinator_->service().EndSessions();
    control_.reset();
  }

  absl::Status Listen();

  int control_port() const override { return control_->port(); }
  int data_port() const override { return data_port_; }
  absl::Status AwaitEnd() override ABSL_LOCKS_EXCLUDED(mu_);
  bool lacks_last_checkpoint() const override {
    return coordinator_ != nullptr &&
           coordinator_->service().lacks_last_checkpoint();
  }

 private:
  absl::Status Serve();
  // Asks the coordinator to take this process in as its shard; and ends that
  // membership.
  absl::Status Join(int data_port);
  void Leave();
  // Joins again after this process was counted as dead.
  absl::Status JoinAgain(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  MemberProcess::Events MakeEvents();
  void TakeStock() ABSL_LOCKS_EXCLUDED(mu_);
  void Load(const LoadCheckpoint& load);
  void OnEntered(const EpochStart& start);
  void End(const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after Listen.
  const ServerOptions options_;
  std::unique_ptr<FileStorage> storage_;  // Of checkpoints.
  std::vector<Setting> settings_;         // Those that all servers have.
  std::unique_ptr<CoordinatorHost> coordinator_;  // If it coordinates.
  std::unique_ptr<RedirectService> redirect_;     // If it does not.
  std::unique_ptr<ControlServer> control_;
  std::string coordinator_address_;
  int data_port_ = 0;

  // The driver thread's.
  ServerMachine* machine_ = nullptr;  // Owned by the member.
  StallWatch stalls_;                 // Notices rounds that stand still.

  Mutex mu_;
  Heartbeat heartbeat_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status coordinator_failure_ ABSL_GUARDED_BY(mu_);
  absl::Status outcome_ ABSL_GUARDED_BY(mu_);

  // Last: their threads use the above. The writer posts to the process.
  std::unique_ptr<MemberProcess> process_;
  std::unique_ptr<CheckpointWriter> writer_;
};

// Two connections a worker, one to each other server, and what else a process
// has open.
absl::Status CheckDescriptors(const ServerOptions& options) {
  const int workers = options.spec.workers_max();
  const int64_t needed = 2 * int64_t{workers} + 2 * options.spec.shards + 64;
  if (needed <= DescriptorLimit()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("workers is ", workers, ": this process needs ", needed,
                   " file descriptors for them, and may have ",
                   DescriptorLimit(), "; raise its limit (ulimit -n)"));
}

absl::Status ServerImpl::Listen() {
  NEREUS_RETURN_IF_ERROR(CheckDescriptors(options_));
  if (!options_.checkpoint_dir.empty()) {
    auto storage = FileStorage::Open(options_.checkpoint_dir);
    if (!storage.ok()) {
      return absl::Status(
          storage.status().code(),
          absl::StrCat("--checkpoint-dir: ", storage.status().message()));
    }
    storage_ = *std::move(storage);
  }
  NEREUS_ASSIGN_OR_RETURN(settings_, ServerSettings(options_));
  NEREUS_RETURN_IF_ERROR(Serve());
  if (options_.coordinate_only) {
    control_->SetReady(true);
    return absl::OkStatus();
  }
  NEREUS_RETURN_IF_ERROR(Join(options_.data_port));
  data_port_ = process_->port();
  return absl::OkStatus();
}

absl::Status ServerImpl::Serve() {
  const bool coordinates =
      options_.coordinate_only || options_.coordinator_address.empty();
  std::vector<grpc::Service*> services;
  if (coordinates) {
    NEREUS_ASSIGN_OR_RETURN(
        coordinator_,
        CoordinatorHost::Start(options_, storage_.get(), settings_));
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
  NEREUS_ASSIGN_OR_RETURN(
      control_,
      ControlServer::Start(options_.host, options_.control_port, services));
  coordinator_address_ = coordinates
                             ? JoinHostPort(options_.host, control_->port())
                             : options_.coordinator_address;
  return absl::OkStatus();
}

absl::Status ServerImpl::Join(int data_port) {
  MemberProcess::Options options;
  options.transport = {.host = options_.host,
                       .port = data_port,
                       .shared_memory = options_.shared_memory};
  options.coordinator_address = coordinator_address_;
  options.connect_timeout = options_.connect_timeout;
  NEREUS_ASSIGN_OR_RETURN(
      process_, MemberProcess::Listen(std::move(options), control_.get()));
  if (storage_ != nullptr) {
    writer_ = std::make_unique<CheckpointWriter>(
        storage_.get(), [this](const CheckpointPart& part) {
          process_->Post([this, part](Outbox& out) {
            process_->member().OnPart(part, out);
          });
        });
  }
  JoinRequest request;
  request.job = options_.spec.name;
  request.role = Role::kShard;
  request.shard = options_.shard;
  request.name = ProcessName();
  request.has_checkpoints = storage_ != nullptr;
  request.settings = settings_;
  process_->Join(std::move(request), MakeEvents());
  return absl::OkStatus();
}

void ServerImpl::Leave() {
  // The driver hands the writer what to save, until it stops.
  if (process_ != nullptr) process_->StopDriving();
  writer_.reset();
  process_.reset();
  machine_ = nullptr;
}

MemberProcess::Events ServerImpl::MakeEvents() {
  MemberProcess::Events events;
  events.make_machine = [this](const EpochStart& start, Outbox& out) {
    auto machine = std::make_unique<ServerMachine>(start.job, start.self.rank);
    machine_ = machine.get();
    machine->Start(out);
    return machine;
  };
  events.driver.layer_done = [](const LayerDone&) {};
  events.driver.entered =
      [this](const std::shared_ptr<const EpochStart>& start) {
        OnEntered(*start);
      };
  events.driver.ended = [this](const absl::Status& outcome) { End(outcome); };
  events.driver.save = [this](const SaveCheckpoint& save) {
    if (writer_ == nullptr) return;
    writer_->Save(process_->member().start()->job, save);
  };
  events.driver.load = [this](const LoadCheckpoint& load) { Load(load); };
  events.take_stock = [this] { TakeStock(); };
  events.heartbeat = [this] {
    MutexLock lock(&mu_);
    return heartbeat_;
  };
  return events;
}

void ServerImpl::TakeStock() {
  if (machine_ == nullptr) return;
  Heartbeat heartbeat;
  heartbeat.stored_bytes = machine_->stored_bytes();
  heartbeat.chunks = machine_->chunk_count();
  heartbeat.epoch = process_->member().start()->job->epoch;
  heartbeat.current_backups = machine_->current_backups();
  std::optional<Stall> waiting;
  if (const auto open = machine_->oldest_open_round()) {
    waiting = Stall{open->layer, open->round,
                    DescribeMissing(*process_->member().start()->job, *open),
                    absl::ZeroDuration()};
  }
  heartbeat.stall =
      stalls_.Watch(std::move(waiting), SteadyNow(), options_.stall_threshold);
  MutexLock lock(&mu_);
  heartbeat_ = heartbeat;
}

void ServerImpl::Load(const LoadCheckpoint& load) {
  NEREUS_LOG(Info) << "restoring " << load.values.size()
                   << " chunks as of round " << load.round;
  const absl::Status status =
      storage_ == nullptr
          ? absl::FailedPreconditionError("this server has no --checkpoint-dir")
          : ReadPart(*storage_, load);
  if (!status.ok()) {
    End(absl::Status(status.code(),
                     absl::StrCat("cannot restore the checkpoint of round ",
                                  load.round, ": ", status.message())));
  }
}

void ServerImpl::OnEntered(const EpochStart& start) {
  control_->SetReady(true);
  NEREUS_LOG(Info) << "epoch " << start.job->epoch
                   << ": workers=" << start.job->worker_count()
                   << " shards=" << start.job->shards()
                   << " layers=" << start.job->model().size()
                   << " chunks_here=" << machine_->chunk_count();
  // What malloc keeps of connections that are gone would add up, however often
  // members come and go.
  malloc_trim(0);
}

void ServerImpl::End(const absl::Status& outcome) {
  MutexLock lock(&mu_);
  if (ended_) return;
  ended_ = true;
  outcome_ = outcome;
}

absl::Status ServerImpl::JoinAgain(const absl::Status& why) {
  NEREUS_LOG(Warning) << why.message() << "; joining again";
  Leave();
  {
    MutexLock lock(&mu_);
    if (!coordinator_failure_.ok()) return coordinator_failure_;
    ended_ = false;
    heartbeat_ = Heartbeat();
  }
  return Join(data_port_);
}

absl::Status ServerImpl::AwaitEnd() {
  absl::Status outcome;
  if (options_.coordinate_only) {
    outcome = coordinator_->service().AwaitEnd();
    control_->SetReady(false);
    coordinator_->service().AwaitEveryoneKnows(kFarewellTimeout);
    return outcome;
  }
  bool joined_again = false;
  while (true) {
    {
      MutexLock lock(&mu_);
      mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_; });
      outcome = outcome_;
    }
    control_->SetReady(false);
    if (!absl::IsCancelled(outcome)) break;
    // It stood still for too long, and the others went on.
    if (joined_again) absl::SleepFor(kRejoinPause);
    const absl::Status joined = JoinAgain(outcome);
    if (!joined.ok()) {
      outcome = joined;
      break;
    }
    joined_again = true;
  }
  if (joined_again && absl::IsOutOfRange(outcome)) {
    NEREUS_LOG(Warning) << outcome.message() << ": without this server";
    outcome = absl::OkStatus();
  }
  // Ends the session: that tells the coordinator that this member knows.
  if (process_ != nullptr) process_->StopSession();
  if (coordinator_ != nullptr) {
    coordinator_->service().AwaitEveryoneKnows(kFarewellTimeout);
  }
  return outcome;
}

}  // namespace

absl::Status ServerOptions::Validate() const {
  const bool coordinates = coordinate_only || coordinator_address.empty();
  if (shard < 0 || (coordinates && shard >= spec.shards)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard is ", shard, ", must be in [0, ", spec.shards,
                     "), of --servers=", spec.shards));
  }
  if (shard > 0 && coordinator_address.empty() && !coordinate_only) {
    return absl::InvalidArgumentError(
        "coordinator_address is empty; every shard but 0 needs it");
  }
  if (!coordinator_address.empty()) {
    NEREUS_RETURN_IF_ERROR(
        CheckHostPort("coordinator_address", coordinator_address));
  }
  if (coordinate_only && !coordinator_address.empty()) {
    return absl::InvalidArgumentError(
        "coordinator_address is given to a process that coordinates");
  }
  if (stall_threshold <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("stall_threshold is ",
                     absl::FormatDuration(stall_threshold), ", must be > 0"));
  }
  if (coordinates && checkpoint_dir.empty() &&
      (spec.options.checkpoint_every > 0 || !restore.empty())) {
    return absl::InvalidArgumentError(
        "checkpoint_dir is not given: checkpoints can neither be made "
        "(checkpoint_every) nor restored");
  }
  NEREUS_RETURN_IF_ERROR(CheckHost(host));
  NEREUS_RETURN_IF_ERROR(CheckPort("control_port", control_port));
  NEREUS_RETURN_IF_ERROR(CheckPort("data_port", data_port));
  if (control_port == data_port && control_port != 0 && !coordinate_only) {
    return absl::InvalidArgumentError(
        absl::StrCat("control_port is ", control_port,
                     ", which data_port is too: they are two ports"));
  }
  return MakeCoordinatorOptions(*this).Validate();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options) {
  NEREUS_RETURN_IF_ERROR(options.Validate());
  auto server = std::make_unique<ServerImpl>(options);
  NEREUS_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace nereus
