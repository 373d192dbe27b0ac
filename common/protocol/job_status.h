#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/log_event.h"
#include "common/base/time_histogram.h"
#include "common/plan/planner.h"
#include "common/protocol/activity.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "common/protocol/peer.h"

namespace nereus {

// Time over which rates of the status are averaged.
inline constexpr absl::Duration kRateWindow = absl::Seconds(10);

// Largest number of layers that a status lists.
inline constexpr int kStatusLayersMax = 64;
// Largest number of events that a status lists.
inline constexpr int kStatusEventsMax = 50;

// Cause for which the other members wait for a member.
enum class LateCause {
  kNone,       // They do not wait for it.
  kComputing,  // Its program computes longer between two steps.
  kLink,       // The network is slow between it and its peers.
};

// Speed of one member over the last kRateWindow. A value type.
struct Pace {
  PhaseTimes step;  // Workers: mean times of a step; zero: not known.
  // Share of the time in which its busiest link was busy (BusyLink), or, if it
  // is late because of its link, those of other members to it.
  double link_share = 0;
  // Time of each step in which the others wait for it, compared with the median
  // of its role; and the cause.
  absl::Duration late;
  LateCause cause = LateCause::kNone;
  // Its busiest link before its last heartbeat; nothing: it has none.
  std::optional<BusyLink> busiest = {};
};

// State of a job's checkpoints.
struct CheckpointStatus {
  // Round of the newest complete checkpoint; kInitialRound: none exists.
  int64_t round = kInitialRound;
  // Number of contributions in all steps up to and including `round`. It tells
  // which examples the job has used.
  int64_t contributions = 0;
  int64_t bytes = 0;    // Length of that checkpoint.
  bool wanted = false;  // True if a requested checkpoint is still to come.
  // Cause of failure of the last checkpoint that failed; empty: no checkpoint
  // has failed, or a newer one is complete.
  std::string failure;
  // Rounds and damage of the checkpoints that were set aside since the last one
  // was completed; empty: none were.
  std::string damage;
  // Time since this coordinator heard that a checkpoint is complete; infinite:
  // it has heard of none.
  absl::Duration since = absl::InfiniteDuration();
};

// Numbers of what has happened in the job since this coordinator was started.
struct JobCounts {
  int64_t epochs = 0;  // Epochs that have begun.
  // Number of epochs by the reason for them, the first that holds: "start", the
  // first epoch; "lost", a member counted as dead; "join" and "leave", a member
  // came or went; "plan", another plan; "checkpoint", a requested checkpoint;
  // "other", such as a lost connection.
  std::map<std::string, int64_t> epochs_by_reason;
  int64_t plan_changes = 0;  // Epochs that had another plan.
  int64_t workers_lost = 0;  // Workers that were counted as dead.
  int64_t servers_lost = 0;  // Servers that were counted as dead.
  // Times from the last message of a lost member to the epoch that the next
  // member of its role joined.
  TimeHistogram workers_replaced;
  TimeHistogram servers_replaced;
  int64_t checkpoints = 0;  // Checkpoints that were completed.
  int64_t checkpoints_failed = 0;
};

// Steps of a job.
struct StepStatus {
  // Last step that any worker has begun; kInitialRound: none.
  int64_t begun = kInitialRound;
  // Steps per second over the last kRateWindow; 0: not known.
  double per_second = 0;
  // Time since `begun` grew; infinite: it has not since this coordinator began.
  absl::Duration since_begun = absl::InfiniteDuration();
  // Time of a step that the plan predicts; zero: the workers have not measured
  // yet, or the job plans by bytes.
  absl::Duration predicted;
  // True if the job has partial rounds (--quorum), so that workers can be
  // several steps apart.
  bool partial = false;
};

// Plan of a job.
struct PlanStatus {
  // Route of one layer, and why.
  struct Layer {
    std::string name;
    Route route;
    RouteExplanation explanation;
    int64_t parameters = 0;
    int32_t index = 0;  // Number among the layers of the model.
    // Time from the push of the layer to its result: the median over the
    // workers of what each has last reported. Nothing: not known.
    std::optional<absl::Duration> sync_time = {};

    // Bytes that the layer moves over the link of a host in a step, as planned.
    int64_t bytes() const;
  };

  // Number of layers by scheme, as text for users: "3 by server, 1 by ring".
  std::string schemes;
  // Layers by bytes(), the largest first; at most kStatusLayersMax.
  std::vector<Layer> layers;
  int layers_left_out = 0;  // Number of layers that `layers` lacks.
};

// State of a job as the coordinator knows it, for operators: `nereusctl
// status`, the page and the metrics. The coordinator makes a new JobStatus for
// each request. A value type.
struct JobStatus {
  // State of one member. `round`, `stored_bytes`, `chunks`, `stall` and
  // `activity` are those of its last heartbeat (Heartbeat).
  struct Member {
    PeerId id;                 // Role and rank.
    std::string name;          // JoinRequest::name.
    std::string data_address;  // "host:port" of the member's data port.
    // Workers: last round that is done for every layer.
    int64_t round = kInitialRound;
    // Time since the coordinator got the member's last message.
    absl::Duration since_heartbeat;
    // True if the worker has left the job.
    bool left = false;
    // Servers: bytes of parameters and optimizer state.
    int64_t stored_bytes = 0;
    int64_t chunks = 0;  // Servers: number of chunks.
    // Oldest open round, if it has waited too long (StallWatch); else nothing.
    std::optional<Stall> stall;
    // Name of the layer in `stall`.
    std::string stalled_layer;
    // Number of the member's host; -1: a host of its own, or the member is not
    // in an epoch yet.
    int32_t host = -1;
    // True if the coordinator treats the worker as a host of its own, because
    // this worker and another worker of its host could not connect.
    bool split = false;
    Activity activity;
    std::optional<Pace> pace;           // Nothing before it is known.
    absl::Duration late_total;          // Sum of Pace::late over all steps.
    std::optional<LongWork> work = {};  // Heartbeat::work.
  };
  // Line of the coordinator's log.
  struct Event {
    absl::Time at;     // Wall-clock time.
    bool bad = false;  // True for a warning.
    std::string text;
    LogEvent event = LogEvent::kNone;  // Kind of event.
    std::string member = {};           // LogFields::member.
  };

  // Operation of the coordinator's disk that takes long or fails.
  struct DiskWait {
    std::string what;      // "saving the job's state".
    absl::Duration time;   // Time since it began.
    std::string error;     // Why the last try has failed; empty: one goes on.
    int64_t messages = 0;  // Messages to members that wait for it.
  };

  // Name of the job.
  std::string job;
  uint64_t id = 0;                      // Id of the job.
  uint64_t epoch = 0;                   // Current epoch; 0 before the first.
  JobState state = JobState::kWaiting;  // Phase of the job.
  StepStatus steps;
  PlanStatus plan;
  std::string reason;   // Cause of failure, else empty.
  std::string waiting;  // Members that are missing, else empty.
  absl::Duration lease = kLeaseDefault;  // Lease of the job.
  int workers = 0;              // Number of workers that the job needs.
  int shards = 0;               // Number of shards.
  std::vector<Member> members;  // Workers by rank, then servers by rank.
  // Servers of each shard; empty before the job runs, or without backups.
  std::vector<ShardServers> shard_servers;
  std::vector<Event> events;    // Last events, the newest last.
  CheckpointStatus checkpoint;  // Newest checkpoint, and the next one.
  JobCounts counts;
  std::vector<DiskWait> disk_waits;
  // Processes that ask to join and must wait (JoinBrake), each with its name,
  // the time, and the reason.
  std::vector<std::string> newcomers;
};

}  // namespace nereus
