// Read in this order: measurements of a worker arrive (Check, OnMeasured); for
// each figure the slowest worker counts (Slowest); the caller then asks for a
// better plan (Better, FindBetter) or a better threshold of fusion
// (FindBetterFusion).
//
// A search takes a while. So OnMeasured asks for one only if the measurements
// have changed (Differs), and less often after each change of plans. Better
// keeps its answer for equal routes and equal numbers of workers and hosts.

#include "server/coordinator/replanner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Least relative saving that is worth a change of the plan. A prediction may be
// wrong by more, but then the predictions of both plans mostly are.
constexpr double kGainMin = 0.03;

// A plan that returns layers from 16 bits to float32 may cost up to this share
// more. The job changes to this plan when 16 bits no longer save time.
constexpr double kWideningCostMax = 0.01;

// Relative change of a measurement above which the change counts.
constexpr double kChangeMin = 0.2;
// Range of a link's rate, in bytes per second.
constexpr double kRateMin = 1;
constexpr double kRateMax = 1e13;

// Largest number of times that the interval between searches doubles.
constexpr int kChangesMax = 8;

// Least change of a duration that counts, however large its relative change is.
constexpr absl::Duration kTimeChangeMin = absl::Microseconds(100);
// Least change of LinkSpeed::message_time, the time for each frame, that
// counts.
constexpr absl::Duration kMessageTimeChangeMin = absl::Microseconds(10);

// True if two figures differ by more than `least`, and by more than the share
// kChangeMin of the larger one.
bool Differs(double a, double b, double least = 0) {
  return std::abs(a - b) > std::max(least, kChangeMin * std::max(a, b));
}

bool Differs(absl::Duration a, absl::Duration b,
             absl::Duration least = kTimeChangeMin) {
  return Differs(absl::ToDoubleSeconds(a), absl::ToDoubleSeconds(b),
                 absl::ToDoubleSeconds(least));
}

bool Differs(const LinkSpeed& a, const LinkSpeed& b) {
  return Differs(a.rate, b.rate) || Differs(a.latency, b.latency) ||
         Differs(a.message_time, b.message_time, kMessageTimeChangeMin);
}

// True if the worker has measured more, or less, than before, or if a figure
// has changed.
bool Differs(const Measured& a, const Measured& b) {
  if (a.link.has_value() != b.link.has_value() ||
      a.memory_rate.has_value() != b.memory_rate.has_value() ||
      a.waits_in_forward != b.waits_in_forward) {
    return true;
  }
  return (a.link.has_value() && Differs(*a.link, *b.link)) ||
         (a.memory_rate.has_value() &&
          Differs(*a.memory_rate, *b.memory_rate)) ||
         Differs(TotalTime(a.times), TotalTime(b.times));
}

// True if the routes are equal, except that some layers get float32 in place of
// 16 bits.
bool Widens(absl::Span<const Route> before, absl::Span<const Route> after) {
  return std::equal(
      before.begin(), before.end(), after.begin(),
      [](const Route& old, const Route& next) {
        return old.scheme == next.scheme &&
               (old.wire == next.wire || next.wire == WireType::kFloat32);
      });
}

std::vector<Route> RoutesOf(const Job& job) {
  return {job.routes.begin(), job.routes.begin() + job.model().size()};
}

// Returns the number of hosts of the job's workers. Returns 0 if each worker
// has its own host, or if workers of one host do not add up their gradients, as
// in partial rounds.
int HostsOf(const Job& job) {
  if (job.partial()) return 0;
  const int hosts = job.LineupOf(kStepMax).hosts();
  return hosts == job.worker_count() ? 0 : hosts;
}

}  // namespace

bool Replanner::chooses(const JobOptions& options) const {
  // Another scheme adds in another order, and another wire type rounds
  // differently: a deterministic job keeps its plan.
  return rules_.choose() && !options.deterministic;
}

// With backups, the plan could not change again without checkpoints
// (Epochs::IsSafeToChangePlan).
PlanRules Replanner::RulesWith(const JobOptions& options) const {
  PlanRules rules = rules_;
  rules.lone_stays = chooses(options) &&
                     options.optimizer_place == OptimizerPlace::kWorker &&
                     options.sparsity.share == 0 &&
                     (!options.backup || options.has_checkpoints);
  return rules;
}

absl::StatusOr<Plan> Replanner::FirstPlan(absl::Span<const LayerSpec> layers,
                                          const ClusterShape& cluster,
                                          const JobOptions& job) const {
  PlanOptions options;
  options.cluster = cluster;
  options.rules = RulesWith(job);
  options.rules.cost = CostKind::kBytes;
  options.rules.choose_wire = false;
  return MakePlan(layers, options);
}

absl::StatusOr<Plan> Replanner::PlanFor(absl::Span<const LayerSpec> layers,
                                        const Job& job, int workers,
                                        int hosts) const {
  if (job.partial()) hosts = 0;
  if (!chooses(job.options) || !known_.has_value()) {
    return FirstPlan(layers, {workers, job.shards(), hosts}, job.options);
  }
  return MakePlan(layers, OptionsFor(job, workers, hosts));
}

absl::Status Replanner::Check(const Measured& measured, const Job& job) {
  TimeModel model;
  model.times = measured.times;
  model.link = measured.link.value_or(LinkSpeed{kRateMin});
  NEREUS_TRY(model.Validate(job.model()));
  for (const auto& [name, rate] :
       {std::pair{"link", model.link.rate},
        std::pair{"memory", measured.memory_rate.value_or(kRateMin)}}) {
    if (rate >= kRateMin && rate <= kRateMax) continue;
    return InvalidArgumentError(
        "a worker has measured that the rate of its "
        "host's ",
        name, " is ", rate, ", not from ", kRateMin, " to ", kRateMax,
        " bytes/s");
  }
  if (!measured.sync_times.empty() &&
      measured.sync_times.size() != job.model().size()) {
    return InvalidArgumentError("a worker has reported the times of ",
                                measured.sync_times.size(),
                                " layers, the model has ", job.model().size());
  }
  for (const absl::Duration time : measured.sync_times) {
    if (time >= absl::ZeroDuration() && time <= kComputeTimeMax) continue;
    return InvalidArgumentError(
        "a worker has reported that the result of a "
        "layer takes ",
        absl::FormatDuration(time));
  }
  if (measured.step_time > absl::ZeroDuration() &&
      measured.step_time <= kComputeTimeMax) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("a worker has measured that an iteration takes ",
                              absl::FormatDuration(measured.step_time),
                              ", must be above 0 and at most ",
                              absl::FormatDuration(kComputeTimeMax));
}

Measured Replanner::Slowest() const {
  Measured slowest;
  for (const auto& [worker, measured] : measured_) {
    if (slowest.times.empty()) {
      slowest = measured;
      continue;
    }
    for (size_t layer = 0; layer < slowest.times.size(); ++layer) {
      LayerTime& time = slowest.times[layer];
      const LayerTime& other = measured.times[layer];
      time.forward = std::max(time.forward, other.forward);
      time.backward = std::max(time.backward, other.backward);
    }
    slowest.step_time = std::max(slowest.step_time, measured.step_time);
    slowest.waits_in_forward =
        slowest.waits_in_forward && measured.waits_in_forward;
    if (measured.link.has_value()) {
      slowest.link =
          SlowerOf(slowest.link.value_or(*measured.link), *measured.link);
    }
    if (measured.memory_rate.has_value()) {
      slowest.memory_rate =
          std::min(slowest.memory_rate.value_or(*measured.memory_rate),
                   *measured.memory_rate);
    }
  }
  return slowest;
}

// Asks for a search only if a worker has measured for the first time, has
// measured other figures (Differs), or has left. Another step time alone is no
// reason for a search.
bool Replanner::OnMeasured(int32_t worker, const Measured& measured,
                           const Job& job, absl::Time now) {
  if (job.PositionOf(worker) < 0) return false;
  const auto [known, first] = measured_.try_emplace(worker, measured);
  known->second.step_time = measured.step_time;
  if (first || Differs(known->second, measured)) {
    known->second = measured;
    news_ = true;
  }
  if (rules_.cost != CostKind::kTime) return false;
  const bool all = known_.has_value() || measured_.size() >= job.workers.size();
  if (!all || !news_ || now < not_before_) return false;
  Measured slowest = Slowest();
  // The worker that measured the link, or the memory, may have left, and its
  // successor has no result yet. The memory of before is still the best guess.
  if (!slowest.link.has_value()) return false;
  if (!slowest.memory_rate.has_value() && known_.has_value()) {
    slowest.memory_rate = known_->memory_rate;
  }
  news_ = false;
  const bool looks = !known_.has_value() || Differs(*known_, slowest);
  if (!looks) return false;
  known_ = std::move(slowest);
  asked_.reset();
  not_before_ = now + interval_ * static_cast<double>(int64_t{1} << changes_);
  return true;
}

std::optional<absl::Duration> Replanner::ComputingTime(const Job& job) const {
  if (measured_.size() < job.workers.size()) return std::nullopt;
  return TotalTime(Slowest().times);
}

void Replanner::OnEpoch(const Job& job, bool changed) {
  const auto gone = std::erase_if(measured_, [&](const auto& entry) {
    return job.PositionOf(entry.first) < 0;
  });
  news_ = news_ || gone > 0;
  if (changed) changes_ = std::min(changes_ + 1, kChangesMax);
}

PlanOptions Replanner::OptionsFor(const Job& job, int workers,
                                  int hosts) const {
  PlanOptions options;
  options.cluster = {workers, job.shards(), hosts};
  options.rules = RulesWith(job.options);
  if (!known_.has_value()) return options;
  TimeModel& model = options.time.emplace();
  model.times = known_->times;
  model.link = *known_->link;
  if (known_->memory_rate.has_value()) model.memory_rate = *known_->memory_rate;
  model.waits_in_forward = known_->waits_in_forward;
  model.share = 1 - job.options.sparsity.share;
  model.sequential = job.options.overlap == Overlap::kNone;
  return options;
}

// Keeps the answer of the last search: a search takes a while, and callers ask
// after each event.
const std::optional<Replanner::BetterPlan>& Replanner::Better(const Job& job,
                                                              int workers,
                                                              int hosts) {
  if (job.partial()) hosts = 0;
  const absl::Span<const LayerSpec> model = job.model();
  std::tuple asked(RoutesOf(job),
                   std::vector<LayerSpec>(model.begin(), model.end()), workers,
                   hosts);
  if (asked_ != asked) {
    better_ = FindBetter(job, workers, hosts);
    asked_ = std::move(asked);
  }
  return better_;
}

std::optional<Replanner::BetterPlan> Replanner::FindBetter(const Job& job,
                                                           int workers,
                                                           int hosts) const {
  const bool known = rules_.cost == CostKind::kBytes || known_.has_value();
  if (!chooses(job.options) || workers < 2 || !known) return std::nullopt;
  const PlanOptions options = OptionsFor(job, workers, hosts);
  absl::StatusOr<Plan> plan = MakePlan(job.model(), options);
  if (!plan.ok()) return std::nullopt;
  const std::vector<Route> now = RoutesOf(job);
  if (plan->routes == now) return std::nullopt;
  const double before = PlanCost(job.model(), options, now);
  const double after = PlanCost(job.model(), options, plan->routes);
  const bool gains = after < before * (1 - kGainMin);
  const bool widens = rules_.choose_wire && Widens(now, plan->routes) &&
                      after < before * (1 + kWideningCostMax);
  if (!gains && !widens) return std::nullopt;
  const bool time = rules_.cost == CostKind::kTime;
  return BetterPlan{
      *std::move(plan),
      absl::StrFormat("%.4g %s with %d workers, %.4g with the old plan", after,
                      time ? "s an iteration" : "bytes a node and step",
                      workers, before)};
}

std::optional<Replanner::BetterFusion> Replanner::FindBetterFusion(
    const Job& job, int64_t bytes) const {
  if (!job.options.tune_fusion || !known_.has_value()) return std::nullopt;
  PlanOptions options = OptionsFor(job, job.worker_count(), HostsOf(job));
  const std::vector<Route> routes = RoutesOf(job);
  const int64_t best = FusionFor(job.model(), options, routes);
  const double after = PlanCost(job.model(), options, routes);
  options.rules.choose_fusion = false;
  options.rules.fusion_bytes = bytes;
  const double before = PlanCost(job.model(), options, routes);
  if (!(after < before * (1 - kGainMin))) return std::nullopt;
  return BetterFusion{best, absl::StrFormat("%.4g s an iteration predicted, "
                                            "%.4g s with %d bytes",
                                            after, before, bytes)};
}

std::optional<KnownTimes> Replanner::known(
    const Job& job, std::optional<int64_t> fusion_bytes) const {
  if (!known_.has_value()) return std::nullopt;
  PlanOptions options = OptionsFor(job, job.worker_count(), HostsOf(job));
  options.rules.choose_fusion = false;
  if (fusion_bytes.has_value()) options.rules.fusion_bytes = *fusion_bytes;
  return KnownTimes{
      *known_, absl::Seconds(PlanCost(job.model(), options, RoutesOf(job)))};
}

std::string Replanner::Describe(const KnownTimes& known) {
  const auto& [measured, predicted] = known;
  const std::string memory =
      measured.memory_rate.has_value()
          ? absl::StrFormat("; memory of %.4g bytes/s", *measured.memory_rate)
          : "";
  return absl::StrFormat(
      "workers have measured: links of %.4g bytes/s, latency %s, %s for each "
      "further frame%s; %s computing a step; %s an iteration, %s predicted",
      measured.link->rate, absl::FormatDuration(measured.link->latency),
      absl::FormatDuration(measured.link->message_time), memory,
      absl::FormatDuration(TotalTime(measured.times)),
      absl::FormatDuration(measured.step_time),
      absl::FormatDuration(predicted));
}

}  // namespace nereus
