#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/log_event.h"
#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "server/coordinator/checkpoint_ledger.h"
#include "server/coordinator/factor_reports.h"
#include "server/coordinator/host_table.h"

namespace nereus {

// Number that the driver gives to a session.
using SessionId = int64_t;

// Two ends of a link; the lower id comes first.
using PeerPair = std::pair<PeerId, PeerId>;

// Measurements of all workers, the slowest for each figure, and the time of an
// iteration that these predict for the job's plan. The link is always known.
struct KnownTimes {
  Measured measured;
  absl::Duration predicted;
};

// Current epoch as members are told of it, without the fields that differ
// between members.
struct EpochInForce {
  JobPtr job;                                  // Null before the first epoch.
  std::vector<RouteExplanation> explanations;  // Indexed by layer.
  // Members of the epoch. A process that joins after its beginning is not in
  // this list; a member that is dropped stays in it.
  std::vector<EpochMember> members;
  // Links that the members close and connect again as they enter the epoch.
  std::vector<PeerPair> broken_links;
  // Members that drop their values and begin with new machines
  // (EpochStart::from_base): the workers of these ranks, or, if all_from_base,
  // all members.
  std::vector<int32_t> workers_from_base;
  bool all_from_base = false;
  // Times in this epoch; absent before all workers have measured. Members are
  // not told them.
  std::optional<KnownTimes> times;
  // Rule of turns; absent if no worker shares its device with other jobs.
  std::optional<TurnRule> turns;

  // True if `member` drops its values as the epoch begins.
  bool IsFromBase(PeerId member) const;
  // Returns the message that tells `member` of the epoch. `lease`: that of the
  // job.
  EpochStart StartFor(PeerId member, absl::Duration lease) const;
};

// Answers of gatherings that a coordinator must find again when it is
// restarted. Otherwise it could not answer a worker that asks again after all
// other workers have got the answer and gone on.
struct GatheringAnswers {
  // Answers of gatherings before the first step, by GatheringId::index.
  std::vector<Gathered> first;
  std::optional<Gathered> newest;  // Newest answer of all other gatherings.

  bool operator==(const GatheringAnswers&) const = default;
};

// Time of a worker since it was admitted or dropped its values
// (EpochStart::from_base). A change of plan begins no new life. It does change
// EpochWorker::first_step, which is never before the plan's first step.
struct WorkerLife {
  int64_t first_step = 0;  // The worker's first step.
  uint64_t epoch = 0;      // Epoch in which it began.
};

// State that a coordinator must find again when it is restarted. Before the
// first epoch it has no job and no members, only `state`, `reason` and `lobby`.
// Events since
// the last save are lost. The members make up for this loss: in their new
// sessions they repeat what still matters (Member::OnSession), and they report
// for the epoch that the restarted coordinator begins.
struct CoordinatorState {
  // Member of the epoch.
  struct Member {
    PeerId id;
    // Request with which it joined, without the layers: the job has them.
    JoinRequest request;
    bool left = false;                  // True if it has left.
    bool left_early = false;            // True if its Leave was early.
    int64_t last_step = kInitialRound;  // Last step, if it has left.
    WorkerLife life;
  };
  JobState state = JobState::kWaiting;
  std::string reason;  // Reason why the job failed.
  EpochInForce epoch;
  std::vector<Member> members;  // Members of the epoch.
  int next_rank = 0;            // Rank of the next worker that joins.
  CheckpointLedger::State checkpoints;
  bool checkpoint_wanted = false;    // True if a checkpoint is requested.
  HostTable::State hosts;            // Numbers of the members' hosts.
  GatheringAnswers gatherings;       // Answers that workers may ask for again.
  std::vector<LobbyGathered> lobby;  // Answers of the lobby, by their index.
  FactorReports::Lost lost_factors;  // Layers that have lost their factors.
};

// Actions of a coordinator, which its driver carries out in order.

// Sends a message in a session.
struct SendToMember {
  SessionId session;
  CoordinatorMessage message;
};
// Ends a session after all messages that were sent in it.
struct EndSession {
  SessionId session;
};
// Writes a line to the log.
struct Announce {
  bool bad = false;  // True for a warning.
  std::string text;
  LogFields fields = {};  // Event, step and layer of the line.
};
// Writes the state to disk. Until it is written, the driver carries out no
// later action except Announce.
struct SaveState {
  CoordinatorState state;
};
// Completes a checkpoint of which all shards have written their parts. The
// driver writes the manifest, removes checkpoints that are too old, and calls
// Coordinator::OnCheckpoint.
struct CompleteCheckpoint {
  JobPtr job;
  CheckpointRecord record;
  std::vector<Setting> worker_settings;  // Manifest::worker_settings.
  // CheckpointLedger::State::restarted_in: a manifest with files of earlier
  // epochs is one that the job has gone back without.
  uint64_t restarted_in = 0;
};
// Looks for a checkpoint that the job can use in place of a damaged one. The
// driver renames the folder of the damaged one, so that no job takes it again,
// unless none is left. Then it calls Coordinator::OnSetAside.
struct SetCheckpointAside {
  JobPtr job;
  int64_t round = 0;  // Round of the damaged checkpoint.
};
// Removes the manifest of a checkpoint that the job has gone back without.
// Otherwise a coordinator could take it for the job's newest.
struct DropManifest {
  CheckpointRecord record;
};
using CoordinatorAction =
    std::variant<SendToMember, EndSession, Announce, SaveState,
                 CompleteCheckpoint, SetCheckpointAside, DropManifest>;
using CoordinatorOutbox = std::vector<CoordinatorAction>;

// Announces that the epoch of `job` begins. `new_plan` describes its plan; "":
// that of the epoch before.
void AnnounceEpoch(const Job& job, absl::string_view new_plan,
                   CoordinatorOutbox& out);

// Tells a process that it is refused, and ends its session. Logs the refusal,
// unless the process counts as dead (kCancelled): then Drop has logged it.
void Refuse(SessionId session, absl::Status why, CoordinatorOutbox& out);

// Tells a process that the job is over, and ends its session.
void TellOver(SessionId session, const JobOver& over, CoordinatorOutbox& out);

}  // namespace nereus
