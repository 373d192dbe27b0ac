#include "worker/gpu/push_stager.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/compute/bfloat16_cuda.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"
#include "common/device/pinned_pool.h"
#include "worker/gpu/device_gradient.h"

namespace nereus {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

int64_t BytesOf(const LayerSpec& spec) { return spec.parameters * kFloatBytes; }

// Arrival of values that are in pinned memory already: it never waits. Keeps
// that memory as long as the host client reads the values.
class FinishedArrival final : public Arrival {
 public:
  explicit FinishedArrival(Buffer memory) : memory_(std::move(memory)) {}
  bool IsThere(int64_t) override { return true; }
  absl::Status Await(int64_t) override { return absl::OkStatus(); }

 private:
  const Buffer memory_;
};

}  // namespace

PushStager::PushStager(Parts parts, TakePinned take_pinned)
    : parts_(parts),
      take_pinned_(std::move(take_pinned)),
      halves_(parts.layers->size()) {}

int64_t PushStager::PinnedBytesOf(const LayerSpec& spec) {
  const int64_t gradient = PinnedPool::RoundedUp(BytesOf(spec)) +
                           PinnedPool::RoundedUp(BytesOf(spec) / 2);
  if (!spec.may_send_factors()) return gradient;
  return std::max(gradient,
                  PinnedPool::RoundedUp(spec.rows * spec.m * kFloatBytes) +
                      PinnedPool::RoundedUp(spec.rows * spec.n * kFloatBytes));
}

int64_t PushStager::PinnedBytesOf(int layer) const {
  const LayerSpec& spec = (*parts_.layers)[layer].spec;
  const int64_t rows = *parts_.client->factor_rows(layer);
  if (rows > 0) {
    return PinnedPool::RoundedUp(rows * spec.m * kFloatBytes) +
           rows * spec.n * kFloatBytes;
  }
  const int64_t bytes = BytesOf(spec);
  return parts_.client->takes_bfloat16(layer)
             ? PinnedPool::RoundedUp(bytes) + bytes / 2
             : bytes;
}

std::string PushStager::NameOf(const GpuPush& push,
                               absl::string_view what) const {
  return absl::StrCat("layer ", SpecOf(push).name, ", ", what);
}

absl::StatusOr<PushStager::Staged> PushStager::Stage(const GpuPush& push) {
  if ((*parts_.layers)[push.layer].on_host) return StageHost(push);
  return push.factors.input.empty() ? StageGradient(push) : StageFactors(push);
}

absl::StatusOr<PushStager::Staged> PushStager::StageHost(const GpuPush& push) {
  NEREUS_TRY(parts_.stager->Await(NameOf(push, "gradient"), push.made));
  HostClient* const client = parts_.client;
  const int layer = push.layer;
  const int64_t step = push.step;
  return Staged{{}, [client, layer, step, gradient = push.gradient] {
                  return client->Push(layer, step, gradient);
                }};
}

absl::StatusOr<Buffer> PushStager::CopyHalves(const GpuPush& push,
                                              const Buffer& memory) {
  const std::string what = NameOf(push, "gradient");
  Stager* const stager = parts_.stager;
  DeviceMemory& rounded = halves_[push.layer];
  if (rounded.data() == nullptr) {
    rounded = NEREUS_TRY(
        DeviceMemory::Allocate(stager->device(), what, memory.bytes()));
  }
  NEREUS_TRY(stager->CheckPointer(what, push.gradient.data()));
  const DeviceScope scope(stager->device(), what);
  NEREUS_TRY(scope.status());
  NEREUS_TRY(CudaStatus(
      ToBfloat16Cuda(push.gradient.data(), SpecOf(push).parameters,
                     static_cast<uint16_t*>(rounded.data()), stager->out()),
      what, "ToBfloat16Cuda"));
  auto copy = NEREUS_TRY(
      stager->CopyOut(what, rounded.data(), memory, {}, stager->out()));
  return Buffer::Borrow(
      memory.data(), memory.bytes(), [memory] {}, std::move(copy));
}

absl::Status PushStager::CopyOut(const GpuPush& push, const Buffer& halves,
                                 DeviceGradient& gradient) {
  const std::string what = NameOf(push, "gradient");
  Stager* const stager = parts_.stager;
  NEREUS_TRY(stager->Follow(what, stager->out(), push.made));
  parts_.timeline->Begin(GpuSpan::Kind::kCopyOut, push.layer, push.step,
                         stager->out());
  Buffer copied = gradient.staged();
  if (halves.bytes() > 0) {
    copied = NEREUS_TRY(CopyHalves(push, halves));
    gradient.SetHalves(copied);
  } else {
    auto copy = NEREUS_TRY(
        stager->CopyOut(what, push.gradient.data(), copied, {}, stager->out()));
    copied = Buffer::Borrow(
        copied.data(), copied.bytes(), [copied] {}, copy);
    gradient.SetCopy(std::move(copy));
  }
  parts_.timeline->End(GpuSpan::Kind::kCopyOut, push.layer, push.step,
                       stager->out());
  // Waits for the first part here. Otherwise the driver thread would wait for
  // it, and do nothing else meanwhile. It sends each later part once its copy
  // has ended.
  return copied.Slice(0, std::min(copied.bytes(), Stager::kPieceBytes)).Await();
}

absl::StatusOr<PushStager::Staged> PushStager::StageGradient(
    const GpuPush& push) {
  const int layer = push.layer;
  const int64_t step = push.step;
  const std::string what = NameOf(push, "gradient");
  const int64_t bytes = BytesOf(SpecOf(push));
  HostClient* const client = parts_.client;
  const JobTraits& job = client->traits();
  // Asks once, because the plan can change while this thread waits for memory.
  const int64_t halves_bytes = client->takes_bfloat16(layer) ? bytes / 2 : 0;
  // Values and halves share one allocation: with two, a push would hold the
  // first while it waits for the second.
  const int64_t halves_at = halves_bytes > 0 ? PinnedPool::RoundedUp(bytes) : 0;
  const Buffer memory =
      NEREUS_TRY(take_pinned_(what, std::max(bytes, halves_at + halves_bytes)));
  const Buffer values = memory.Slice(0, bytes);
  auto gradient = std::make_shared<DeviceGradient>(
      what, parts_.stager,
      job.sparse || job.may_skip || push.by_factors ? parts_.look : nullptr,
      push.gradient.data(), values);
  if (job.sparse) {
    // Waits on this thread. If a stream waited instead, all later work on that
    // stream would wait, too.
    NEREUS_TRY(parts_.stager->Await(what, push.made));
    (*parts_.splitters)[layer]->Take(step, gradient);
  } else {
    NEREUS_TRY(CopyOut(push, memory.Slice(halves_at, halves_bytes), *gradient));
  }
  // The driver copies the gradient that it sends in place of factors. Waits
  // here, so that the driver need not wait.
  if (push.by_factors) NEREUS_TRY(gradient->Await(bytes));
  // The product of the other workers' factors is made in device memory.
  const absl::Span<float> mean =
      push.by_factors ? push.gradient : absl::Span<float>();
  return Staged{values, [client, layer, step, values, mean,
                         gradient = std::move(gradient)] {
                  return client->PushArriving(layer, step, FloatsOf(values),
                                              gradient, mean);
                }};
}

// Copies both factors completely before the host client gets them: they are
// small next to the gradient.
absl::StatusOr<PushStager::Staged> PushStager::StageFactors(
    const GpuPush& push) {
  const Factors& factors = push.factors;
  const int64_t output_bytes =
      std::ssize(factors.output_gradient) * kFloatBytes;
  const int64_t input_bytes = std::ssize(factors.input) * kFloatBytes;
  const int64_t input_at = PinnedPool::RoundedUp(output_bytes);
  const Buffer memory =
      NEREUS_TRY(take_pinned_(NameOf(push, "factors"), input_at + input_bytes));
  const Buffer output = memory.Slice(0, output_bytes);
  const Buffer input = memory.Slice(input_at, input_bytes);
  Stager* const stager = parts_.stager;
  const auto output_copy = NEREUS_TRY(stager->CopyOut(
      NameOf(push, "output gradient"), factors.output_gradient.data(), output,
      push.made, stager->out()));
  const auto input_copy =
      NEREUS_TRY(stager->CopyOut(NameOf(push, "input"), factors.input.data(),
                                 input, push.made, stager->out()));
  NEREUS_TRY(output_copy->Await(output_bytes));
  NEREUS_TRY(input_copy->Await(input_bytes));
  // The product stays in device memory: no code on the host reads or writes it.
  return Staged{{},
                [client = parts_.client, layer = push.layer, step = push.step,
                 output, input, memory, product = push.gradient] {
                  return client->PushArrivingFactors(
                      layer, step, {FloatsOf(output), FloatsOf(input)}, product,
                      std::make_shared<FinishedArrival>(memory));
                }};
}

}  // namespace nereus
