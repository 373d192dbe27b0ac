#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "server/coordinator/coordinator.h"

namespace nereus {

inline constexpr uint64_t kTestJobId = 4711;

// Job "training".
CoordinatorOptions OptionsOf(int workers, int shards, int max_workers = 0);
// Options of a job with a folder for checkpoints.
CoordinatorOptions DurableOptions(int workers, int shards, int max_workers = 0);
// Options of a job of two workers, in which each shard has a backup.
CoordinatorOptions BackupOptions(int shards = 2);

// Join requests with the same model; incarnations follow from names.
JoinRequest WorkerRequest(const std::string& name);
JoinRequest ShardRequest(int shard,  // Named "s0", "s1", ...
                         bool has_checkpoints = false);
// Request of another process, named "another", for the place of a shard.
JoinRequest AnotherShard(int shard, bool has_checkpoints = false);

Heartbeat HeartbeatOf(int64_t begun_step, int64_t round);

// The sessions in which CoordinatorDriver::Gather lets the members join.
inline constexpr SessionId kShard0 = 0;
inline constexpr SessionId kShard1 = 1;
inline constexpr SessionId kWorker0 = 10;
inline constexpr SessionId kWorker1 = 11;
inline constexpr SessionId kWorker2 = 12;
// Sessions of processes that come later.
inline constexpr SessionId kNew = 50;
inline constexpr SessionId kNewShard = 60;
// Difference of a member's session in ResumeAll to its session before.
inline constexpr SessionId kBack = 100;

// Actions of the coordinator, in order within each kind.
struct Reaction {
  std::vector<SendToMember> sent;
  std::vector<SessionId> ended;
  std::vector<std::string> announced;
  std::vector<CoordinatorState> saved;
  std::vector<CompleteCheckpoint> completed;
  std::vector<SetCheckpointAside> set_aside;
  std::vector<DropManifest> dropped;
  std::vector<std::string> order;  // "save" and "send", of all of these.
};

// The sessions in which a T was sent, in order.
template <typename T>
std::vector<SessionId> HearersOf(const Reaction& reaction) {
  std::vector<SessionId> hearers;
  for (const SendToMember& send : reaction.sent) {
    if (std::holds_alternative<T>(send.message)) {
      hearers.push_back(send.session);
    }
  }
  return hearers;
}

// The one T that was sent in `session`.
template <typename T>
T Heard(const Reaction& reaction, SessionId session) {
  std::vector<T> heard;
  for (const SendToMember& send : reaction.sent) {
    const T* message = std::get_if<T>(&send.message);
    if (send.session == session && message != nullptr) {
      heard.push_back(*message);
    }
  }
  EXPECT_EQ(heard.size(), 1u) << "in session " << session;
  return heard.empty() ? T() : heard[0];
}

// Message of shard `shard` about its part of a checkpoint, collected in
// `epoch`.
CheckpointPart PartOf(int shard, int64_t round, uint64_t epoch);

// Why `session` was refused, and ended; OK if it was not.
absl::Status RefusalIn(const Reaction& reaction, SessionId session);

// Expects that `session` was refused, and ended, with this code and a message
// that contains `text`.
void ExpectRefusal(const Reaction& reaction, SessionId session,
                   absl::StatusCode code, const std::string& text);

std::vector<PeerId> SeatsOf(const EpochStart& start);

// A coordinator, with its sessions and its clock. What is sent in a session
// that the coordinator has ended before is a failure of the test.
class CoordinatorDriver {
 public:
  explicit CoordinatorDriver(CoordinatorOptions options);

  // All join: shards 0, 1, ... in sessions kShard0, kShard1, ..., then workers
  // "w0", "w1", ... in sessions kWorker0, kWorker1, ... Returns what the last
  // one starts.
  Reaction Gather();

  // Events, now.
  Reaction Say(SessionId session, const MemberMessage& message);
  Reaction Break(SessionId session);
  // The session breaks, and the member counts as dead after the time in which
  // it could resume. Returns the reaction to that.
  Reaction Lose(SessionId session);
  // Another process asks in `session` for the place of a shard.
  Reaction Replace(SessionId session, int shard);
  Reaction Tick();
  Reaction Fail(const std::string& reason);
  Reaction RequestCheckpoint();  // Which must be possible.
  absl::Status TryRequestCheckpoint();
  // The manifest of a checkpoint is on disk, or why it is not.
  Reaction Checkpoint(int64_t round, const absl::Status& written);
  // The disk has an older checkpoint in place of a damaged one; none: no older
  // one.
  Reaction SetAside(int64_t round, std::optional<int64_t> older);
  Reaction FailSetAside(int64_t round, const absl::Status& why);
  // All shards have written their parts of a round, and the manifest is on
  // disk.
  Reaction MakeCheckpoint(int64_t round);

  // The coordinator dies and finds `state`; all sessions are broken.
  void Restart(const CoordinatorState& state);

  // The member of session `old` resumes its membership in a new one.
  Reaction ResumeIn(SessionId session, SessionId old);
  Resume ResumeOf(SessionId old) const;
  // These members resume in new sessions, kBack later than the old ones.
  // Returns the reaction to the last one.
  Reaction ResumeAll(const std::vector<SessionId>& members);

  Reaction Beat(SessionId session, int64_t begun_step, int64_t round);

  // Ticks twice a second until this time has passed. Before each tick, every
  // member with an open session repeats its last heartbeat, except for the
  // `silent` ones.
  Reaction Pass(absl::Duration time, const std::set<SessionId>& silent = {});

  // The coordinator's process stands still for so long: what comes meanwhile
  // waits.
  void StandStill(absl::Duration time) { now_ += time; }

  // Says a report for the target and the epoch that this session heard of last.
  Reaction Report(SessionId session, const MachineReport& report);
  // Report of a member that is in step `begun_step` and has done all steps
  // before. A server reports so for each shard that it holds.
  Reaction Report(SessionId session, int64_t begun_step);
  // Says reports for all members with an open session that have not reported
  // yet.
  Reaction ReportRest(int64_t begun_step);

  const Coordinator& coordinator() const { return *coordinator_; }
  JobState state() const { return coordinator_->state(); }
  const Job& job() const { return *coordinator_->job(); }
  JobStatus Status() const { return coordinator_->Status(now_); }

 private:
  struct Session {
    bool open = true;
    std::optional<EpochStart> start;  // The last one.
    std::optional<uint64_t> target;   // Asked for, not reported.
    Heartbeat heartbeat;              // The last one.
  };

  Reaction React(const std::function<void(CoordinatorOutbox&)>& event);
  void Note(const SendToMember& send);

  const CoordinatorOptions options_;
  std::optional<Coordinator> coordinator_;
  absl::Time now_ = absl::UnixEpoch();
  std::map<SessionId, Session> sessions_;
};

// Coordinator of a job that runs: all members have joined (Gather).
class RunningDriver : public CoordinatorDriver {
 public:
  explicit RunningDriver(CoordinatorOptions options)
      : CoordinatorDriver(std::move(options)) {
    Gather();
  }
};

}  // namespace nereus
