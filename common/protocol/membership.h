#ifndef NEREUS_COMMON_PROTOCOL_MEMBERSHIP_H_
#define NEREUS_COMMON_PROTOCOL_MEMBERSHIP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/plan/planner.h"
#include "common/protocol/job.h"
#include "common/protocol/peer.h"

namespace nereus {

// What members and their coordinator say to each other, as plain values; the
// Protobuf form is proto/coordinator.proto.

// A process asks to become a member of a job.
struct JoinRequest {
  uint32_t protocol_version = 0;
  std::string build;  // For messages; may differ.
  std::string job;    // The name that the user gave.
  Role role = Role::kWorker;
  int shard = 0;     // Shards say which one they are; workers are given a rank.
  std::string name;  // For messages: "host:pid".
  std::string data_address;       // "host:port" where peers reach it.
  std::vector<LayerSpec> layers;  // Workers: the model.
};

// The answer once everybody is there.
struct Welcome {
  int rank = 0;
  JobPtr job;
  std::vector<RouteExplanation> explanations;  // By layer.
  std::vector<std::string> worker_addresses;   // By rank.
  std::vector<std::string> shard_addresses;    // By index.
};

inline constexpr absl::Duration kHeartbeatInterval = absl::Seconds(1);

// What a member reports every kHeartbeatInterval, and at once when it loses a
// peer.
struct Heartbeat {
  uint64_t job = 0;
  uint64_t epoch = 0;
  PeerId member;
  int64_t round = kInitialRound;  // The last one that is done for every layer.
  int64_t stored_bytes = 0;       // Shards: parameters and optimizer state.
  int64_t chunks = 0;             // Shards.

  // Peers whose connection ended, and how.
  struct LostPeer {
    PeerId peer;
    std::string reason;
  };
  std::vector<LostPeer> lost_peers;
};

enum class JobState {
  kGathering,  // Members are missing.
  kRunning,
  kFinished,  // Every worker has left politely.
  kFailed,
};

absl::string_view JobStateName(JobState state);

// The coordinator's answer to a heartbeat.
struct JobVerdict {
  JobState state = JobState::kGathering;
  std::string reason;  // Why it failed.
};

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
  };
  std::string job;
  uint64_t id = 0;
  uint64_t epoch = 0;
  JobState state = JobState::kGathering;
  std::string reason;   // Why it failed.
  std::string waiting;  // Who is missing, while gathering.
  int workers = 0;
  int shards = 0;
  std::vector<Member> members;  // Workers by rank, then shards by index.
};

}  // namespace nereus

#endif  // NEREUS_COMMON_PROTOCOL_MEMBERSHIP_H_
