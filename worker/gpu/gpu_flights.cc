#include "worker/gpu/gpu_flights.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace nereus {

void GpuFlights::Stop() {
  MutexLock lock(&mu_);
  is_stopped_ = true;
}

bool GpuFlights::is_stopped() const {
  MutexLock lock(&mu_);
  return is_stopped_;
}

void GpuFlights::Reset() {
  MutexLock lock(&mu_);
  // If a round from before is still reported as done, TakeOutcome finds another
  // step and returns nothing.
  for (Flight& flight : flights_) flight = Flight();
  is_leaving_ = false;
}

void GpuFlights::SetLeaving() {
  MutexLock lock(&mu_);
  is_leaving_ = true;
}

bool GpuFlights::is_leaving() const {
  MutexLock lock(&mu_);
  return is_leaving_;
}

int64_t GpuFlights::LastStep(int layer) const {
  MutexLock lock(&mu_);
  return flights_[layer].step;
}

bool GpuFlights::HasAll(int64_t step) const {
  MutexLock lock(&mu_);
  return absl::c_all_of(
      flights_, [&](const Flight& flight) { return flight.step >= step; });
}

bool GpuFlights::IsOpen(int layer) const {
  MutexLock lock(&mu_);
  const Flight& flight = flights_[layer];
  return flight.step >= 0 && !flight.is_done && flight.failure.ok();
}

void GpuFlights::Add(GpuPush push) {
  MutexLock lock(&mu_);
  is_leaving_ = false;
  Flight& flight = flights_[push.layer];
  flight = Flight();
  flight.step = push.step;
  flight.gradient = push.gradient.data();
  flight.by_factors = push.by_factors;
  queue_.push_back(std::move(push));
}

std::optional<GpuPush> GpuFlights::Next() {
  MutexLock lock(&mu_);
  // The push that this thread took before is staged.
  is_staging_ = false;
  mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return is_stopped_ || !queue_.empty();
  });
  if (is_stopped_) return std::nullopt;
  GpuPush push = std::move(queue_.front());
  queue_.pop_front();
  is_staging_ = true;
  return push;
}

absl::Status GpuFlights::AwaitStaged(absl::Time until) {
  MutexLock lock(&mu_);
  const bool in_time =
      mu_.AwaitWithTimeout([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                               mu_) { return queue_.empty() && !is_staging_; },
                           until - SteadyNow());
  if (in_time) return absl::OkStatus();
  return DeadlineExceededError(
      "gradients of the last step are not copied from the GPU yet");
}

void GpuFlights::SetValues(int layer, Buffer values) {
  MutexLock lock(&mu_);
  flights_[layer].values = std::move(values);
}

void GpuFlights::SetHandedOn(int layer, absl::Status status) {
  MutexLock lock(&mu_);
  flights_[layer].failure = std::move(status);
  flights_[layer].is_handed_on = true;
}

absl::Status GpuFlights::AwaitHandedOn(int layer, int64_t step,
                                       absl::Time until) {
  MutexLock lock(&mu_);
  const Flight& flight = flights_[layer];
  if (flight.step != step) return absl::OkStatus();
  const bool in_time = mu_.AwaitWithTimeout(
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        // Another push of the layer can replace this one during the wait.
        return flight.is_handed_on || flight.step != step || is_stopped_;
      },
      until - SteadyNow());
  if (!in_time) {
    return DeadlineExceededError("layer ", layer, ": the gradient of step ",
                                 step, " is not copied from the GPU yet");
  }
  return flight.step == step ? flight.failure : absl::OkStatus();
}

bool GpuFlights::TakeUnhurried(int layer) {
  MutexLock lock(&mu_);
  Flight& flight = flights_[layer];
  const bool is_held =
      flight.is_handed_on && flight.failure.ok() && !flight.is_done;
  return is_held && !std::exchange(flight.is_hurried, true);
}

std::optional<GpuFlights::Outcome> GpuFlights::LookAt(int layer,
                                                      int64_t step) const {
  MutexLock lock(&mu_);
  const Flight& flight = flights_[layer];
  if (flight.step != step) return std::nullopt;
  return Outcome{flight.values, flight.gradient, flight.by_factors,
                 flight.landed_count};
}

void GpuFlights::NoteLanded(int layer, int64_t count) {
  MutexLock lock(&mu_);
  flights_[layer].landed_count += count;
}

std::optional<GpuFlights::Outcome> GpuFlights::TakeOutcome(int layer,
                                                           int64_t step) {
  std::optional<Outcome> outcome = LookAt(layer, step);
  MutexLock lock(&mu_);
  // Drops the reference here, so that the memory goes back to its pool as soon
  // as its copy to the GPU is done.
  if (outcome.has_value()) flights_[layer].values = Buffer();
  return outcome;
}

void GpuFlights::SetLanded(int layer, absl::StatusOr<Stager::Point> landed) {
  MutexLock lock(&mu_);
  flights_[layer].is_done = true;
  flights_[layer].landed = std::move(landed);
}

absl::Status GpuFlights::Follow(int layer, int64_t step, const Stager& stager,
                                absl::string_view what, cudaStream_t stream) {
  MutexLock lock(&mu_);
  const Flight& flight = flights_[layer];
  if (flight.step != step) return absl::OkStatus();
  NEREUS_TRY(flight.landed.status());
  return stager.Follow(what, stream, *flight.landed);
}

}  // namespace nereus
