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
// At most one thread drives at a time: the driver's own thread, or a caller's
// thread that waits in DriveUntil (DrivingTurn). That thread is the driving
// thread. An event must not wait for another event of the same driver: it would
// hang for ever.
//
// Post, DriveUntil, OnHeartbeatDue and traffic are thread-safe. The queue of
// posted events has no limit: a caller waits for its steps before it posts much
// more, and the coordinator sends few messages.
class MachineDriver final : private FrameHandler {
 public:
  // Hooks for actions that the driver does not carry out itself. Called on the
  // driving thread; none may wait, unless its comment says so.
  struct Events {
    // Workers only: a round of a layer is done.
    std::function<void(const LayerDone&)> layer_done;
    // The member sends a message to the coordinator.
    std::function<void(const MemberMessage&)> send_message;
    // The member and its machine have entered an epoch.
    std::function<void(const std::shared_ptr<const EpochStart>&)> entered;
    // The membership has ended.
    std::function<void(const absl::Status&)> ended;
    // Workers only, may be null: a part of a layer's result is complete.
    std::function<void(const PartDone&)> part_done = nullptr;
    // Workers only, may be null: a server has received a train of probes, the
    // frames of one measurement of a link.
    std::function<void(const ProbeAnswered&)> probed = nullptr;
    // Workers only: device that computes instead of the CPU. Null: the CPU
    // computes. Not owned; must outlive the driver.
    Accelerator* accelerator = nullptr;
    // Servers only: write and read parts of checkpoints. `load` may wait,
    // because the machine can do nothing before it has the values.
    std::function<void(const SaveCheckpoint&)> save;
    std::function<void(const LoadCheckpoint&)> load;
  };

  // Starts to drive at once. `transport` and `member` are not owned and must
  // outlive this. Only the driver and its events may call the member. Only the
  // driver may call the transport's Poll. `layers` is the number of layers that
  // traffic() counts. `connect_timeout`: longest time to connect to a member.
  MachineDriver(Transport* transport, Member* member, int layers,
                absl::Duration connect_timeout, Events events);

  // Calls Stop.
  ~MachineDriver() override;

  // Stops and joins the driver's thread, and waits for a thread in DriveUntil.
  // Events that were posted but not run are dropped; frames that are queued in
  // the transport stay there.
  void Stop();

  // Queues `event`. The driving thread runs the events in the order of posting,
  // and carries out the actions that they add. After Stop, the event is
  // dropped.
  using Event = std::function<void(Outbox& out)>;
  void Post(Event event) ABSL_LOCKS_EXCLUDED(mu_);

  // Drives on the calling thread until done() is true, until `deadline`, or
  // until Stop. Tests done() when events have run: a thread that changes done()
  // without driving must post an event, or the change is noticed late. Returns
  // at once if another caller's thread drives. REQUIRES: the calling thread
  // holds nothing that an event waits for.
  void DriveUntil(absl::FunctionRef<bool()> done, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Decides whether a heartbeat that is due may be sent (Pulse). If the driving
  // thread has answered the question of an earlier heartbeat, asks it again for
  // a sign of life: posts an event that runs `answer`.
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
  // Runs the events that are posted now, in order.
  void RunPosted() ABSL_LOCKS_EXCLUDED(mu_);

  // Hands a frame to the member, decoded if its values have a place. Drops it
  // if the member does not want it any more.
  void OnEncodedFrame(PeerId from, const Frame& frame);

  // Carries out outbox_ and clears it.
  void Execute();
  void CarryOut(const Action& action);
  // Waits until the values that an action reads have arrived. If they never
  // will, ends the job and returns false.
  bool AwaitSources(const Action& action);
  bool SplitsOnDevice(const SplitGradient& split) const;
  void Split(const SplitGradient& split);
  void Multiply(const MultiplyFactors& factors);
  void Update(const UpdateParameters& update);
  void Checksum(const ChecksumValues& values);
  // Does nothing if `status` is OK. Otherwise reports it to the coordinator,
  // which ends the job, and calls End.
  void EndUnlessOk(const absl::Status& status);
  // Carries out `last`, which has messages only. From then on, the driver
  // carries out messages only.
  void End(const Outbox& last);
  // Runs work that may take long, but surely ends. Meanwhile heartbeats may be
  // sent although the driving thread gives no sign of life (Pulse::SetBusy).
  void CarryOutBusy(absl::FunctionRef<void()> work) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the transport's roster and connections those of an epoch.
  void Follow(std::shared_ptr<const EpochStart> start);
  // Encodes a frame, if its payload is not encoded yet, and sends it.
  void Send(PeerId to, const Frame& frame);
  // Sends a frame to each worker that `broadcast` names.
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

  // Needs no lock; nor do stopping_, turn_ and thread_ below.
  LayerTraffic traffic_;
  Mutex mu_;
  std::vector<Event> posted_ ABSL_GUARDED_BY(mu_);  // Events yet to run.
  Pulse pulse_ ABSL_GUARDED_BY(mu_);                // Signs of life.
  std::atomic<bool> stopping_{false};
  DrivingTurn turn_;    // Decides which thread drives.
  std::thread thread_;  // Last: uses all of the above.
};

}  // namespace nereus
