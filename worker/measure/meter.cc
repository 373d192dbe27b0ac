#include "worker/measure/meter.h"

#include <unistd.h>

#include <algorithm>

#include "common/base/clock.h"

namespace nereus {
namespace {

// Time between two reports to the coordinator.
constexpr absl::Duration kReportInterval = absl::Seconds(5);
// Largest rate of a memory that is reported, in bytes per second. No machine
// comes near it; a measurement that is disturbed may.
constexpr double kMemoryRateMax = 1e12;

}  // namespace

Meter::Meter(absl::Span<const LayerSpec> layers) : steps_(layers) {}

void Meter::OnBegin(int64_t step, absl::Time from) {
  MutexLock lock(&mu_);
  const absl::Time now = SteadyNow();
  steps_.OnBegin(now);
  phases_.OnBegin(step, from, now);
}

void Meter::OnPush(int layer) {
  MutexLock lock(&mu_);
  const absl::Time now = SteadyNow();
  steps_.OnPush(layer, now);
  phases_.OnPush(layer, now);
}

void Meter::OnWait(int layer, absl::Time from) {
  MutexLock lock(&mu_);
  const absl::Time now = SteadyNow();
  steps_.OnWait(layer, from, now);
  phases_.OnWait(layer, from, now);
}

void Meter::OnTurn(absl::Time from) {
  MutexLock lock(&mu_);
  const absl::Time now = SteadyNow();
  steps_.OnTurn(from, now);
  phases_.OnTurn(from, now);
}

void Meter::OnOtherWait(absl::Time from) {
  MutexLock lock(&mu_);
  phases_.OnWait(/*layer=*/-1, from, SteadyNow());
}

Activity Meter::phases() const {
  MutexLock lock(&mu_);
  return phases_.sums();
}

TimeHistogram Meter::step_times() const {
  MutexLock lock(&mu_);
  return phases_.steps();
}

void Meter::OnEpoch(const ProbePlan& plan) {
  MutexLock lock(&mu_);
  if (plan.probed != plan_.probed || plan.target != plan_.target) {
    // The mate of a memory probe computes at the same time.
    probe_ = plan.probed == Probed::kMemory ? LinkProbe(LinkProbe::kKept)
                                            : LinkProbe();
  }
  plan_ = plan;
}

std::optional<LinkProbe::Train> Meter::NextTrain() {
  MutexLock lock(&mu_);
  if (plan_.probed == Probed::kNothing) return std::nullopt;
  return probe_.Next(SteadyNow());
}

void Meter::OnAnswer(int64_t train) {
  MutexLock lock(&mu_);
  probe_.OnAnswer(train, SteadyNow());
}

std::optional<Measurements> Meter::TakeDue() {
  // The worker that probes the link needs results of both StepTimes and
  // LinkProbe, because the planner uses compute times and link together.
  const absl::Time now = SteadyNow();
  MutexLock lock(&mu_);
  const std::optional<LinkSpeed> speed = probe_.speed();
  const bool lacks_speed = plan_.probed == Probed::kLink && !speed.has_value();
  if (lacks_speed || !steps_.enough() || now - reported_at_ < kReportInterval) {
    return std::nullopt;
  }
  reported_at_ = now;
  last_ = Measurements{steps_.times(), steps_.step_time(), std::nullopt,
                       std::nullopt, steps_.waits_in_forward()};
  if (plan_.probed == Probed::kLink) {
    last_->link = speed;
  } else if (plan_.probed == Probed::kMemory && speed.has_value()) {
    const auto cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    last_->memory_rate =
        MemoryRateOf(*probe_.throughput(), plan_.local_workers, cores);
  }
  return last_;
}

std::optional<Measurements> Meter::last() const {
  MutexLock lock(&mu_);
  return last_;
}

double MemoryRateOf(double one_transfer, int local_workers, int cores) {
  return std::min(std::clamp(cores / 2, 1, local_workers) * one_transfer,
                  kMemoryRateMax);
}

}  // namespace nereus
