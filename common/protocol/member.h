#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/hello.h"
#include "common/protocol/machine.h"
#include "common/protocol/membership.h"
#include "common/protocol/outbox.h"
#include "common/tensor/arrival.h"

namespace nereus {

// Membership of one process in a job: joins, follows the coordinator from epoch
// to epoch, and keeps frames of other epochs away from the machine.
//
//   joining --EpochStart--> member <--PrepareEpoch, EpochStart--> frozen
//      '--Refusal--> over <--JobOver or Refusal--'
//
// Pure, as machines are. Not thread-safe: the driver calls it from the thread
// that drives the process's machine. It keeps the last message of each kind,
// one part for each shard, and one lost connection for each peer of the epoch.
//
// A session may break after a message was handed to it and before the
// coordinator read it. So Member keeps the messages that the coordinator must
// not miss, and sends them again in the next session. If it forgot a Leave, for
// example, the job would wait for ever.
class Member {
 public:
  // Makes the process's machine for the first epoch in which it takes part, and
  // again for each epoch that it enters from the base round.
  using MakeMachine = std::function<std::unique_ptr<Machine>(
      const EpochStart& start, Outbox& out)>;

  // `request` is sent in each session until the first EpochStart arrives.
  Member(JoinRequest request, MakeMachine make_machine);

  // Called when a session to the coordinator has opened and the session before
  // is gone. Sends JoinRequest, or Resume and all messages that may have been
  // lost; nothing if the membership has ended.
  void OnSession(Outbox& out);
  // Takes a message of the coordinator.
  void OnMessage(const CoordinatorMessage& message, Outbox& out);

  // Tells the coordinator that the process begins no step after `last_step`.
  void OnLeave(int64_t last_step, Outbox& out);

  // Sends the outcome of writing a shard's file of a checkpoint.
  void OnPart(const CheckpointPart& part, Outbox& out);

  // Reports that the job must not go on; the coordinator ends it for all
  // members. Only the first reason is sent.
  void OnFailure(const std::string& reason, Outbox& out);

  // Asks the coordinator for a checkpoint, because the caller wants it.
  void WantCheckpoint(Outbox& out);

  // Takes `crc`, the result of the action `checked`. Sends the checksums of all
  // layers once they are complete.
  void OnChecksum(const ChecksumValues& checked, uint32_t crc, Outbox& out);

  // Reports that a check has found a NaN or an infinity in a gradient. The job
  // fails.
  void OnNotFinite(const GradientCheck& check, const NotFinite& found,
                   Outbox& out);

  // Notes that this process is connected to a peer of its epoch.
  void OnConnected(PeerId peer) { reached_.insert(peer); }

  // Reports that the connection to a peer has ended or could not be made,
  // unless this process closed it.
  void OnLostPeer(PeerId peer, const std::string& reason, Outbox& out);

  // Passes the header of a frame of the current epoch to Machine::OnHeader. A
  // frame of an older epoch is discarded. A frame of a later epoch waits, and
  // so do all frames before the first epoch. Errors: kInvalidArgument, the
  // frame is wrong: end its connection.
  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const;
  // Passes a frame to Machine::OnFrame. REQUIRES: OnHeader has accepted it.
  void OnFrame(PeerId from, const Frame& frame, Outbox& out);

  // Returns the epoch that this process is in; null before the first.
  const EpochStart* start() const { return start_.get(); }
  // True if this process has ever been connected to the process that is `peer`
  // in its epoch.
  bool HasReached(PeerId peer) const { return reached_.contains(peer); }
  // True if the next epoch is being prepared.
  bool frozen() const { return frozen_; }
  // True if the membership has ended.
  bool over() const { return over_; }

 private:
  // Enters an epoch, unless the process is in it or in a later one.
  void Enter(const EpochStart& start, Outbox& out);
  // Forgets the connections to processes that are not in the next epoch.
  // `before`, `now`: members of this epoch and of the next one.
  void ForgetReplaced(const Roster& before, const Roster& now);
  // Ends the membership.
  void End(const absl::Status& outcome, Outbox& out);

  const JoinRequest request_;         // Request of this process.
  const MakeMachine make_machine_;    // Maker of machine_.
  std::unique_ptr<Machine> machine_;  // Null before the first epoch.
  // Current epoch; null before the first.
  std::shared_ptr<const EpochStart> start_;
  bool frozen_ = false;       // True between PrepareEpoch and EpochStart.
  bool over_ = false;         // True after Refusal or JobOver.
  std::set<PeerId> reached_;  // Members that this process was connected to.

  // Messages that a broken session may have lost. OnSession sends them again.
  //
  // Present once this process has left.
  std::optional<Leave> leave_;
  std::optional<ReplicaChecksums> checksums_;  // Last checksums of this epoch.
  bool wants_checkpoint_ = false;            // True if asked for in this epoch.
  std::optional<Failure> failure_;           // First failure that was reported.
  std::map<int32_t, CheckpointPart> parts_;  // Last part of each shard.
  std::vector<LostPeer> lost_peers_;         // Peers lost in this epoch.
};

}  // namespace nereus
