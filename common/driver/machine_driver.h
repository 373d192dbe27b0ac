#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/driver/compute.h"
#include "common/driver/driving_turn.h"
#include "common/driver/event_trace.h"
#include "common/driver/layer_traffic.h"
#include "common/driver/restore.h"
#include "common/protocol/activity.h"
#include "common/protocol/member.h"
#include "common/trace/span_recorder.h"
#include "common/transport/transport.h"

namespace nereus {

// Decides whether a member may send a heartbeat. A thread of the session sends
// heartbeats, and the driver, on another thread, does the member's work. If the
// driver stands still, heartbeats must stop too. Otherwise all other members
// would wait for this member for ever.
//
// With each heartbeat, the thread of the session asks the driver for a sign of
// life. If the driver has not answered when the next heartbeat is due, the
// thread does not send this heartbeat, unless the driver has said that it does
// long work. A member that sends no heartbeat for the lease counts as dead, and
// so does a member whose long work gets no further. Not thread-safe: callers
// hold a lock.
class Pulse {
 public:
  // Decision about one heartbeat that is due.
  struct Beat {
    bool is_alive = false;  // True if a heartbeat may be sent.
    // Long work that the heartbeat must report; nothing: none is under way.
    std::optional<LongWork> work;
    // True if the caller must ask the driver to call Answer.
    bool asks = false;
  };

  // Decides about a heartbeat that is due. At most one question is open:
  // Beat::asks is false while the driver has not answered the last question.
  Beat OnDue() {
    const bool answered = std::exchange(answered_, false);
    return {answered || work_.has_value(), work_, answered};
  }

  // Answers the open question. The driver calls this between two pieces of
  // work, to show that it is alive.
  void Answer() { answered_ = true; }

  // Notes how far the driver's long work is; nothing: it is done. During long
  // work the member may send heartbeats although the driver has not answered.
  void SetWork(const std::optional<LongWork>& work) { work_ = work; }

 private:
  bool answered_ = true;  // True if the driver has answered the last question.
  std::optional<LongWork> work_;  // See SetWork.
};

// Drives a member and its machine. The driver hands them frames from the
// transport and runs posted events, one at a time, and carries out the actions
// of each frame or event before it takes the next one. It does arithmetic on
// the driving thread, and sends frames through the transport. In each epoch it
// connects to the members that ConnectionsOf names.
//
// At most one thread drives at a time: the driver thread, or a caller's thread
// in DriveUntil (DrivingTurn). The thread that drives is called the driving
// thread. An event must not wait for another event of the same driver, because
// that event would never run.
//
// Post, DriveUntil, OnHeartbeatDue and traffic are thread-safe. The queue of
// posted events has no limit. It stays short, because a caller posts only a few
// events before it waits for its step, and the coordinator sends few messages.
class MachineDriver final : private FrameHandler {
 public:
  // Hooks of the owner, and its arithmetic. The driver calls hooks on the
  // driving thread, mostly for actions that it does not carry out itself. No
  // hook waits.
  struct Events {
    // Workers only. Reports that a round of a layer is done.
    std::function<void(const LayerDone&)> layer_done;
    // Sends a message of the member to the coordinator.
    std::function<void(const MemberMessage&)> send_message;
    // Sends a heartbeat at once. Null: the driver ignores such actions.
    std::function<void()> send_heartbeat = nullptr;
    // Reports that the member and its machine have entered an epoch.
    std::function<void(const std::shared_ptr<const EpochStart>&)> entered;
    // Reports that the membership has ended, and the outcome.
    std::function<void(const absl::Status&)> ended;
    // Workers only. Reports that a part of a layer's round is done. Null: the
    // driver ignores parts.
    std::function<void(const PartDone&)> part_done = nullptr;
    // Workers only. Reports that a member has received a whole train of probes.
    // Null: the driver ignores these reports.
    std::function<void(const ProbeAnswered&)> probed = nullptr;
    // Reports a frame that the member accepts, before the member gets it. Null:
    // the driver does not report frames.
    std::function<void(const FrameHeader&)> received = nullptr;
    // Workers only. What a device may compute instead of the CPU. Not owned;
    // must outlive the driver.
    Compute* compute = Compute::OnCpu();
    // Keeper of the driver's spans while the job is traced. Null: none. Not
    // owned; must outlive the driver.
    SpanRecorder* recorder = nullptr;
    // Servers only. `save` writes a part of a checkpoint. `load` begins to read
    // one: another thread reads the values into the buffers of the action, and
    // tells the Restore how far it is, and the outcome. Until then the driver
    // takes no frame and runs no event, because the machine can do nothing
    // before it has the values. After an error the values are undefined, and
    // the driver carries out no further frames. With kDataLoss, the checkpoint
    // is damaged: the driver tells the coordinator, and goes on with the next
    // epoch that begins from a base round. With any other error, or if the
    // reading gets no further for a lease, it calls `ended` with the error.
    std::function<void(const SaveCheckpoint&)> save;
    std::function<void(const LoadCheckpoint&, std::shared_ptr<Restore>)> load;
  };

  // Starts the driver thread. `transport` and `member` are not owned and must
  // outlive this. Only the driver and its events may call the member. Only the
  // driver may call the transport's Poll. `layers`: number of layers that
  // traffic() counts. `connect_timeout`: longest time to connect to a member.
  MachineDriver(Transport* transport, Member* member, int layers,
                absl::Duration connect_timeout, Events events);

  // Calls Stop.
  ~MachineDriver() override;

  // Stops and joins the driver thread, and waits until no thread is in
  // DriveUntil. Posted events that have not run never run. Frames that wait in
  // the transport stay there.
  void Stop();

  // Queues `event`. The driving thread runs events in the order of posting, and
  // carries out the actions that they append. After Stop, `event` never runs.
  using Event = std::function<void(Outbox& out)>;
  void Post(Event event) ABSL_LOCKS_EXCLUDED(mu_);

  // Drives on the calling thread until done() is true, until `deadline`, or
  // until Stop. Calls done() at first, and again each time after it has handled
  // frames and events. A thread that makes done() true and is not the driving
  // thread must then post an event. Otherwise the driving thread can notice
  // this up to a second later. Returns at once, without driving, if another
  // caller's thread drives or waits to drive, or after Stop. REQUIRES: the
  // calling thread holds no lock that an event needs.
  void DriveUntil(absl::FunctionRef<bool()> done, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Decides whether a heartbeat that is due may be sent (Pulse). If the driving
  // thread has answered the last question, asks it again for a sign of life:
  // the driving thread answers before the events that are posted, also during a
  // restore, and then calls `answer`.
  Pulse::Beat OnHeartbeatDue(std::function<void()> answer)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Counter of the bytes of each layer's frames.
  const LayerTraffic& traffic() const { return traffic_; }

 private:
  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) override;
  void OnFrame(PeerId from, const Frame& frame) override;
  void OnConnected(PeerId peer) override;
  void OnDisconnected(PeerId peer, const absl::Status& reason) override;

  // Drives on the driver thread when no caller's thread drives, until Stop.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Runs the events that are in the queue now, in order. During a restore, only
  // answers heartbeats.
  void RunPosted() ABSL_LOCKS_EXCLUDED(mu_);
  void RunEvent(const Event& event);

  // Hands a frame with encoded values to the member. If the member names a
  // place for the values, first decodes them into this place. Drops the frame
  // if the member's landing is now kDiscard, kWait or an error.
  void OnEncodedFrame(PeerId from, const Frame& frame);

  // Carries out the actions of outbox_ and clears it. A restore interrupts
  // this: the rest waits for its end.
  void Execute();
  void CarryOut(const Action& action);
  // Waits until the values that an action reads have arrived (Arrival). If they
  // cannot arrive, reports a failure, which ends the job, and returns false.
  bool AwaitSources(const Action& action);
  // Carries out an arithmetic action that can check values. If it finds a value
  // that must not be, ends the job.
  template <typename Checking>
  void Check(const Checking& action);
  // Ends the job if an action has found a value that must not be.
  template <typename Checking>
  void OnFound(const Checking& action, const BadValue& found);
  // Ends the job if the arithmetic of an action has failed, or has found a
  // value that must not be.
  template <typename Checking>
  void OnComputed(const Checking& action,
                  const absl::StatusOr<BadValue>& found);
  void Multiply(const MultiplyFactors& factors);
  void Update(const UpdateParameters& update);
  void Checksum(const ChecksumValues& values);
  // Gives a checksum to the member, and sends the message that follows from it.
  void OnChecksum(const ChecksumValues& values, uint32_t crc);
  // Gives the member the checksums of samples that have arrived from a device.
  void FinishSamples();
  void Load(const LoadCheckpoint& load);
  // Looks how far the restore is. Returns true if there is none any more: it
  // has ended, and the actions behind it are carried out.
  bool AdvanceRestore();
  // Handles the outcome of a restore.
  void OnRestored(const absl::Status& outcome);
  // Ends the time without values (lacks_values_) as the epoch `start` begins.
  void LeaveDamaged(const EpochStart& start);
  // Does nothing if `status` is OK. Otherwise reports the error to the
  // coordinator, which ends the job, and calls End.
  void EndUnlessOk(const absl::Status& status);
  // Carries out `last`, which has only actions for which IsMessage is true.
  // After that, the driver carries out no other kinds of action.
  void End(const Outbox& last);
  // Tells the heartbeats how far long work is; nothing: it is done.
  void NoteWork(const std::optional<LongWork>& work) ABSL_LOCKS_EXCLUDED(mu_);
  // Gives the transport the roster of an epoch, and closes and opens
  // connections for this epoch (ConnectionsOf).
  void Follow(std::shared_ptr<const EpochStart> start);
  // Encodes the payload of a frame, unless it is encoded, and sends the frame.
  void Send(PeerId to, const Frame& frame);
  // Encodes a frame once, and sends it to each worker in `broadcast.to`.
  void Broadcast(const BroadcastFrame& broadcast);

  // Constant after construction.
  Transport* const transport_;
  Member* const member_;
  const absl::Duration connect_timeout_;
  const Events events_;

  // Used by the driving thread only.
  Outbox outbox_;       // Actions of the frame or event that runs.
  size_t carried_ = 0;  // Number of these that are carried out.
  bool ended_ = false;  // True after End, and after a failed Load.
  // True after a Load from a damaged checkpoint, until an epoch begins from a
  // base round.
  bool lacks_values_ = false;
  EventTrace trace_;  // Spans of the frame or event that runs.
  // Current epoch; null before the first.
  std::shared_ptr<const EpochStart> start_;
  // Restore that is under way; null: none is.
  std::shared_ptr<Restore> restore_;
  int64_t restored_round_ = kInitialRound;  // Round of its checkpoint.
  LongWork restored_;                       // How far it was at the last look.
  absl::Time restore_seen_at_;              // Time of the last look.
  absl::Duration stuck_for_;  // Time for which it has got no further.
  // Samples of this epoch that are on their way from a device: `values` has the
  // sampled elements only. At most kDeviceSamplesMax.
  std::vector<ChecksumValues> device_samples_;

  // traffic_, stopping_, turn_ and thread_ need no lock.
  LayerTraffic traffic_;
  Mutex mu_;
  std::vector<Event> posted_ ABSL_GUARDED_BY(mu_);  // Queue of events.
  // Answer to the open question of the heartbeats; null: none is open.
  std::function<void()> answer_ ABSL_GUARDED_BY(mu_);
  Pulse pulse_ ABSL_GUARDED_BY(mu_);   // Signs of life.
  std::atomic<bool> stopping_{false};  // True after Stop.
  DrivingTurn turn_;                   // Decides which thread drives.
  std::thread thread_;  // Driver thread. Last, because it uses all above.
};

}  // namespace nereus
