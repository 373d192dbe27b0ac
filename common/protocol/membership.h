#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/plan/compute_times.h"
#include "common/plan/planner.h"
#include "common/plan/timeline.h"
#include "common/protocol/job.h"
#include "common/protocol/peer.h"
#include "common/protocol/setting.h"

namespace nereus {

// What members and their coordinator say to each other, in a session that each
// member opens, and opens again when it breaks; the Protobuf form is
// proto/coordinator.proto. Messages of a session arrive in order.
//
//   member                          coordinator
//     JoinRequest, or Resume  -->
//                             <--   Waiting, until all are there
//                             <--   EpochStart
//     Heartbeat, LostPeer     -->
//                             <--   PrepareEpoch: somebody came, went or died
//     EpochReport             -->
//                             <--   EpochStart: the job goes on
//     CheckpointPart          -->   a shard's share is on disk
//                             <--   SetFusion, with JobOptions::tune_fusion
//     FusionTimed             -->
//     Measured                -->   with JobOptions::measure
//     Drained                 -->   Job::switch_round is done
//     WantCheckpoint          -->   a caller asks for one
//     ReplicaChecksums        -->   of a round that is saved, or the last one
//     Leave                   -->
//                             <--   SaveLast, when all workers have left
//                             <--   JobOver

// A process asks to become a member of a job.
struct JoinRequest {
  uint32_t protocol_version = 0;
  std::string build;  // For messages; may differ.
  std::string job;    // The name that the user gave.
  Role role = Role::kWorker;
  int shard = 0;  // Shards say which one they are; workers are given a rank.
  uint64_t incarnation = 0;  // Drawn, not 0: unlike any other process's.
  // Workers: what the user and all messages call this one. No two live workers
  // of a job share a name; a process that comes with the name of a dead worker
  // takes its place. Shards: "host:pid", for messages.
  std::string name;
  std::string data_address;  // "host:port" where peers reach it.
  // Values that must be the same on all members of a role, each with the name
  // by which the user knows it: {"--batch", "32"}. At most kSettingsMax.
  std::vector<Setting> settings;
  std::vector<LayerSpec> layers;  // Workers: the model.
  // Workers: where this one's caller takes the optimizer to run; none: it
  // follows the job.
  std::optional<OptimizerPlace> optimizer;
  // Workers: arrays of optimizer state, of as many values as a layer has
  // parameters each, that the caller keeps if its own optimizer runs.
  int32_t state_arrays = 0;
  bool has_checkpoints = false;  // Shards: there is a folder for them.
  // Workers: what the bits of their products of factors depend on.
  std::string products = "cpu";
};

// A member's session is new, its membership is not.
struct Resume {
  uint64_t job = 0;
  PeerId member;
  uint64_t incarnation = 0;
  uint64_t epoch = 0;
};

inline constexpr absl::Duration kHeartbeatInterval = absl::Seconds(1);

// A round that waits for longer than it should.
struct Stall {
  int32_t layer = 0;
  int64_t round = 0;
  std::string missing;  // Who has not contributed, for messages.
  absl::Duration waited;
};

// A member is alive, and how far it is; every kHeartbeatInterval.
struct Heartbeat {
  int64_t begun_step = kInitialRound;  // Workers.
  int64_t round = kInitialRound;  // The last one that is done for every layer.
  int64_t stored_bytes = 0;       // Shards: parameters and optimizer state.
  int64_t chunks = 0;             // Shards.
  std::optional<Stall> stall;     // The one that has waited longest.
  // Servers: the shards served whose copy is whole, as of this epoch.
  uint64_t epoch = 0;
  std::vector<int32_t> current_backups;
  // The member does long work, and answers nothing until it is done.
  bool busy = false;
};

// The connection to a peer ended, as of `epoch`.
struct LostPeer {
  uint64_t epoch = 0;
  PeerId peer;
  std::string reason;
};

// What a machine is asked when an epoch is to end; by its role.
struct MachineReport {
  // Workers: the last step that was begun; steps that none has begun may have
  // other workers.
  int64_t begun_step = kInitialRound;

  // Workers: the first values are not all there yet.
  bool fetching = false;

  // Workers: how far the layers between workers are.
  struct PeerLayer {
    int32_t layer = 0;
    int64_t done_round = 0;
    int32_t contributors = 0;  // Workers whose gradients that round has.
  };
  std::vector<PeerLayer> peer_layers;

  // Servers: of each shard that they hold, the last round that is closed for
  // every chunk that takes rounds; shards without such a chunk are left out.
  std::map<int32_t, int64_t> closed_rounds;

  // With NanPolicy::kSkip: the last ones that it has heard.
  std::vector<StepVerdict> verdicts;

  // All that Job::switch_round comes to is here: nothing is under way.
  bool drained = false;
};

// The answer to PrepareEpoch.
struct EpochReport {
  uint64_t target = 0;  // Of the request.
  uint64_t epoch = 0;   // That this member is in.
  MachineReport report;
};

// A worker's work is done: it begins no more steps.
struct Leave {
  int64_t last_step = kInitialRound;
};

// What came of a shard's share of a checkpoint.
struct CheckpointPart {
  uint64_t epoch = 0;  // In which it was collected.
  int32_t shard = 0;
  int64_t round = 0;
  std::string file;  // Within the checkpoint's folder.
  int64_t bytes = 0;
  uint32_t crc = 0;   // CRC-32C of the file.
  std::string error;  // Why it could not be written; empty: it was.
};

// A worker has found what no job should go on with.
struct Failure {
  std::string reason;
};

// A worker's answer to SetFusion.
struct FusionTimed {
  int32_t trial = 0;
  int64_t begun_step = 0;  // By now.
  double step_seconds = 0;
};

// MachineReport::drained is true from now on, until this epoch's end.
struct Drained {
  uint64_t epoch = 0;
};

// What a worker has measured of late.
struct Measured {
  std::vector<LayerTime> times;  // By layer of the model.
  absl::Duration step_time;      // Of an iteration, all told.
  LinkSpeed link;
};

// A worker's caller asks for a checkpoint of the next round that no worker has
// begun.
struct WantCheckpoint {};

// CRC-32C of a worker's parameters as of `round`, by layer of the model: the
// same on all workers, as replicas are equal.
struct ReplicaChecksums {
  uint64_t epoch = 0;  // That the worker is in.
  int64_t round = 0;
  std::vector<uint32_t> layers;
};

using MemberMessage =
    std::variant<JoinRequest, Resume, Heartbeat, LostPeer, EpochReport, Leave,
                 CheckpointPart, Failure, FusionTimed, Drained, Measured,
                 WantCheckpoint, ReplicaChecksums>;

// Who is missing, for people.
struct Waiting {
  std::string text;
};

// The session ends, and so does the membership.
struct Refusal {
  absl::Status why;
};

// Freeze, and report.
struct PrepareEpoch {
  uint64_t target = 0;
};

// Workers hold back layers until there are so many bytes, from this step on,
// and say what steps take then: of so many, 0 of none.
struct SetFusion {
  int32_t trial = 0;
  int64_t bytes = 0;
  int64_t from_step = 0;
  int32_t steps = 0;

  bool operator==(const SetFusion&) const = default;
};

// All workers have left after `round`: each shard saves what it has as of it,
// and worker `sender` sends the shards the layers that workers own.
struct SaveLast {
  uint64_t epoch = 0;
  int64_t round = 0;
  int32_t sender = 0;

  bool operator==(const SaveLast&) const = default;
};

// One member of an epoch, as its peers see it.
struct EpochMember {
  PeerId id;
  uint64_t incarnation = 0;
  std::string data_address;  // "host:port".

  bool operator==(const EpochMember&) const = default;
};

// An epoch begins.
struct EpochStart {
  PeerId self;
  // This member starts afresh, from the job's base round: what it has is of
  // no use.
  bool from_base = false;
  JobPtr job;
  std::vector<RouteExplanation> explanations;  // By layer.
  std::vector<EpochMember> epoch_members;      // All members.
  // Pairs that reported the end of their connection, and make a new one.
  std::vector<std::pair<PeerId, PeerId>> broken_links;
};

enum class JobState {
  kGathering,  // Members are missing.
  kRunning,
  kFinished,  // Every worker has left politely.
  kFailed,
};

absl::string_view JobStateName(JobState state);

// True if the job is finished, or has failed.
inline bool IsOver(JobState state) {
  return state == JobState::kFinished || state == JobState::kFailed;
}

// The job is over for this member.
struct JobOver {
  JobState state = JobState::kFinished;  // Or kFailed.
  std::string reason;                    // Why it failed.
  // Round of the newest checkpoint; kInitialRound: there is none.
  int64_t saved_round = kInitialRound;
};

using CoordinatorMessage =
    std::variant<Waiting, Refusal, PrepareEpoch, EpochStart, JobOver, SetFusion,
                 SaveLast>;

inline constexpr absl::Duration kRateWindow = absl::Seconds(10);

// A coordinator's view, for `nereusctl status`.
struct JobStatus {
  struct Member {
    PeerId id;
    std::string name;
    std::string data_address;
    int64_t round = kInitialRound;
    absl::Duration since_heartbeat;
    bool left = false;
    int64_t stored_bytes = 0;
    int64_t chunks = 0;
    std::optional<Stall> stall;
    std::string stalled_layer;  // Its name.
  };
  std::string job;
  uint64_t id = 0;
  uint64_t epoch = 0;
  JobState state = JobState::kGathering;
  // The last step that any worker has begun, and how many steps a second the
  // job does, over the last kRateWindow; 0: not known.
  int64_t step = kInitialRound;
  double steps_per_second = 0;
  // How many layers go by which scheme, for people: "3 by server, 1 by ring".
  std::string plan;
  // True if workers may be several steps apart (--quorum).
  bool partial = false;
  std::string reason;   // Why it failed.
  std::string waiting;  // Who is missing, while gathering.
  int workers = 0;
  int shards = 0;
  std::vector<Member> members;  // Workers by rank, then shards by index.
  std::vector<ShardServers>
      shard_servers;  // Once it runs, if shards have copies.

  // The newest checkpoint that is whole, and where in its examples the job was
  // after it; kInitialRound: there is none.
  int64_t checkpoint_round = kInitialRound;
  int64_t checkpoint_contributions = 0;
  int64_t checkpoint_bytes = 0;
  bool checkpoint_wanted = false;  // One was asked for, and is to come.
  std::string checkpoint_failure;  // Why the last one that failed did.
};

}  // namespace nereus
