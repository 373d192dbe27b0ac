#include "server/report/job_health.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/names.h"

namespace nereus {
namespace {

constexpr Named<Health> kHealthNames[] = {
    {Health::kOver, "over"}, {Health::kBad, "bad"},
    {Health::kSlow, "slow"}, {Health::kAtRisk, "at risk"},
    {Health::kGood, "good"}, {Health::kStarting, "starting"}};

// A member that has sent nothing for this long is not well.
constexpr absl::Duration kSilenceMax = absl::Seconds(3);

// A step that takes this many times what the plan predicts is worth a word.
constexpr double kSlowerThanForecast = 1.5;

// Returns "step 12, 131ms a step (127ms predicted)".
std::string DescribeSteps(const JobStatus& status) {
  std::string text = absl::StrCat("step ", status.steps.begun);
  if (status.steps.per_second <= 0) return text;
  absl::StrAppend(&text, ", ",
                  ShortTime(absl::Seconds(1 / status.steps.per_second)),
                  " a step");
  if (status.steps.predicted > absl::ZeroDuration()) {
    absl::StrAppend(&text, " (", ShortTime(status.steps.predicted),
                    " predicted)");
  }
  return text;
}

// Returns the member that has waited longest for others; null: none does.
const JobStatus::Member* LongestStall(const JobStatus& status) {
  const JobStatus::Member* longest = nullptr;
  for (const JobStatus::Member& member : status.members) {
    if (!member.stall.has_value()) continue;
    if (longest == nullptr || member.stall->waited > longest->stall->waited) {
      longest = &member;
    }
  }
  return longest;
}

// Returns the member that has been silent for longest; null: all are heard.
const JobStatus::Member* MostSilent(const JobStatus& status) {
  const JobStatus::Member* most = nullptr;
  for (const JobStatus::Member& member : status.members) {
    if (member.left || member.since_heartbeat < kSilenceMax) continue;
    if (most == nullptr || member.since_heartbeat > most->since_heartbeat) {
      most = &member;
    }
  }
  return most;
}

// A step that is older than this many times the time of a step is late.
constexpr int kLateSteps = 10;

// Returns the time of a step of the slowest worker, on average since it joined;
// zero: not known.
absl::Duration LongestStep(const JobStatus& status) {
  absl::Duration longest;
  for (const JobStatus::Member& member : status.members) {
    const Activity& activity = member.activity;
    if (member.left || activity.steps == 0) continue;
    longest = std::max(longest, activity.times.total() / activity.steps);
  }
  return longest;
}

// True if workers are there, and none has begun a step for longer than a lease
// and ten steps.
bool IsStepLate(const JobStatus& status) {
  const absl::Duration step = LongestStep(status);
  return step > absl::ZeroDuration() &&
         status.steps.since_begun < absl::InfiniteDuration() &&
         status.steps.since_begun > std::max(kLateSteps * step, status.lease);
}

// Returns what the job waits for, if it makes no steps because of that; else
// "".
std::string WhyBad(const JobStatus& status) {
  std::string why = status.waiting;
  const auto add = [&why](const std::string& text) {
    absl::StrAppend(&why, why.empty() ? "" : "; ", text);
  };
  const JobStatus::Member* const silent = MostSilent(status);
  if (silent != nullptr) {
    add(absl::StrCat(MemberName(*silent), " (", silent->data_address,
                     ") has sent nothing for ",
                     ShortTime(silent->since_heartbeat)));
  }
  for (const JobStatus::Member& member : status.members) {
    if (!member.work.has_value() ||
        member.work->kind != LongWork::Kind::kRestore) {
      continue;
    }
    add(absl::StrCat(MemberName(member), " ", DescribeWork(*member.work)));
  }
  const JobStatus::Member* const stalled = LongestStall(status);
  if (stalled != nullptr) {
    add(absl::StrCat(
        MemberName(*stalled), " has waited ", ShortTime(stalled->stall->waited),
        " for ", stalled->stall->missing, " in round ", stalled->stall->round,
        " of layer ", stalled->stalled_layer));
  }
  for (const JobStatus::DiskWait& wait : status.disk_waits) {
    if (wait.messages > 0) add(DescribeDiskWait(wait));
  }
  if (why.empty() && IsStepLate(status)) {
    add(absl::StrCat("no worker has begun a step for ",
                     ShortTime(status.steps.since_begun),
                     "; nothing is missing, so a program computes for longer "
                     "than usual, or has stopped training"));
  }
  return why;
}

// Returns the member for which the others wait longest in each step; null: they
// wait for none.
const JobStatus::Member* Latest(const JobStatus& status) {
  const JobStatus::Member* latest = nullptr;
  for (const JobStatus::Member& member : status.members) {
    if (member.left || !member.pace.has_value() ||
        member.pace->cause == LateCause::kNone) {
      continue;
    }
    if (latest == nullptr || member.pace->late > latest->pace->late) {
      latest = &member;
    }
  }
  return latest;
}

std::string DescribeLate(const JobStatus::Member& member) {
  const Pace& pace = *member.pace;
  return absl::StrCat(
      "the others wait ", ShortTime(pace.late), " of each step for ",
      MemberName(member), " (", member.data_address, "), ",
      pace.cause == LateCause::kComputing
          ? absl::StrCat("whose program computes longer: ",
                         ShortTime(pace.step.computing()), " a step")
          : absl::StrFormat(
                "whose link is slow: it is busy %.0f %% of the time",
                100 * pace.link_share));
}

// Returns what the loss of one more process would cost; "": nothing.
std::string WhyAtRisk(const JobStatus& status) {
  std::vector<size_t> shards;
  for (size_t i = 0; i < status.shard_servers.size(); ++i) {
    if (!status.shard_servers[i].backup_is_current) shards.push_back(i);
  }
  if (shards.size() == 1) {
    return absl::StrCat("shard ", shards[0],
                        " has no current backup: the loss of its server would "
                        "cost steps");
  }
  if (!shards.empty()) {
    return absl::StrCat("shards ", absl::StrJoin(shards, ", "),
                        " have no current backup: the loss of a server would "
                        "cost steps");
  }
  for (const JobStatus::DiskWait& wait : status.disk_waits) {
    return DescribeDiskWait(wait);
  }
  if (!status.checkpoint.damage.empty()) {
    return absl::StrCat("a checkpoint is damaged and was set aside, ",
                        status.checkpoint.damage);
  }
  if (!status.checkpoint.failure.empty()) {
    return absl::StrCat("the last checkpoint failed: ",
                        status.checkpoint.failure);
  }
  return "";
}

// Returns the share of a step in which the caller waits for the network.
double WaitingShare(const PhaseTimes& times) {
  return absl::FDivDuration(times.waiting, times.total());
}

// Smallest share of a step for which a wait for the shared device is named.
constexpr double kTurnShareMin = 0.01;

// Returns what limits the speed.
std::string DescribeLimit(const JobStatus& status) {
  const PhaseTimes times = MedianStep(status);
  if (times.total() == absl::ZeroDuration()) return "";
  const double turn = absl::FDivDuration(times.turn, times.total());
  std::string text = absl::StrFormat(
      ". %s limits the speed: %.0f %% of a step is waiting for the network",
      WaitingShare(times) > 0.5 ? "The network"
      : turn >= kTurnShareMin   ? "The shared device"
                                : "Computing",
      100 * WaitingShare(times));
  if (turn >= kTurnShareMin) {
    absl::StrAppendFormat(&text,
                          ", and %.0f %% for the device, which other jobs use",
                          100 * turn);
  }
  // The plan knows nothing of other jobs.
  if (status.steps.predicted > absl::ZeroDuration() &&
      times.total() - times.turn >
          kSlowerThanForecast * status.steps.predicted) {
    absl::StrAppend(&text, "; a step takes longer than the plan predicts");
  }
  return text;
}

}  // namespace

std::string HealthName(Health health) {
  return std::string(NameOf<kHealthNames>(health));
}

std::string MemberName(const JobStatus::Member& member) {
  return member.id.role == Role::kShard ? PeerName(member.id)
                                        : absl::StrCat("worker ", member.name);
}

std::string ShortTime(absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  if (seconds >= 100) {
    return absl::FormatDuration(absl::Trunc(time, absl::Seconds(1)));
  }
  return seconds >= 1 ? absl::StrFormat("%.3gs", seconds)
                      : absl::StrFormat("%.3gms", 1000 * seconds);
}

std::string DescribeDiskWait(const JobStatus::DiskWait& wait) {
  std::string text =
      wait.error.empty()
          ? absl::StrCat("the disk has been busy for ", ShortTime(wait.time),
                         " with ", wait.what)
          : absl::StrCat(wait.what, " fails: ", wait.error);
  if (wait.messages > 0) {
    absl::StrAppend(&text, "; ", wait.messages,
                    wait.messages == 1 ? " message to a member waits for this"
                                       : " messages to members wait for this");
  }
  return text;
}

PhaseTimes MedianStep(const JobStatus& status) {
  std::vector<PhaseTimes> times;
  for (const JobStatus::Member& member : status.members) {
    if (!member.left && member.pace.has_value() &&
        member.pace->step.total() > absl::ZeroDuration()) {
      times.push_back(member.pace->step);
    }
  }
  if (times.empty()) return {};
  const auto middle = times.begin() + (std::ssize(times) - 1) / 2;
  std::nth_element(times.begin(), middle, times.end(),
                   [](const PhaseTimes& a, const PhaseTimes& b) {
                     return WaitingShare(a) < WaitingShare(b);
                   });
  return *middle;
}

JobHealth Judge(const JobStatus& status) {
  if (IsOver(status.state)) {
    std::string text = absl::StrCat("The job is ", JobStateName(status.state),
                                    ", after step ", status.steps.begun);
    if (!status.reason.empty()) absl::StrAppend(&text, ": ", status.reason);
    if (status.checkpoint.round > kInitialRound) {
      absl::StrAppend(&text, ". Its newest checkpoint is of round ",
                      status.checkpoint.round);
    }
    return {Health::kOver, text + "."};
  }
  if (status.state == JobState::kWaiting) {
    return {Health::kStarting,
            absl::StrCat("The job has not begun: ", status.waiting, ".")};
  }
  const std::string bad = WhyBad(status);
  if (!bad.empty()) {
    return {Health::kBad, absl::StrCat("The job waits, at step ",
                                       status.steps.begun, ": ", bad, ".")};
  }
  const std::string runs =
      absl::StrCat("The job runs: ", DescribeSteps(status));
  const std::string risk = WhyAtRisk(status);
  if (const JobStatus::Member* const late = Latest(status)) {
    return {Health::kSlow, absl::StrCat(runs, ". It would be faster, but ",
                                        DescribeLate(*late), ".",
                                        risk.empty() ? "" : " Also, ", risk,
                                        risk.empty() ? "" : ".")};
  }
  if (!risk.empty()) {
    return {Health::kAtRisk, absl::StrCat(runs, ". But ", risk, ".")};
  }
  return {Health::kGood, absl::StrCat(runs, DescribeLimit(status), ".")};
}

}  // namespace nereus
