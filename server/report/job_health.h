#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/protocol/activity.h"
#include "common/protocol/job_status.h"

namespace nereus {

// How well a job is.
enum class Health {
  kOver,      // The job is over.
  kBad,       // The job makes no steps.
  kSlow,      // The job makes steps, but the others wait for one member.
  kAtRisk,    // The loss of one more process would cost steps.
  kGood,      // The job makes steps.
  kStarting,  // The job has not begun.
};

// Returns the name of `health` in JSON: "at risk".
std::string HealthName(Health health);

// Answer to the first question of an operator: how is the job?
struct JobHealth {
  Health kind = Health::kGood;
  // State, what is wrong, and whose fault it is, in one or two sentences.
  std::string text;
};

// Judges a job by its status.
JobHealth Judge(const JobStatus& status);

// Returns the times of a step of the worker whose share of waiting is the
// median; zero: not known.
PhaseTimes MedianStep(const JobStatus& status);

// Returns the name that messages and logs use for a member: "worker a".
std::string MemberName(const JobStatus::Member& member);

// Returns "the disk has been busy for 12s with saving the job's state; 3
// messages to members wait for this", or "saving the job's state fails:
// REASON".
std::string DescribeDiskWait(const JobStatus::DiskWait& wait);

// Returns a time with three digits: "131ms", "4.25s".
std::string ShortTime(absl::Duration time);

}  // namespace nereus
