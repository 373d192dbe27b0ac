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
#include "common/driver/driving_turn.h"
#include "common/driver/gradient_splitter.h"
#include "common/protocol/member.h"
#include "common/protocol/pulse.h"
#include "common/transport/transport.h"

namespace nereus {

// Drives a member and its machine: hands them what the transport brings and
// what is posted, and carries out their actions, arithmetic on the driving
// thread and frames through the transport. In each epoch it connects to the
// members that this process has something to say to.
//
// One thread at a time drives: the driver's own, or, in DriveUntil, another
// one that has to wait for the machine anyway (DrivingTurn).
class MachineDriver final : private FrameHandler {
 public:
  // Called on the thread that drives; none may wait, unless it says so.
  struct Events {
    std::function<void(const LayerDone&)> layer_done;
    std::function<void(const MemberMessage&)> send_message;
    // The member has entered an epoch, and its machine as well.
    std::function<void(const std::shared_ptr<const EpochStart>&)> entered;
    std::function<void(const absl::Status&)> ended;
    std::function<void(const ProbeAnswered&)> probed = nullptr;  // Workers.
    // Workers: what multiplies factors in the CPU's place. It may wait.
    std::function<absl::Status(const MultiplyFactors&)> multiply = nullptr;
    // Workers: what splits a layer's gradients in the CPU's place, and awaits
    // what it reads; nullptr: nobody. It may wait.
    std::function<GradientSplitter*(int layer)> splitter = nullptr;
    // Shards: what goes to disk and comes from it, see outbox.h. The second one
    // may wait, since nothing can be done before.
    std::function<void(const SaveCheckpoint&)> save;
    std::function<void(const LoadCheckpoint&)> load;
  };

  // `transport` and `member` are not owned and must outlive this; nobody else
  // calls the member, or the transport's Poll. `layers`: how many to count the
  // bytes of; 0 counts none. Starts at once.
  MachineDriver(Transport* transport, Member* member, int layers,
                absl::Duration connect_timeout, Events events);

  ~MachineDriver() override;

  // Stops and joins the thread, and waits for one that is in DriveUntil;
  // nothing posted is run any more. What is queued in the transport stays
  // there. Called by the destructor too.
  void Stop();

  // Runs `event` on the thread that drives, in the order of posting, and
  // carries out the actions that it leaves. Not run if the driver is stopped
  // before.
  using Event = std::function<void(Outbox& out)>;
  void Post(Event event) ABSL_LOCKS_EXCLUDED(mu_);

  // The calling thread drives until done(), which only events change, or
  // `deadline`; or returns at once if another such thread drives. REQUIRES: it
  // holds nothing that an event waits for.
  void DriveUntil(absl::FunctionRef<bool()> done, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // A heartbeat is due: returns whether this driver lets it be sent, and runs
  // `answer` in the driver's turn if the last one was answered.
  Pulse::Beat OnHeartbeatDue(Event answer) ABSL_LOCKS_EXCLUDED(mu_);

  // Bytes of a layer's frames so far, headers included.
  int64_t bytes_sent(int layer) const { return bytes_sent_[layer]; }
  int64_t bytes_received(int layer) const { return bytes_received_[layer]; }

 private:
  using Counters = std::vector<std::atomic<int64_t>>;

  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) override;
  void OnFrame(PeerId from, const Frame& frame) override;
  void OnConnected(PeerId peer) override;
  void OnDisconnected(PeerId peer, const absl::Status& reason) override;

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void RunPosted() ABSL_LOCKS_EXCLUDED(mu_);
  void Execute();
  void CarryOut(const Action& action);
  // Waits until what `action` reads is there; false if it never will be.
  bool AwaitSources(const Action& action);
  // Whether somebody else has carried it out, or tried to; see
  // Events::splitter.
  bool IsSplitElsewhere(const SplitGradient& split);
  // Ends the job with this reason.
  void FailFor(const absl::Status& reason);
  // Says these last messages, and carries out nothing more.
  void End(const Outbox& last);
  void Check(const CheckValues& check);
  void Sum(const ChecksumValues& check);
  void SendMessages(const Outbox& out);
  // Work that may take long, and surely ends.
  void CarryOutBusy(absl::FunctionRef<void()> work) ABSL_LOCKS_EXCLUDED(mu_);
  void Follow(std::shared_ptr<const EpochStart> start);
  // Whether this process connects to that one.
  bool Dials(const EpochStart& start, PeerId peer) const;
  // Hands on a frame of a 16-bit type with its values as float32; false if
  // nobody wants it any more.
  bool Decode(PeerId from, const Frame& frame);
  // Whether `values` are all of a frame that decoded_ is to have.
  bool IsDecoded(const Buffer& values) const;
  // Whether that frame is only added to a sum, and maybe looked through before.
  bool IsOnlyAdded() const;
  void AddEncoded(const AddValues& add);
  void Fail(const CheckValues& check, int64_t index);
  void Send(PeerId to, const Frame& frame);
  void Broadcast(const Frame& frame);
  static void Count(Counters& counters, const Frame& frame);

  // Constant after construction.
  Transport* const transport_;
  Member* const member_;
  const absl::Duration connect_timeout_;
  const Events events_;

  // Of whoever drives.
  Outbox outbox_;
  bool failed_ = false;  // A check has: only messages are carried out.
  const Buffer decoded_ = Buffer::Allocate(2 * kFramePayloadBytesMax);
  // Whose values decoded_ stands for without having them.
  const Frame* encoded_ = nullptr;
  const CheckValues* looks_ = nullptr;  // Through it, as it is added.
  std::vector<Event> running_;
  std::shared_ptr<const EpochStart> start_;  // The epoch; null before it.

  // By layer; written by whoever drives.
  Counters bytes_sent_;
  Counters bytes_received_;

  Mutex mu_;
  std::vector<Event> posted_ ABSL_GUARDED_BY(mu_);
  Pulse pulse_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> stopping_{false};
  DrivingTurn turn_;
  std::thread thread_;  // Last: uses all of the above.
};

}  // namespace nereus
