#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/names.h"
#include "common/base/status.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"
#include "common/plan/planner.h"
#include "common/plan/timeline.h"
#include "common/protocol/activity.h"
#include "common/protocol/job.h"
#include "common/protocol/peer.h"
#include "common/protocol/setting.h"
#include "common/protocol/span.h"

namespace nereus {

// Report of a worker's caller about the factors of its layers: the rows that it
// has seen (LayerSpec::rows). A value type.
struct FactorRows {
  // Number of rows of each layer of the model; kRowsNotKnown: nothing is known,
  // or the layer has no factors; kFactorsLost: the gradient of the layer is no
  // product of factors any more.
  std::vector<int64_t> rows;

  // Adds a later report of the same caller: lost factors stay lost, and of two
  // numbers of rows the larger one counts. Returns true if this changed the
  // report. REQUIRES: both have as many layers, or this is empty.
  bool Add(const FactorRows& later);

  bool operator==(const FactorRows&) const = default;
};

// Returns OK if `report` can be the report about a model: it has a number for
// each layer, the numbers are in range, and only layers with
// LayerSpec::has_factors have another number than kRowsNotKnown. Errors:
// kInvalidArgument, with the layer and the number.
absl::Status CheckFactorRows(const FactorRows& report,
                             absl::Span<const LayerSpec> model);

// Phase of a job.
enum class JobState {
  // The job has not begun: it waits for members that are missing.
  kWaiting,
  // The job has begun and is not over. It may wait for members meanwhile.
  kRunning,
  // All workers have left, and the last checkpoint is complete or given up.
  kFinished,
  // The job has ended with an error.
  kFailed,
  // All workers have left before the job was done (Leave::early). Another job
  // can go on from its last checkpoint.
  kStopped,
  // The job has failed because values were lost. Another job would not fail so.
  kLost,
};

inline constexpr Named<JobState> kJobStateNames[] = {
    {JobState::kWaiting, "waiting"},   {JobState::kRunning, "running"},
    {JobState::kFinished, "finished"}, {JobState::kFailed, "failed"},
    {JobState::kStopped, "stopped"},   {JobState::kLost, "lost"}};

// Returns the name of a phase in reports: "running".
absl::string_view JobStateName(JobState state);

// True if the job is finished, has failed, or was stopped.
inline bool IsOver(JobState state) {
  return state != JobState::kWaiting && state != JobState::kRunning;
}

// Tells a member that the job is over. Ends the membership and the session.
struct JobOver {
  JobState state = JobState::kFinished;  // A state for which IsOver is true.
  std::string reason;  // Cause, if the job is not finished; else empty.
  // Round of the newest checkpoint; kInitialRound: none exists.
  int64_t saved_round = kInitialRound;
};

// Returns OK for a job that is finished, and else why it is not: kAborted, the
// job has failed; kDataLoss, it was stopped, or its values were lost, so
// another job can go on.
absl::Status OutcomeOf(const JobOver& over);

// Messages between a member and its coordinator. Each member opens a session;
// when the session breaks, the member opens another session. Messages of one
// session arrive in order. When a session breaks, messages in it can be lost.
// proto/coordinator.proto has the Protobuf form. All types here are values.
//
// A process may gather with the processes that were started together with it
// before it joins, in a session of its own:
//
//   process                         coordinator
//     LobbyGather             -->
//                             <--   Waiting, while processes are missing
//                             <--   LobbyGathered: the values of all processes
//
//   member                          coordinator
//     JoinRequest, or Resume  -->
//                             <--   Waiting, until all members are there
//                             <--   EpochStart
//     Heartbeat, LostPeer     -->
//                             <--   PrepareEpoch: a member joins, left or died
//     EpochReport             -->
//                             <--   EpochStart: the job goes on
//     CheckpointPart          -->   a shard's file is on disk
//     CheckpointDamaged       -->   the checkpoint to go on from is damaged
//                             <--   SetFusion, with JobOptions::tune_fusion
//                             <--   TurnRule, in a job that shares devices
//     FusionTimed             -->
//     Measured                -->   with JobOptions::measure
//     FactorRows              -->   a caller has seen the rows of its layers
//     ReadyToSwitch           -->   Job::switch_round is done
//     WantCheckpoint          -->   a caller requests a checkpoint
//     ReplicaChecksums        -->   of a checkpoint's round, or the last round;
//                                   of a sample, about once a second
//     Gather                  -->   a caller's value for all workers
//                             <--   Gathered: the values of all workers
//                             <--   AskToLeave: an operator drains the member
//                             <--   TraceOrder: an operator traces the job
//     ClockQuestion           -->
//                             <--   ClockAnswer
//                             <--   TraceEnd, after the last step
//     TracePart               -->   the spans of the member
//     Leave                   -->
//                             <--   SaveLast, when all workers have left
//                             <--   JobOver

// Host of a process, as far as the process can tell. The coordinator takes two
// processes to be on one host if their claims are equal and `machine` is not
// empty.
struct HostClaim {
  // Name that the user gave the host (--node), for example the name of a
  // cluster's node. Empty: the user gave none.
  std::string node;
  // Identity of the running kernel. If `node` is empty, the identity of the
  // process's network namespace follows. Empty: not known.
  std::string machine;

  auto operator<=>(const HostClaim&) const = default;
};

// Claims of a worker about its caller. The coordinator compares them with the
// job.
struct CallerClaim {
  // Place where the caller expects the optimizer to run; nothing: the caller
  // takes any place.
  std::optional<OptimizerPlace> optimizer;
  // True if the caller multiplies its loss by StepInfo::loss_scale.
  bool scales_loss = false;
  // Number of arrays of optimizer state that the caller keeps for each layer if
  // the caller runs the optimizer. An array has as many values as the layer has
  // parameters.
  int32_t state_arrays = 0;
};

// First message of a process that is not a member yet. The coordinator answers
// with Waiting, EpochStart or Refusal.
struct JoinRequest {
  // Version of frames and messages (kProtocolVersion). The coordinator refuses
  // another version than its own.
  uint32_t protocol_version = 0;
  std::string build;          // Build of the process, for error messages only.
  std::string job;            // Name of the job, from the user.
  Role role = Role::kWorker;  // Part that the process wants to play.
  // Servers: rank that the process asks for. Workers: not used (see
  // launch_rank).
  int shard = 0;
  // Workers: number that the launcher gave the process, in [0, kRanksMax);
  // absent: none. If all workers have different numbers when the job starts,
  // their ranks follow the order of these numbers (MemberList::NumberWorkers).
  // A worker that joins later gets another rank.
  std::optional<int32_t> launch_rank = std::nullopt;
  // Random number, not 0, that tells this process from all other processes.
  uint64_t incarnation = 0;
  // Workers: name of the worker in all messages to users. Two live workers of a
  // job never have the same name. A process that joins with the name of a dead
  // worker takes that worker's place. Servers: "host:pid", for error messages.
  std::string name;
  std::string data_address;  // "host:port" of the process's data port.
  // Values that must be equal on all members of the role; at most kSettingsMax.
  std::vector<Setting> settings;
  std::vector<LayerSpec> layers;  // Workers: the model.
  CallerClaim caller;             // Workers: claims about their caller.
  // Servers: true if the process has a folder for checkpoints.
  bool has_checkpoints = false;
  // Workers: name of the hardware and library that multiply factors. Different
  // hardware or libraries can give products that differ in the last bits. So if
  // layers may go by factors, all workers must send the same name.
  std::string products = "cpu";
  HostClaim host;  // Host that the process runs on.
  // Workers that share their device with other jobs: place in the order of
  // turns at which they begin (TurnRule::base). Finite.
  std::optional<double> turn_base = std::nullopt;
};

// First message on a new session of a process that is a member already.
struct Resume {
  uint64_t job = 0;          // Id of the job.
  PeerId member;             // Id of the member.
  uint64_t incarnation = 0;  // Incarnation that its JoinRequest had.
  uint64_t epoch = 0;        // Epoch that the member is in.
};

// Time between two heartbeats of a member.
inline constexpr absl::Duration kHeartbeatInterval = absl::Seconds(1);

// Round that has waited too long for contributions or results.
struct Stall {
  int32_t layer = 0;  // Index of the layer.
  int64_t round = 0;  // Round that waits.
  // Members that the round waits for, as text for users: "worker 3" or "shard 1
  // (chunk 3)".
  std::string missing;
  // Time for which the round has been the oldest open round.
  absl::Duration waited;
};

// Sign of life and progress of a member, sent every kHeartbeatInterval, and at
// once when the backups of a server's shards have become current.
struct Heartbeat {
  int64_t begun_step = kInitialRound;  // Workers: last step begun.
  // Workers: last step of which all layers are pushed since the worker joined
  // or dropped its values; kInitialRound: none.
  int64_t pushed_step = kInitialRound;
  // Workers: epoch in which the worker last dropped its values and went back to
  // a checkpoint (EpochStart::from_base); 0: it has not since it joined.
  uint64_t went_back_in = 0;
  // Workers: last round that is done for every layer.
  int64_t round = kInitialRound;
  // Servers: bytes of parameters and optimizer state.
  int64_t stored_bytes = 0;
  int64_t chunks = 0;  // Servers: number of chunks.
  // Oldest open round, if it has waited too long (StallWatch); else nothing.
  std::optional<Stall> stall;
  uint64_t epoch = 0;  // Epoch that the member is in; 0 before its first one.
  // Servers: shards of which this server is the primary and which have a
  // current backup.
  std::vector<int32_t> current_backups;
  // Long work of the member's driver; nothing: it does none.
  std::optional<LongWork> work;
  Activity activity;  // Work of the member.
};

// Report of a member that its connection to a peer has ended, or that it could
// not connect to the peer.
struct LostPeer {
  uint64_t epoch = 0;  // Epoch in which this happened.
  PeerId peer;         // Peer at the other end of the connection.
  std::string reason;  // Cause, as text for users.
  // True if the reporting process was ever connected to the process that is
  // `peer` in this epoch.
  bool reached = true;
};

// Progress of a frozen machine, from which the coordinator makes the next
// epoch. A worker leaves the servers' fields empty, and a server the workers'
// fields.
struct MachineReport {
  // Workers: last step that the worker has begun. The coordinator derives
  // JobHistory::first_step from these steps.
  int64_t begun_step = kInitialRound;

  // Workers: true if the worker still waits for some of its first values.
  bool fetching = false;

  // Workers: progress of one layer that goes without servers.
  struct PeerLayer {
    int32_t layer = 0;       // Index of the layer.
    int64_t done_round = 0;  // Last round that is done on this worker.
    // Number of contributions to that round. 0: this worker has not done the
    // round itself, but has fetched the layer as of the round. So it cannot be
    // the source of the round.
    int32_t contributors = 0;
  };
  // Workers: all layers that go without servers, except layers whose first
  // values the worker still waits for.
  std::vector<PeerLayer> peer_layers;

  // Servers: for each shard, the last round that has closed on all its chunks
  // of layers that use the servers, without the block layer. A shard that has
  // no chunk of these layers is not in the map.
  std::map<int32_t, int64_t> closed_rounds;

  // NanPolicy::kSkip: newest verdicts that the member knows.
  std::vector<StepVerdict> verdicts;

  // True if the member is ready to switch: it has finished all rounds up to
  // Job::switch_round.
  bool ready_to_switch = false;
};

// Answer to PrepareEpoch. The report stays true until the next EpochStart.
struct EpochReport {
  uint64_t target = 0;   // Copy of PrepareEpoch::target.
  uint64_t epoch = 0;    // Epoch that the member is in.
  MachineReport report;  // Progress of its machine.
};

// Announcement of a worker that it begins no more steps, or wish of a server to
// end. A server stays a member until backups have the values of its chunks, and
// then hears that its job is over (JobOver).
struct Leave {
  int64_t last_step = kInitialRound;  // Workers: last step that it has begun.
  uint64_t epoch = 0;                 // Epoch that the member is in.
  // Workers: true if the job is not done, and goes on without this worker.
  bool early = false;
};

// Report of a server that it has written its file of a checkpoint for a shard,
// or that it could not.
struct CheckpointPart {
  uint64_t epoch = 0;  // Epoch in which the server collected the values.
  int32_t shard = 0;   // Shard of the values.
  int64_t round = 0;   // Round of the checkpoint.
  std::string file;    // Name of the file in the checkpoint's folder.
  int64_t bytes = 0;   // Length of the file.
  uint32_t crc = 0;    // CRC-32C of the file.
  std::string error;   // Cause of failure; empty: the file is written.
};

// Report of a server that the checkpoint from which this epoch goes on is
// damaged. The server has no values, and waits for an epoch that goes back
// further.
struct CheckpointDamaged {
  uint64_t epoch = 0;  // Epoch that the server is in.
  int64_t round = 0;   // Round of the checkpoint.
  std::string reason;  // The file, and the damage, as text for users.
};

// Report of a member that the job must end with an error, for example because a
// gradient has a NaN.
struct Failure {
  std::string reason;  // Cause, as text for users.
};

// Answer of a worker to SetFusion: its measurement.
struct FusionTimed {
  int32_t trial = 0;        // Copy of SetFusion::trial.
  int64_t begun_step = 0;   // Last step that the worker has begun.
  double step_seconds = 0;  // Median time of a step, in seconds.
};

// Announcement of a member that it is ready to switch. The member stays ready
// to switch until the epoch ends.
struct ReadyToSwitch {
  uint64_t epoch = 0;  // Epoch that the member is in.
};

// Recent measurements of a worker.
struct Measured {
  std::vector<LayerTime> times;  // Computing time of each layer of the model.
  absl::Duration step_time;      // Time of a whole iteration.
  // Speed of the link of the worker's host, from the worker that measures it.
  std::optional<LinkSpeed> link;
  // Bytes per second that the workers of the host together hand each other
  // through memory, from the worker that measures it.
  std::optional<double> memory_rate;
  // True if the worker's caller waits for layers in forward passes
  // (TimeModel::waits_in_forward).
  bool waits_in_forward = false;
  // Mean time from the push of each layer of the model to its result, for the
  // status; zero: no round of the layer was done since the last report. Empty:
  // not known.
  std::vector<absl::Duration> sync_times = {};

  bool operator==(const Measured&) const = default;
};

// Request of a worker's caller for a checkpoint. It will be a checkpoint of the
// next round that no worker has begun.
struct WantCheckpoint {
  int64_t begun_step = kInitialRound;  // Last step that the worker has begun.
};

// Checksums of a worker's parameters as of `round`, or of a server's copy of a
// shard. Replicas and copies must be equal. So if two workers, or the two
// servers of a shard, send different checksums for one round, the coordinator
// ends the job with an error.
struct ReplicaChecksums {
  uint64_t epoch = 0;  // Epoch that the member is in.
  int64_t round = 0;   // Round of the parameters.
  // Workers: CRC-32C of each layer of the model, or of a sample of each layer
  // in SampledLayersOf(round). Servers: two for each compared chunk, of its
  // parameters and of its optimizer state; 0 if there is none, or if workers
  // own the layer.
  std::vector<uint32_t> layers;
  // True if these are checksums of a sample (SampledElementsOf). A sample is
  // sent about once a second, and is not sent again if it is lost.
  bool is_sample = false;
  // Servers: the shard of which this is a copy; absent: a worker's checksums.
  std::optional<int32_t> shard = std::nullopt;
  // Servers: index of the first compared chunk among the chunks of the shard.
  int32_t first_chunk = 0;
};

// Number of a gathering. Workers with the same number take part in the same
// gathering.
struct GatheringId {
  // Heartbeat::pushed_step of the worker. A step that the worker has only begun
  // is not used: a gathering needs all workers of its step, and a worker that
  // joins in this step cannot gather before it has its first values, which
  // other workers send after their pushes.
  int64_t step = kInitialRound;
  // Number of gatherings that the worker has ended since it pushed that step.
  int32_t index = 0;
  // Heartbeat::went_back_in of a worker that has pushed no step since then;
  // else 0. So workers that have gone back do not gather together with those
  // that begin.
  uint64_t went_back_in = 0;

  auto operator<=>(const GatheringId&) const = default;
};

// Longest value of a Gather, in bytes.
inline constexpr int64_t kGatheredBytesMax = int64_t{64} << 10;

// Value of a worker's caller for a gathering. The worker sends the value again
// with each heartbeat until it has the answer, Gathered.
struct Gather {
  GatheringId id;
  std::string value;  // At most kGatheredBytesMax bytes.
};

// Asks for the time of the coordinator, for a trace.
struct ClockQuestion {
  uint64_t trace = 0;  // TraceOrder::trace.
  absl::Time asked;    // Time on the member's clock.
};

// Spans of a member for a trace.
struct TracePart {
  uint64_t trace = 0;       // TraceOrder::trace.
  std::vector<Span> spans;  // At most kTracePartSpansMax.
  bool is_last = false;     // True if no other part of the member follows.
  // Last part: number of spans that the member could not keep, and its
  // comparisons of the clocks, at most two.
  int64_t lost = 0;
  std::vector<ClockSample> clock;
};

// Largest number of gatherings of a lobby. The coordinator keeps all answers.
inline constexpr int32_t kLobbyGatheringsMax = 64;

// Value of a process that has not joined yet, for a gathering with the
// processes that were started together with it: its lobby. The process sends
// the message again in each new session until it has the answer,
// LobbyGathered.
struct LobbyGather {
  // Version of frames and messages, and build of the process, as in
  // JoinRequest.
  uint32_t protocol_version = 0;
  std::string build;
  std::string job;  // Name of the job, from the user.
  // Number of the process among those that were started together, from 0.
  int32_t number = 0;
  int32_t count = 0;  // Number of processes that were started together.
  // Number of gatherings that the process has ended, below
  // kLobbyGatheringsMax.
  int32_t index = 0;
  std::string value;  // At most kGatheredBytesMax bytes.
  // Random number, not 0, that tells this process from all other processes.
  uint64_t incarnation = 0;

  bool operator==(const LobbyGather&) const = default;
};

// Any message of a process to its coordinator.
using MemberMessage =
    std::variant<JoinRequest, Resume, Heartbeat, LostPeer, EpochReport, Leave,
                 CheckpointPart, Failure, FusionTimed, ReadyToSwitch, Measured,
                 WantCheckpoint, ReplicaChecksums, Gather, ClockQuestion,
                 TracePart, LobbyGather, FactorRows, CheckpointDamaged>;

// Tells a process what it waits for: the start of the job, the place that it
// has claimed, the next epoch, the other workers or processes of its
// gathering, or, after its Leave, the end of the job.
struct Waiting {
  std::string text;  // For users; names the members that are missing.
};

// Tells a process that it is not a member, or no longer one. Ends the session.
struct Refusal {
  absl::Status why;  // Cause; the process reports it to its user.
};

// Asks a member to freeze its machine and to answer with EpochReport.
struct PrepareEpoch {
  // Number of the next epoch. If a member dies before all members have
  // reported, the coordinator asks again, with another number.
  uint64_t target = 0;
};

// Trial of a fusion threshold. From step `from_step` on, a worker defers pushed
// layers until they have `bytes` bytes together. The worker answers with the
// median time of `steps` steps (FusionTimed).
struct SetFusion {
  int32_t trial = 0;      // Number of the trial.
  int64_t bytes = 0;      // Threshold of this trial.
  int64_t from_step = 0;  // First step with this threshold.
  int32_t steps = 0;      // Number of steps to time; 0: no report.

  bool operator==(const SetFusion&) const = default;
};

// Longest time of a turn in a TurnRule.
inline constexpr absl::Duration kTurnCostMax = absl::Hours(24);

// Place of a job in the order of turns, for workers that share their devices
// with other jobs (common/share/turn_table.h). All workers of the job compute
// their keys by the same rule, so all nodes take turns in the same order. The
// rule changes when the workers have measured a step anew. A worker that hears
// of a change later than others may take a turn in another order, which costs
// time and nothing else.
struct TurnRule {
  double base = 0;           // Key of step 0, times the weight; seconds.
  absl::Duration cost = {};  // Time of a turn; 0: not measured yet.

  // Returns TurnSlot::key of a step for a job of this weight.
  double KeyOf(int64_t step, double weight) const {
    return (base + static_cast<double>(step) * absl::ToDoubleSeconds(cost)) /
           weight;
  }

  bool operator==(const TurnRule&) const = default;
};

// Asks for the last checkpoint, after all workers have left. Each shard saves
// its chunks as of `round`, and the worker of rank `sender` sends the shards
// the worker-owned layers.
struct SaveLast {
  uint64_t epoch = 0;  // Current epoch of the coordinator.
  int64_t round = 0;   // Last round of the job.
  int32_t sender = 0;  // Rank of the worker that sends its layers.

  bool operator==(const SaveLast&) const = default;
};

// Answer to Gather.
struct Gathered {
  GatheringId id;  // Copy of Gather::id.
  // Values of the workers that have gathered, by rank.
  std::vector<std::string> values;
  std::string error;  // Why the gathering failed; empty: it has succeeded.

  bool operator==(const Gathered&) const = default;
};

// Answer to LobbyGather.
struct LobbyGathered {
  int32_t index = 0;  // Copy of LobbyGather::index.
  // Values of all processes, by LobbyGather::number. Empty if there is an
  // error.
  std::vector<std::string> values;
  std::string error;  // Why the gathering failed; empty: it has succeeded.

  bool operator==(const LobbyGathered&) const = default;
};

// Member of an epoch, with what the other members know about it.
struct EpochMember {
  PeerId id;  // Role and rank.
  // Random number that tells the process from earlier processes with this id.
  uint64_t incarnation = 0;
  std::string data_address;  // "host:port" of the member's data port.
  // Number of the member's host, below kHostsMax; -1: a host of its own.
  int32_t host = -1;

  bool operator==(const EpochMember&) const = default;
};

// Begins an epoch.
struct EpochStart {
  PeerId self;  // Id of the member that gets this message.
  // True if this member must drop its values, make a new machine and start from
  // the job's base round.
  bool from_base = false;
  JobPtr job;  // Facts and rules of the epoch.
  // Reason for the route of each layer.
  std::vector<RouteExplanation> explanations;
  std::vector<EpochMember> epoch_members;  // All members of the epoch.
  // Links that members have reported as lost (LostPeer). The two members of a
  // link close its connection if it is still open, and connect again.
  std::vector<std::pair<PeerId, PeerId>> broken_links;
  // Lease of the job: a member that shows no sign of life for this long counts
  // as dead, and a connection on which nothing arrives for this long as broken.
  // Positive.
  absl::Duration lease = kLeaseDefault;
};

// Asks a member to leave a job that goes on, because an operator drains it
// (`nereusctl drain`).
struct AskToLeave {};

// Asks a member to record spans of some steps, until TraceEnd. The order of
// another trace ends the last one; another order of the same trace changes its
// steps.
struct TraceOrder {
  uint64_t trace = 0;      // Random number of the trace.
  int64_t first_step = 0;  // Steps [first_step, last_step] are traced.
  int64_t last_step = 0;
  int64_t spans_max = 0;  // Number of spans that the member keeps at most.
};

// Answer to ClockQuestion.
struct ClockAnswer {
  uint64_t trace = 0;  // Copies of the question's fields.
  absl::Time asked;
  absl::Time answered;  // Time on the coordinator's clock.
};

// Asks a member to send its spans of a trace (TracePart), or to drop them, if
// the operator is gone.
struct TraceEnd {
  uint64_t trace = 0;
  bool drops = false;
};

// Any message of the coordinator.
using CoordinatorMessage =
    std::variant<Waiting, Refusal, PrepareEpoch, EpochStart, JobOver, SetFusion,
                 SaveLast, Gathered, AskToLeave, TraceOrder, ClockAnswer,
                 TraceEnd, LobbyGathered, TurnRule>;

}  // namespace nereus
