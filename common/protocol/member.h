#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/machine.h"
#include "common/protocol/membership.h"
#include "common/protocol/outbox.h"
#include "common/tensor/arrival.h"

namespace nereus {

// One process's membership in a job: joins, follows the coordinator from epoch
// to epoch, and keeps frames of other epochs from the machine.
//
//   joining --EpochStart--> member <--PrepareEpoch, EpochStart--> frozen
//      '--Refusal--> over <--JobOver or Refusal--'
//
// Pure, as machines are; its owner drives it together with its machine.
class Member {
 public:
  // Makes the process's machine for the first epoch that it takes part in.
  using MakeMachine = std::function<std::unique_ptr<Machine>(
      const EpochStart& start, Outbox& out)>;

  Member(JoinRequest request, MakeMachine make_machine);

  // A session to the coordinator is open; the one before is gone.
  void OnSession(Outbox& out);
  void OnMessage(const CoordinatorMessage& message, Outbox& out);

  // The process begins no more steps after `last_step`.
  void OnLeave(int64_t last_step, Outbox& out);

  // What came of a shard's share of a checkpoint.
  void OnPart(const CheckpointPart& part, Outbox& out);

  // The job must not go on; the coordinator ends it for all.
  void OnFailure(const std::string& reason, Outbox& out);

  // The caller asks for a checkpoint.
  void WantCheckpoint(Outbox& out);

  // What an action asked for has come to `crc`.
  void OnChecksum(const ChecksumValues& checked, uint32_t crc, Outbox& out);

  // Ends the job, since a check has found a value that is NaN or infinite.
  void OnNotFinite(const GradientCheck& check, const NotFinite& found,
                   Outbox& out);

  // The connection to a peer has ended, without this process's doing.
  void OnLostPeer(PeerId peer, const std::string& reason, Outbox& out);

  // As Machine's, for frames of any epoch.
  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const;
  void OnFrame(PeerId from, const Frame& frame, Outbox& out);

  // The epoch that this process is in; null before the first.
  const EpochStart* start() const { return start_.get(); }
  bool frozen() const { return frozen_; }
  bool over() const { return over_; }

 private:
  void Enter(const EpochStart& start, Outbox& out);
  void End(const absl::Status& outcome, Outbox& out);

  const JoinRequest request_;
  const MakeMachine make_machine_;
  std::unique_ptr<Machine> machine_;
  std::shared_ptr<const EpochStart> start_;
  bool frozen_ = false;
  bool over_ = false;

  // What a session's end may have lost on its way: said again in the next one.
  std::optional<Leave> leave_;
  std::optional<ReplicaChecksums> checksums_;  // The last ones of this epoch.
  bool wants_checkpoint_ = false;              // Since this epoch began.
  std::optional<Failure> failure_;
  std::map<int32_t, CheckpointPart> parts_;  // The last one of each shard.
  std::vector<LostPeer> lost_peers_;         // Of this epoch.
};

}  // namespace nereus
