#include "worker/gpu/push_stager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/device/pinned_pool.h"
#include "worker/gpu/device_gradient.h"
#include "worker/gpu/narrow_gradient.h"

namespace nereus {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

int64_t BytesOf(const LayerSpec& spec) { return spec.parameters * kFloatBytes; }

absl::Span<float> FloatsOf(const Buffer& values) {
  return {values.floats(), static_cast<size_t>(values.float_count())};
}

// Pinned memory that the client reads, and that is the pool's again after that.
class Kept final : public Arrival {
 public:
  explicit Kept(Buffer memory) : memory_(std::move(memory)) {}
  bool IsThere(int64_t) override { return true; }
  absl::Status Await(int64_t) override { return absl::OkStatus(); }

 private:
  const Buffer memory_;
};

// Whoever drives would do nothing else while it waits for the first piece: what
// comes after it, comes at the pace of copies.
int64_t FirstOf(const Buffer& copied) {
  return std::min(copied.bytes(), Stager::kPieceBytes);
}

}  // namespace

PushStager::PushStager(Parts parts, TakePinned take_pinned)
    : parts_(parts),
      take_pinned_(std::move(take_pinned)),
      halves_(parts.layers->size()) {}

int64_t PushStager::PinnedBytesOf(const LayerSpec& spec) {
  const int64_t gradient = PinnedPool::RoundedUp(BytesOf(spec)) +
                           PinnedPool::RoundedUp(BytesOf(spec) / 2);
  if (!spec.has_factors) return gradient;
  return std::max(gradient,
                  PinnedPool::RoundedUp(spec.rows * spec.m * kFloatBytes) +
                      PinnedPool::RoundedUp(spec.rows * spec.n * kFloatBytes));
}

std::string PushStager::NameOf(const GpuPush& push,
                               absl::string_view what) const {
  return absl::StrCat("layer ", SpecOf(push).name, ", ", what);
}

absl::StatusOr<PushStager::Staged> PushStager::Stage(const GpuPush& push) {
  if ((*parts_.layers)[push.layer].on_host) return StageHost(push);
  return push.factors.input == nullptr ? StageGradient(push)
                                       : StageFactors(push);
}

absl::StatusOr<PushStager::Staged> PushStager::StageHost(const GpuPush& push) {
  const LayerSpec& spec = SpecOf(push);
  NEREUS_RETURN_IF_ERROR(
      parts_.stager->Await(NameOf(push, "gradient"), push.made));
  const auto gradient =
      absl::MakeSpan(push.gradient, static_cast<size_t>(spec.parameters));
  const GpuFactors& given = push.factors;
  HostClient* const client = parts_.client;
  if (given.input == nullptr) {
    return Staged{{}, [client, layer = push.layer, step = push.step, gradient] {
                    return client->Push(layer, step, gradient);
                  }};
  }
  Factors factors;
  factors.output_gradient = absl::MakeConstSpan(
      given.output_gradient, static_cast<size_t>(spec.rows * spec.m));
  factors.input =
      absl::MakeConstSpan(given.input, static_cast<size_t>(spec.rows * spec.n));
  const auto mean =
      client->traits().updates_parameters ? gradient : absl::Span<float>();
  return Staged{{},
                [client, layer = push.layer, step = push.step, factors, mean] {
                  return client->PushFactors(layer, step, factors, mean);
                }};
}

absl::StatusOr<std::shared_ptr<Arrival>> PushStager::CopyNarrow(
    const GpuPush& push, const Buffer& memory) {
  const std::string what = NameOf(push, "gradient");
  const int64_t bytes = BytesOf(SpecOf(push));
  Stager* const stager = parts_.stager;
  DeviceMemory& rounded = halves_[push.layer];
  if (rounded.data() == nullptr) {
    NEREUS_ASSIGN_OR_RETURN(
        rounded, DeviceMemory::Allocate(stager->device(), what, bytes / 2));
  }
  return NarrowGradient::CopyOut(
      stager, what, push.gradient, static_cast<uint16_t*>(rounded.data()),
      memory.Slice(0, bytes),
      memory.Slice(PinnedPool::RoundedUp(bytes), bytes / 2));
}

absl::StatusOr<std::shared_ptr<Arrival>> PushStager::CopyOut(
    const GpuPush& push, bool is_narrow, const Buffer& memory) {
  const int64_t bytes = BytesOf(SpecOf(push));
  const Buffer values = memory.Slice(0, bytes);
  const std::string what = NameOf(push, "gradient");
  Stager* const stager = parts_.stager;
  NEREUS_RETURN_IF_ERROR(stager->Follow(what, stager->out(), push.made));
  parts_.timeline->Begin(GpuSpan::Kind::kCopyOut, push.layer, push.step,
                         stager->out());
  const auto end = [&] {
    parts_.timeline->End(GpuSpan::Kind::kCopyOut, push.layer, push.step,
                         stager->out());
  };
  if (is_narrow) {
    NEREUS_ASSIGN_OR_RETURN(std::shared_ptr<Arrival> narrow,
                            CopyNarrow(push, memory));
    end();
    const Buffer& copied = *narrow->bfloat16();
    NEREUS_RETURN_IF_ERROR(copied.Slice(0, FirstOf(copied)).Await());
    return narrow;
  }
  NEREUS_ASSIGN_OR_RETURN(
      std::shared_ptr<Stager::Outgoing> wide,
      stager->CopyOut(what, push.gradient, values, {}, stager->out()));
  end();
  NEREUS_RETURN_IF_ERROR(wide->Await(FirstOf(values)));
  if (!parts_.client->traits().may_skip) return wide;
  auto looked_through = std::make_shared<DeviceGradient>(what, parts_.look,
                                                         push.gradient, values);
  looked_through->SetCopy(std::move(wide));
  return looked_through;
}

absl::StatusOr<PushStager::Staged> PushStager::StageGradient(
    const GpuPush& push) {
  const int layer = push.layer;
  const int64_t step = push.step;
  const std::string what = NameOf(push, "gradient");
  const int64_t bytes = BytesOf(SpecOf(push));
  HostClient* const client = parts_.client;
  // Asked once: it may be another plan by the time that there is memory.
  const bool is_narrow = client->takes_bfloat16(layer);
  const int64_t narrow =
      is_narrow ? PinnedPool::RoundedUp(bytes) - bytes + bytes / 2 : 0;
  // In one piece: two would wait for each other.
  NEREUS_ASSIGN_OR_RETURN(const Buffer memory,
                          take_pinned_(what, bytes + narrow));
  const Buffer values = memory.Slice(0, bytes);
  std::shared_ptr<Arrival> arrival;
  if (client->traits().sparse) {
    // Not by a stream: what others queue there would wait, too.
    NEREUS_RETURN_IF_ERROR(parts_.stager->Await(what, push.made));
    auto gradient = std::make_shared<DeviceGradient>(what, parts_.look,
                                                     push.gradient, values);
    (*parts_.splitters)[layer]->Take(step, gradient);
    arrival = std::move(gradient);
  } else {
    NEREUS_ASSIGN_OR_RETURN(arrival, CopyOut(push, is_narrow, memory));
  }
  return Staged{
      values, [client, layer, step, values, arrival = std::move(arrival)] {
        return client->PushArriving(layer, step, FloatsOf(values), arrival);
      }};
}

absl::StatusOr<PushStager::Staged> PushStager::StageFactors(
    const GpuPush& push) {
  const LayerSpec& spec = SpecOf(push);
  const int64_t output_bytes = spec.rows * spec.m * kFloatBytes;
  const int64_t input_bytes = spec.rows * spec.n * kFloatBytes;
  const int64_t input_at = PinnedPool::RoundedUp(output_bytes);
  NEREUS_ASSIGN_OR_RETURN(
      const Buffer memory,
      take_pinned_(NameOf(push, "factors"), input_at + input_bytes));
  const Buffer output = memory.Slice(0, output_bytes);
  const Buffer input = memory.Slice(input_at, input_bytes);
  Stager* const stager = parts_.stager;
  NEREUS_ASSIGN_OR_RETURN(const auto output_copy,
                          stager->CopyOut(NameOf(push, "output gradient"),
                                          push.factors.output_gradient, output,
                                          push.made, stager->out()));
  NEREUS_ASSIGN_OR_RETURN(
      const auto input_copy,
      stager->CopyOut(NameOf(push, "input"), push.factors.input, input,
                      push.made, stager->out()));
  NEREUS_RETURN_IF_ERROR(output_copy->Await(output_bytes));
  NEREUS_RETURN_IF_ERROR(input_copy->Await(input_bytes));
  HostClient* const client = parts_.client;
  // Where it is, nobody but DeviceFactors has to do with the mean gradient.
  absl::Span<float> mean;
  if (client->traits().updates_parameters) {
    mean = absl::MakeSpan(push.gradient, static_cast<size_t>(spec.parameters));
  }
  return Staged{{},
                [client, layer = push.layer, step = push.step, output, input,
                 memory, mean] {
                  return client->PushArrivingFactors(
                      layer, step, {FloatsOf(output), FloatsOf(input)}, mean,
                      std::make_shared<Kept>(memory));
                }};
}

}  // namespace nereus
