#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/storage.h"
#include "common/driver/member_process.h"
#include "common/metrics/metric_list.h"
#include "common/protocol/setting.h"
#include "common/rpc/control_server.h"
#include "server/process/checkpoint_writer.h"
#include "server/process/disk_thread.h"
#include "server/process/server.h"
#include "server/process/server_metrics.h"
#include "server/shard/server_machine.h"

namespace nereus {

// The membership of a server process in a job: the machine with its shards, the
// MemberProcess that drives the machine, and the writing and reading of the
// shards' checkpoint files.
//
//   driver thread: ServerMachine --SaveCheckpoint--> CheckpointWriter --> disk
//                                <--CheckpointPart--'
//
// A server that the coordinator has counted as dead destroys its ShardProcess
// and makes another one, so that nothing of the first membership reaches the
// second. Thread-safe.
class ShardProcess {
 public:
  // Asks the coordinator, in the background, to admit this process as the
  // server of the shard that the options name. `storage`: the folder of
  // checkpoints, or null. `ended` is called with the outcome when the
  // membership is over. It may be called several times, on any thread; the
  // first outcome counts. `measured` gets the metrics of this server at each
  // heartbeat, on any thread. `control` is not owned and must outlive this.
  // Errors: those of MemberProcess::Listen.
  static absl::StatusOr<std::unique_ptr<ShardProcess>> Join(
      const ServerOptions& options, const std::string& coordinator_address,
      int data_port, const std::vector<Setting>& settings,
      std::shared_ptr<Storage> storage, ControlServer* control,
      std::function<void(const absl::Status&)> ended,
      std::function<void()> drained, std::function<void(MetricList)> measured);

  // Ends the membership. Waits for a checkpoint file that is being written.
  ~ShardProcess();

  // Port at which peers connect.
  int data_port() const { return process_->port(); }

  // Asks the coordinator to let this server leave the job: it stays a member
  // until other servers have its values, and then `ended` is called with OK.
  // Returns false, and does nothing, if this server is no member yet.
  bool AskToLeave();

  // True if AskToLeave is worth a wait: the job has backups, or it makes its
  // last checkpoint now.
  bool may_be_released() const { return may_be_released_; }

  // Opens no further session. An open session stays until the coordinator ends
  // it or this is destroyed.
  void StopSession() { process_->StopSession(); }

 private:
  ShardProcess(std::shared_ptr<Storage> storage, ControlServer* control,
               std::function<void(const absl::Status&)> ended,
               std::function<void()> drained,
               std::function<void(MetricList)> measured);

  MemberProcess::Events MakeEvents();

  // The next three handle events of the MemberProcess, on the driving thread.
  //
  // Returns the heartbeat that reports the state of the shards.
  Heartbeat TakeStock();
  // Begins to read values from a checkpoint.
  void Load(const LoadCheckpoint& load, std::shared_ptr<Restore> restore);
  // Reports whether the process is ready, and logs the epoch.
  void OnEntered(const EpochStart& start);

  const std::shared_ptr<Storage> storage_;  // Checkpoints; may be null.
  ControlServer* const control_;            // Answers readiness checks.
  const std::function<void(const absl::Status&)> ended_;
  const std::function<void()> drained_;
  const std::function<void(MetricList)> measured_;

  ServerMetrics metrics_;
  std::atomic<bool> is_member_ = false;   // True from the first epoch on.
  std::atomic<bool> is_leaving_ = false;  // True once AskToLeave was called.
  std::atomic<bool> may_be_released_ = false;  // See may_be_released().

  // Used by the driving thread only; null before the first epoch. Owned by
  // process_.
  ServerMachine* machine_ = nullptr;

  DiskThread disk_;  // Reads checkpoints.
  // Last: their threads use the members above. writer_ posts to process_.
  std::unique_ptr<MemberProcess> process_;
  std::unique_ptr<CheckpointWriter> writer_;  // Null without checkpoints.
};

}  // namespace nereus
