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
//   joining --EpochStart--> member --PrepareEpoch--> frozen
//                             ^------EpochStart--------'
//   any of these states --Refusal or JobOver--> over
//
// Pure, as machines are. Not thread-safe: only the thread that drives the
// process's machine calls a Member.
//
// A session can break after a Member has sent a message in it and before the
// coordinator has read the message. So a Member keeps the messages that the
// coordinator must not miss, and sends them again in the next session. If a
// Member forgot a Leave, for example, the job would wait for ever. The kept
// messages are bounded: the last one of each kind, one CheckpointPart for each
// shard, and one LostPeer for each peer of the epoch.
class Member {
 public:
  // Makes the process's machine for the first epoch in which it takes part, and
  // again for each epoch that it enters from the base round.
  using MakeMachine = std::function<std::unique_ptr<Machine>(
      const EpochStart& start, Outbox& out)>;

  // Makes a member that sends `request` in each session until the first
  // EpochStart arrives.
  Member(JoinRequest request, MakeMachine make_machine);

  // Begins a new session, when the session before it has ended. Sends
  // JoinRequest or, after the first EpochStart, Resume and all kept messages.
  // Sends nothing if the membership has ended.
  void OnSession(Outbox& out);
  // Takes a message of the coordinator.
  void OnMessage(const CoordinatorMessage& message, Outbox& out);

  // Tells the coordinator that this worker begins no step after `last_step`,
  // and whether it leaves `early` (Leave), or that this server asks to leave.
  void OnLeave(int64_t last_step, bool early, Outbox& out);

  // Sends the outcome of writing a shard's file of a checkpoint.
  void OnPart(const CheckpointPart& part, Outbox& out);

  // Reports that the checkpoint of `round`, from which this epoch goes on, is
  // damaged, so that this server has no values. `reason`: names the file.
  void OnDamaged(int64_t round, const std::string& reason, Outbox& out);

  // Reports that the job must not go on; the coordinator ends it for all
  // members. Only the first reason is sent.
  void OnFailure(const std::string& reason, Outbox& out);

  // Asks the coordinator for a checkpoint, because the caller wants it. The
  // caller has begun the steps up to `begun_step`.
  void OnWantCheckpoint(int64_t begun_step, Outbox& out);

  // Tells the coordinator what the caller has seen of its layers' factors, if
  // that is news. The report counts in the switch of this epoch if it is sent
  // before ReadyToSwitch: before the machine gets the last push of the switch
  // round. REQUIRES: the process has entered an epoch, whose model has as many
  // layers as `report`.
  void OnFactorRows(const FactorRows& report, Outbox& out);

  // Takes `crc`, the result of the action `checked`. With the checksum of the
  // last missing layer, sends the checksums of all layers, or those of a sample
  // (ReplicaChecksums). REQUIRES: `checked` is an action of this epoch.
  void OnChecksum(const ChecksumValues& checked, uint32_t crc, Outbox& out);

  // Reports that a check has found a NaN or an infinity in a gradient. The
  // coordinator then ends the job with an error.
  void OnBadValue(const ValueCheck& check, const BadValue& found, Outbox& out);

  // Notes that this process is connected to a peer of its epoch.
  void OnConnected(PeerId peer) { reached_.insert(peer); }

  // Tells the coordinator that the connection to a peer has ended or could not
  // be made. The driver does not call this for a connection that it closes
  // itself.
  void OnLostPeer(PeerId peer, const std::string& reason, Outbox& out);

  // Passes the header of a frame of the current epoch to Machine::OnHeader.
  // Returns kDiscard for a frame of an older epoch, and kWait for a frame of a
  // later epoch and for all frames before the first epoch. Errors:
  // kInvalidArgument, the frame is wrong: the caller must end its connection.
  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const;
  // Passes a frame to Machine::OnFrame. REQUIRES: OnHeader has just returned
  // kScratch or kPlace for it.
  void OnFrame(PeerId from, const Frame& frame, Outbox& out);

  // Returns the epoch that this process is in; null before the first.
  const EpochStart* start() const { return start_.get(); }
  // True if this process has ever been connected to the process that is `peer`
  // in the current epoch.
  bool HasReached(PeerId peer) const { return reached_.contains(peer); }
  // True between PrepareEpoch and the next EpochStart.
  bool frozen() const { return frozen_; }
  // True if the membership has ended.
  bool over() const { return over_; }

 private:
  // Enters an epoch, unless the process is in this epoch or in a later one.
  void Enter(const EpochStart& start, Outbox& out);
  // Checks that the model of a new epoch is that with which this process has
  // joined, apart from rows that the job has learnt.
  absl::Status CheckModel(const Job& job) const;
  // Removes from reached_ the peers that are another process, or none, in the
  // epoch that begins. `before`, `now`: members of the old and new epoch.
  void ForgetReplaced(const Roster& before, const Roster& now);
  // Ends the membership with `outcome`.
  void End(const absl::Status& outcome, Outbox& out);

  const JoinRequest request_;         // Request of this process.
  const MakeMachine make_machine_;    // Maker of machine_.
  std::unique_ptr<Machine> machine_;  // Null before the first epoch.
  // Current epoch; null before the first.
  std::shared_ptr<const EpochStart> start_;
  bool frozen_ = false;       // True between PrepareEpoch and EpochStart.
  bool over_ = false;         // True after Refusal or JobOver.
  std::set<PeerId> reached_;  // Peers for which HasReached is true.

  // Kept messages, which a broken session may have lost. OnSession sends them
  // again.
  //
  // Present once this process has left the job.
  std::optional<Leave> leave_;
  // Last checksums of whole layers of this epoch.
  std::optional<ReplicaChecksums> checksums_;
  // Present from OnWantCheckpoint until an epoch has a round for the
  // checkpoint.
  std::optional<WantCheckpoint> wanted_;
  // Sum of all reports of the caller; empty: none. Sent before ReadyToSwitch.
  FactorRows factor_rows_;
  std::optional<Failure> failure_;           // First failure that was reported.
  std::map<int32_t, CheckpointPart> parts_;  // Last part of each shard.
  std::vector<LostPeer> lost_peers_;         // Peers lost in this epoch.
  // Present if the checkpoint of this epoch is damaged.
  std::optional<CheckpointDamaged> damaged_;
};

}  // namespace nereus
