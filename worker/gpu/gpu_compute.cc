#include "worker/gpu/gpu_compute.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {
namespace {

constexpr char kMean[] = "mean gradient";
constexpr char kSamples[] = "samples";

}  // namespace

// Pins memory now, because pinning can wait for the whole GPU.
GpuCompute::GpuCompute(Parts parts) : parts_(std::move(parts)) {
  absl::StatusOr<Buffer> slab =
      parts_.pool->Take(kSamples, kSlabBytes, absl::ZeroDuration());
  if (slab.ok()) slab_ = *std::move(slab);
}

GpuCompute::~GpuCompute() { parts_.stager->Drain(); }

std::string GpuCompute::name() const {
  return parts_.products == nullptr ? "no-products" : parts_.products->name();
}

absl::StatusOr<BadValue> GpuCompute::Multiply(
    const MultiplyFactors& factors, absl::FunctionRef<void(int64_t)>) {
  NEREUS_TRY(parts_.products->Multiply(factors));
  if (factors.check.has_value()) {
    NEREUS_TRY(parts_.mirrors[factors.check->layer]->Look(
        factors.gradient.floats(), factors.gradient.float_count(),
        *factors.check));
  }
  return BadValue();
}

bool GpuCompute::SplitsOnDevice(int layer) const {
  return parts_.splitters[layer] != nullptr;
}

absl::Status GpuCompute::Split(const SplitGradient& split) {
  if (!SplitsOnDevice(split.layer)) return Compute::Split(split);
  norms_.push_back(split.norms);
  return parts_.splitters[split.layer]->Split(split);
}

// Waits for the splits of all layers if `values` overlap the norms of any
// split. All splits are queued on one stream, so this takes little longer than
// to wait for the last split alone.
absl::Status GpuCompute::AwaitNorms(const Buffer& values) {
  const auto overlaps = [&](const Buffer& norms) {
    return values.data() < norms.data() + norms.bytes() &&
           norms.data() < values.data() + values.bytes();
  };
  if (!absl::c_any_of(norms_, overlaps)) return absl::OkStatus();
  norms_.clear();
  for (const auto& splitter : parts_.splitters) {
    if (splitter != nullptr) NEREUS_TRY(splitter->Finish());
  }
  return absl::OkStatus();
}

absl::StatusOr<BadValue> GpuCompute::Update(const UpdateParameters& update) {
  GpuMirror& mirror = *parts_.mirrors[update.layer];
  if (mirror.is_on_host()) return Compute::Update(update);
  const float* const gradient = NEREUS_TRY(OnDevice(update.gradient));
  NEREUS_TRY(mirror.Update(update, gradient));
  return BadValue();
}

absl::StatusOr<Buffer> GpuCompute::Sample(int layer,
                                          const SampledElements& sampled) {
  const int64_t bytes = sampled.count() * static_cast<int64_t>(sizeof(float));
  if (slab_.bytes() < bytes) {
    slab_ = Buffer();
    slab_ = NEREUS_TRY(
        parts_.pool->Take(kSamples, kSlabBytes, absl::ZeroDuration()));
  }
  const Buffer place = slab_.Slice(0, bytes);
  slab_ = slab_.Slice(bytes, slab_.bytes() - bytes);
  return parts_.mirrors[layer]->Sample(sampled, place);
}

absl::StatusOr<const float*> GpuCompute::OnDevice(const Buffer& gradient) {
  Stager& stager = *parts_.stager;
  if (stager.IsOnDevice(gradient.data())) return gradient.floats();
  if (gradient.bytes() > gradient_.bytes()) {
    // Waits, because earlier updates may still read the memory that is freed.
    const Stager::Point done = NEREUS_TRY(stager.Mark(kMean, stager.in()));
    NEREUS_TRY(stager.Await(kMean, done));
    gradient_ = DeviceMemory();
    gradient_ = NEREUS_TRY(
        DeviceMemory::Allocate(stager.device(), kMean, gradient.bytes()));
  }
  auto* const memory = static_cast<float*>(gradient_.data());
  NEREUS_TRY(stager.CopyIn(kMean, gradient, memory, {}));
  return memory;
}

}  // namespace nereus
