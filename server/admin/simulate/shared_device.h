#pragma once

#include <vector>

#include "absl/types/span.h"

namespace nereus {

// A job that shares the devices and links of its nodes with other jobs, as
// seconds of a step on the busiest node.
struct SharingJob {
  double compute = 0;  // Time of the device.
  double link = 0;     // Time of the node's link, the busier direction.
  double alone = 0;    // Time of a step without other jobs, >= compute.
};

// Largest ratio of the lengths of two jobs' steps. It bounds the time of
// PlayShared, which plays all steps of the shortest one.
inline constexpr double kSharingRatioMax = 1000;

// How jobs share the devices (docs/sharing.md).
enum class Sharing {
  // All jobs compute at the same time. The device gives each job that computes
  // an equal share.
  kAtOnce,
  // Jobs compute one at a time.
  kTurns,
};

// Predicts the seconds of a step of each job while all are at work.
//
// A step computes. Its bytes are on the link from the point of computing from
// which the job alone ends after `alone` seconds. A step ends when both are
// done, and the next one begins. Jobs that send at the same time share the
// link; nodes are alike. With kAtOnce, jobs begin at several distances from
// each other, and the mean counts.
//
// Source: the model of docs/sharing.md; our own, because CrossoverScheduler's
// abstract gives none. REQUIRES: compute > 0 of each job, and no job alone is
// kSharingRatioMax times as long as another one.
std::vector<double> PlayShared(absl::Span<const SharingJob> jobs,
                               Sharing sharing);

}  // namespace nereus
