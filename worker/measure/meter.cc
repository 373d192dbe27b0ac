#include "worker/measure/meter.h"

#include "common/base/clock.h"

namespace nereus {
namespace {

// Time between two reports to the coordinator.
constexpr absl::Duration kReportInterval = absl::Seconds(5);

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

void Meter::OnOtherWait(absl::Time from) {
  MutexLock lock(&mu_);
  phases_.OnWait(/*layer=*/-1, from, SteadyNow());
}

Activity Meter::phases() const {
  MutexLock lock(&mu_);
  return phases_.sums();
}

std::optional<LinkProbe::Train> Meter::NextTrain() {
  MutexLock lock(&mu_);
  return link_.Next(SteadyNow());
}

void Meter::OnAnswer(int64_t train) {
  MutexLock lock(&mu_);
  link_.OnAnswer(train, SteadyNow());
}

std::optional<Measurements> Meter::TakeDue() {
  // StepTimes and LinkProbe must both have a result, because the planner uses
  // compute times and link together.
  const absl::Time now = SteadyNow();
  MutexLock lock(&mu_);
  const std::optional<LinkSpeed> speed = link_.speed();
  if (!speed.has_value() || !steps_.enough() ||
      now - reported_at_ < kReportInterval) {
    return std::nullopt;
  }
  reported_at_ = now;
  last_ = Measurements{steps_.times(), steps_.step_time(), *speed};
  return last_;
}

std::optional<Measurements> Meter::last() const {
  MutexLock lock(&mu_);
  return last_;
}

std::vector<int32_t> ShardsToProbe(const EpochStart& start,
                                   const std::string& own) {
  std::vector<int32_t> near;
  std::vector<int32_t> far;
  for (const EpochMember& each : start.epoch_members) {
    if (each.id.role != Role::kShard) continue;
    const size_t host_bytes = each.data_address.rfind(':');
    // Compares the hosts of both addresses, without the ports.
    const bool here =
        own.compare(0, own.rfind(':'), each.data_address, 0, host_bytes) == 0;
    (here ? near : far).push_back(each.id.rank);
  }
  return far.empty() ? near : far;
}

}  // namespace nereus
