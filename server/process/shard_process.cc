#include "server/process/shard_process.h"

#include <malloc.h>

#include <cstddef>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "common/base/descriptor_limit.h"
#include "common/base/identity.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/process/checkpoint_files.h"

namespace nereus {
namespace {

// Returns the names of the first eight workers, and the number of the others.
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

// Returns the members that an open round waits for: workers, or the backup.
std::string DescribeMissing(const Job& job, const Shard::OpenRound& open) {
  if (open.missing_backup == -1) {
    return DescribeWorkers(job, open.missing_workers);
  }
  return absl::StrCat("the backup on server ", open.missing_backup);
}

// True if each shard of which this server is the primary has a current backup,
// or the job has no backups. `current`: shards whose backup became current in
// this epoch.
bool HasBackups(const EpochStart& start, const std::vector<int32_t>& current) {
  const Job& job = *start.job;
  for (int shard = 0; job.options.backup && shard < job.shards(); ++shard) {
    const ShardServers& servers = job.shard_servers[shard];
    if (servers.primary == start.self.rank && !servers.backup_is_current &&
        !absl::c_linear_search(current, shard)) {
      return false;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardProcess>> ShardProcess::Join(
    const ServerOptions& options, const std::string& coordinator_address,
    int data_port, const std::vector<Setting>& settings,
    std::shared_ptr<Storage> storage, ControlServer* control,
    std::function<void(const absl::Status&)> ended,
    std::function<void()> drained, std::function<void(MetricList)> measured) {
  MemberProcess::Options member;
  member.transport = {.host = options.address.host,
                      .listen = options.address.listen,
                      .port = data_port,
                      .shared_memory = options.shared_memory};
  member.node = options.node;
  member.coordinator_address = coordinator_address;
  member.connect_timeout = options.connect_timeout;
  member.stall_threshold = options.stall_threshold;
  std::unique_ptr<ShardProcess> shard(
      new ShardProcess(std::move(storage), control, std::move(ended),
                       std::move(drained), std::move(measured)));
  shard->process_ =
      NEREUS_TRY(MemberProcess::Listen(std::move(member), control));
  JoinRequest request;
  request.job = options.spec.name;
  request.role = Role::kShard;
  request.shard = options.shard;
  request.name = ProcessName();
  request.has_checkpoints = shard->storage_ != nullptr;
  request.settings = settings;
  shard->process_->Join(std::move(request), shard->MakeEvents());
  return shard;
}

ShardProcess::ShardProcess(std::shared_ptr<Storage> storage,
                           ControlServer* control,
                           std::function<void(const absl::Status&)> ended,
                           std::function<void()> drained,
                           std::function<void(MetricList)> measured)
    : storage_(std::move(storage)),
      control_(control),
      ended_(std::move(ended)),
      drained_(std::move(drained)),
      measured_(std::move(measured)) {
  if (storage_ == nullptr) return;
  writer_ = std::make_unique<CheckpointWriter>(
      storage_,
      [this](const CheckpointPart& part) {
        process_->Post([this, part](Outbox& out) {
          process_->member().OnPart(part, out);
        });
      },
      [this](absl::Duration time) { metrics_.OnWritten(time); });
}

ShardProcess::~ShardProcess() {
  // The driver hands parts to the writer, so the driver stops first. The writer
  // posts to the process, so the writer ends before the process does.
  if (process_ != nullptr) process_->StopDriving();
  writer_.reset();
}

MemberProcess::Events ShardProcess::MakeEvents() {
  MemberProcess::Events events;
  // Called for the first epoch, and again when the job goes back to a
  // checkpoint.
  events.make_machine = [this](const EpochStart& start, Outbox& out) {
    auto machine = std::make_unique<ServerMachine>(start.job, start.self.rank);
    machine_ = machine.get();
    metrics_.OnNewMachine();
    machine->Start(out);
    return machine;
  };
  events.driver.layer_done = [](const LayerDone&) {};
  events.driver.received = [this](const FrameHeader& header) {
    metrics_.OnFrame(header);
  };
  events.driver.entered =
      [this](const std::shared_ptr<const EpochStart>& start) {
        OnEntered(*start);
      };
  events.driver.ended = ended_;
  events.driver.save = [this](const SaveCheckpoint& save) {
    if (writer_ == nullptr) return;
    writer_->Save(process_->member().start()->job, save);
  };
  events.driver.load = [this](const LoadCheckpoint& load,
                              std::shared_ptr<Restore> restore) {
    Load(load, std::move(restore));
  };
  events.heard = [this](const CoordinatorMessage& message) {
    if (std::holds_alternative<nereus::AskToLeave>(message)) drained_();
    if (std::holds_alternative<SaveLast>(message)) may_be_released_ = true;
  };
  events.take_stock = [this] { return TakeStock(); };
  events.heartbeat = [this](const Heartbeat& heartbeat) {
    measured_(metrics_.Make(heartbeat, process_->transport().connections()));
  };
  return events;
}

// The member keeps its wish, and sends it again in each new session.
bool ShardProcess::AskToLeave() {
  is_leaving_ = true;
  if (!is_member_) return false;
  process_->Post([this](Outbox& out) {
    process_->member().OnLeave(kInitialRound, /*early=*/true, out);
  });
  return true;
}

// Before the first epoch there is nothing to report.
Heartbeat ShardProcess::TakeStock() {
  Heartbeat heartbeat;
  if (machine_ == nullptr) return heartbeat;
  const Job& job = *process_->member().start()->job;
  heartbeat.stored_bytes = machine_->stored_bytes();
  heartbeat.chunks = machine_->chunk_count();
  heartbeat.epoch = job.epoch;
  heartbeat.current_backups = machine_->current_backups();
  metrics_.OnStock(*machine_, job);
  // A supervisor may end a server that is ready (PodDisruptionBudget).
  control_->SetReady(!is_leaving_ && HasBackups(*process_->member().start(),
                                                heartbeat.current_backups));
  if (const auto open = machine_->oldest_open_round()) {
    heartbeat.stall =
        Stall{open->layer, open->round, DescribeMissing(job, *open), {}};
  }
  return heartbeat;
}

void ShardProcess::Load(const LoadCheckpoint& load,
                        std::shared_ptr<Restore> restore) {
  NEREUS_LOG(Info, {LogEvent::kCheckpoint, load.round})
      << "restoring " << load.values.size() << " chunks as of round "
      << load.round;
  if (storage_ == nullptr) {
    return restore->Finish(FailedPreconditionError(
        "cannot restore the checkpoint of round ", load.round,
        ": this server has no --checkpoint-dir"));
  }
  disk_.Add(absl::StrCat("restoring the checkpoint of round ", load.round),
            [load = LoadCheckpoint(load), restore = std::move(restore),
             storage = storage_]() mutable {
              absl::Status read = ReadPart(
                  *storage, load, [&restore](int64_t done, int64_t total) {
                    restore->Note(done, total);
                  });
              if (absl::IsDataLoss(read)) {
                NEREUS_LOG(Warning, {LogEvent::kCheckpoint, load.round})
                    << "the checkpoint of round " << load.round
                    << " is damaged: " << read.message()
                    << ". This server waits for the coordinator to go back "
                       "further";
              } else {
                read = Prefixed(read, "cannot restore the checkpoint of round ",
                                load.round, ": ");
              }
              // A shard can update values in place if it has the only reference
              // to them.
              load.values.clear();
              restore->Finish(std::move(read));
              return [] {};
            });
}

void ShardProcess::OnEntered(const EpochStart& start) {
  control_->SetReady(!is_leaving_ && HasBackups(start, {}));
  is_member_ = true;
  if (start.job->options.backup) may_be_released_ = true;
  ChangeLogContext([&](LogContext& context) {
    context.epoch = static_cast<int64_t>(start.job->epoch);
  });
  NEREUS_LOG(Info, {LogEvent::kEpoch, start.job->history.first_step})
      << "epoch " << start.job->epoch
      << ": workers=" << start.job->worker_count()
      << " shards=" << start.job->shards()
      << " layers=" << start.job->model().size()
      << " chunks_here=" << machine_->chunk_count();
  const absl::Status enough =
      CheckDescriptors(start.job->worker_count(), start.job->shards());
  if (!enough.ok()) NEREUS_LOG(Error) << enough.message();
  // Gives freed memory back to the system. Members come and go, and malloc
  // keeps the freed memory of their connections: the process would grow with
  // each new member.
  malloc_trim(0);
}

}  // namespace nereus
