#pragma once

#include <cstdint>
#include <string>

#include "common/base/names.h"

namespace nereus {

// Kind of event that a log line tells of: the key `event` of its JSON form.
// Programs that read logs depend on these names, so a name never changes its
// meaning. docs/operating.md says what each one means.
enum class LogEvent {
  kNone,             // No event: the line has no key `event`.
  kStart,            // The first line of a program.
  kEnd,              // The last line of a program.
  kJobState,         // The job has begun, has ended, or goes on.
  kMemberJoined,     // This process has joined the job.
  kMemberLost,       // A member was removed, because it counts as dead.
  kMemberLeft,       // A member leaves, or was asked to.
  kMemberLeftEarly,  // A worker has left before the job was done.
  kEpoch,            // An epoch begins.
  kPlan,             // A plan, what it is based on, or the size of fusion.
  kStall,            // A round has waited for a long time.
  kWaiting,          // The job, or this process, waits for another process.
  kCheckpoint,       // A checkpoint was made, lost, restored or set aside.
  kReplicas,         // Backups of shards, and replicas that differ.
  kSkippedStep,      // A gradient is not finite: all workers skip the step.
  kHosts,            // Processes that could or could not share a host.
  kConnection,       // A connection to another member was lost.
  kRefused,          // A process, session or connection was refused.
  kProgress,         // Progress and results of the training.
  kDisk,             // A disk is slow, hangs or fails.
  kLog,              // Lines of this log were dropped.
};

inline constexpr Named<LogEvent> kLogEventNames[] = {
    {LogEvent::kNone, ""},
    {LogEvent::kStart, "start"},
    {LogEvent::kEnd, "end"},
    {LogEvent::kJobState, "job_state"},
    {LogEvent::kMemberJoined, "member_joined"},
    {LogEvent::kMemberLost, "member_lost"},
    {LogEvent::kMemberLeft, "member_left"},
    {LogEvent::kMemberLeftEarly, "member_left_early"},
    {LogEvent::kEpoch, "epoch"},
    {LogEvent::kPlan, "plan"},
    {LogEvent::kStall, "stall"},
    {LogEvent::kWaiting, "waiting"},
    {LogEvent::kCheckpoint, "checkpoint"},
    {LogEvent::kReplicas, "replicas"},
    {LogEvent::kSkippedStep, "skipped_step"},
    {LogEvent::kHosts, "hosts"},
    {LogEvent::kConnection, "connection"},
    {LogEvent::kRefused, "refused"},
    {LogEvent::kProgress, "progress"},
    {LogEvent::kDisk, "disk"},
    {LogEvent::kLog, "log"},
};

// Facts about one log line, which only its JSON form shows.
struct LogFields {
  LogEvent event = LogEvent::kNone;
  int64_t step = -1;       // Step or round that the line is about; -1: none.
  std::string layer = {};  // Layer that the line is about; "": none.
  int64_t epoch = -1;      // Epoch that begins; -1: none begins.
  // Member that the line is about: "worker NAME" or "shard 2"; "": none.
  std::string member = {};
};

}  // namespace nereus
