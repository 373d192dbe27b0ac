#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/driver/accelerator.h"
#include "common/driver/driving_turn.h"
#include "common/driver/layer_traffic.h"
#include "common/protocol/member.h"
#include "common/protocol/pulse.h"
#include "common/transport/transport.h"

namespace nereus {

// Drives a member and its machine: hands them frames from the transport and
// posted events, one at a time, and carries out the actions of each event
// before the next one. Arithmetic runs on the driving thread; frames go through
// the transport. In each epoch the driver connects to the members that
// ConnectionsOf names.
//
// At any time one thread drives: the driver's own thread, or a caller's thread
// in DriveUntil, which has to wait for the machine anyway (DrivingTurn). An
// event that waits for another event of the same driver therefore hangs for
// ever.
//
// Post, DriveUntil, OnHeartbeatDue and traffic are thread-safe. Queues of
// posted events have no limit; each poster waits for an outcome before it posts
// much more.
class MachineDriver final : private FrameHandler {
 public:
  // Hooks for actions that the driver does not carry out itself. Called on the
  // driving thread; none may wait, unless its comment says so.
  struct Events {
    std::function<void(const LayerDone&)> layer_done;
    std::function<void(const MemberMessage&)> send_message;
    // The member and its machine have entered an epoch.
    std::function<void(const std::shared_ptr<const EpochStart>&)> entered;
    // The membership has ended.
    std::function<void(const absl::Status&)> ended;
    // Workers with a device only: a part of a layer is there.
    std::function<void(const PartDone&)> part_done = nullptr;
    // Workers only: a train of probes was answered.
    std::function<void(const ProbeAnswered&)> probed = nullptr;
    // Workers only: device that computes instead of the CPU. Null: the CPU
    // computes. Not owned; must outlive the driver.
    Accelerator* accelerator = nullptr;
    // Shards only: write and read parts of checkpoints. `load` may wait,
    // because the machine can do nothing before it has the values.
    std::function<void(const SaveCheckpoint&)> save;
    std::function<void(const LoadCheckpoint&)> load;
  };

  // Starts to drive at once. `transport` and `member` are not owned and must
  // outlive this; nothing else may call the member, or the transport's Poll.
  // `layers` is the number of layers that traffic() counts.
  MachineDriver(Transport* transport, Member* member, int layers,
                absl::Duration connect_timeout, Events events);

  // Calls Stop.
  ~MachineDriver() override;

  // Stops and joins the driver's thread, and waits for a thread in DriveUntil.
  // Events that were posted but not run are dropped; frames that are queued in
  // the transport stay there.
  void Stop();

  // Runs `event` on the driving thread, in the order of posting, and carries
  // out the actions that it adds. After Stop, the event is dropped.
  using Event = std::function<void(Outbox& out)>;
  void Post(Event event) ABSL_LOCKS_EXCLUDED(mu_);

  // Drives on the calling thread until done(), which only events may change, or
  // until `deadline`. Returns at once if another caller's thread drives.
  // REQUIRES: the calling thread holds nothing that an event waits for.
  void DriveUntil(absl::FunctionRef<bool()> done, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Decides whether a heartbeat that is due may be sent (Pulse), and asks the
  // driving thread for the next sign of life: it will run `answer`.
  Pulse::Beat OnHeartbeatDue(Event answer) ABSL_LOCKS_EXCLUDED(mu_);

  // Bytes of each layer's frames so far.
  const LayerTraffic& traffic() const { return traffic_; }

 private:
  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) override;
  void OnFrame(PeerId from, const Frame& frame) override;
  void OnConnected(PeerId peer) override;
  void OnDisconnected(PeerId peer, const absl::Status& reason) override;

  // Drives whenever no caller does, until Stop.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void RunPosted() ABSL_LOCKS_EXCLUDED(mu_);

  // Hands a frame to the member, decoded if its values have a place. Drops it
  // if the member does not want it any more.
  void OnEncodedFrame(PeerId from, const Frame& frame);

  // Carries out outbox_ and clears it.
  void Execute();
  void CarryOut(const Action& action);
  // Waits until the values that an action reads have arrived. Returns false if
  // they never will: then the job has ended.
  bool AwaitSources(const Action& action);
  bool SplitsOnDevice(const SplitGradient& split) const;
  void Split(const SplitGradient& split);
  void Multiply(const MultiplyFactors& factors);
  void Update(const UpdateParameters& update);
  void Checksum(const ChecksumValues& values);
  // Ends the job, unless `status` is OK.
  void EndUnlessOk(const absl::Status& status);
  // Carries out `last`, which has messages only, and from then on nothing but
  // messages.
  void End(const Outbox& last);
  // Runs work that may take long, but surely ends: the member stays alive for
  // the coordinator meanwhile.
  void CarryOutBusy(absl::FunctionRef<void()> work) ABSL_LOCKS_EXCLUDED(mu_);
  void Follow(std::shared_ptr<const EpochStart> start);
  void Send(PeerId to, const Frame& frame);
  void Broadcast(const BroadcastFrame& broadcast);

  // Constant after construction.
  Transport* const transport_;
  Member* const member_;
  const absl::Duration connect_timeout_;
  const Events events_;

  // Used by the driving thread only.
  Outbox outbox_;               // Actions of the event that runs.
  bool ended_ = false;          // True if only messages are still carried out.
  std::vector<Event> running_;  // Posted events that run now.
  std::shared_ptr<const EpochStart> start_;  // Epoch; null before the first.

  // Synchronises itself, as stopping_, turn_ and thread_ below do.
  LayerTraffic traffic_;
  Mutex mu_;
  std::vector<Event> posted_ ABSL_GUARDED_BY(mu_);  // Events yet to run.
  Pulse pulse_ ABSL_GUARDED_BY(mu_);                // Signs of life.
  std::atomic<bool> stopping_{false};
  DrivingTurn turn_;    // Decides which thread drives.
  std::thread thread_;  // Last: uses all of the above.
};

}  // namespace nereus
