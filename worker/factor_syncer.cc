#include "worker/factor_syncer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace nereus {
namespace {

constexpr uint32_t kMatrices[] = {kOutputGradientMatrix, kInputMatrix};

Buffer AllocateLike(const Buffer& model, int64_t elements) {
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
  return model.data() == nullptr ? Buffer::SizeOnly(bytes)
                                 : Buffer::AllocateZeroed(bytes);
}

}  // namespace

FactorSyncer::FactorSyncer(JobPtr job, int layer, int rank, Buffer parameters)
    : Syncer(std::move(job), layer, rank, std::move(parameters)) {
  for (uint32_t matrix : kMatrices) {
    frames_per_worker_ += FrameCount(MatrixElements(matrix));
  }
  for (Stack& stack : stacks_) {
    for (uint32_t matrix : kMatrices) {
      stack.matrices[matrix] =
          AllocateLike(parameters_, job_->workers * MatrixElements(matrix));
    }
    Reset(stack);
  }
  if (updates_here()) {
    const int count = OptimizerStateCount(job_->options.optimizer.rule);
    state_ = AllocateLike(parameters_, count * spec().parameters);
  }
}

void FactorSyncer::Reset(Stack& stack) const {
  stack.arrived.assign(job_->workers * frames_per_worker_, false);
  for (int64_t frame = 0; frame < frames_per_worker_; ++frame) {
    stack.arrived[rank_ * frames_per_worker_ + frame] = true;
  }
  stack.missing = (job_->workers - 1) * frames_per_worker_;
  stack.own = false;
}

int64_t FactorSyncer::MatrixElements(uint32_t matrix) const {
  return spec().rows * (matrix == kOutputGradientMatrix ? spec().m : spec().n);
}

Buffer FactorSyncer::Place(const Stack& stack, int worker,
                           uint32_t matrix) const {
  const int64_t bytes =
      MatrixElements(matrix) * static_cast<int64_t>(sizeof(float));
  return stack.matrices[matrix].Slice(worker * bytes, bytes);
}

int64_t FactorSyncer::Position(int worker, uint32_t matrix,
                               int64_t frame) const {
  const int64_t before = matrix == kInputMatrix
                             ? FrameCount(MatrixElements(kOutputGradientMatrix))
                             : 0;
  return worker * frames_per_worker_ + before + frame;
}

absl::Status FactorSyncer::DoPush(int64_t, Buffer, Outbox&) {
  return absl::FailedPreconditionError(absl::StrCat(
      "layer ", spec().name, " goes by factors: push them with PushFactors"));
}

void FactorSyncer::DoPushFactors(int64_t round, FactorBuffers factors,
                                 Outbox& out) {
  Stack& stack = StackOf(round);
  stack.own = true;
  const Buffer* const given[] = {&factors.output_gradient, &factors.input};
  for (uint32_t matrix : kMatrices) {
    const Buffer own = Place(stack, rank_, matrix);
    out.Add(CopyValues{own, *given[matrix]});
    CutIntoFrames(
        Header(FrameKind::kFactors, matrix, round), own,
        [&](Frame frame) { out.Add(BroadcastFrame{std::move(frame)}); });
  }
  gradient_ = std::move(factors.gradient);
  FinishIfComplete(out);
}

absl::StatusOr<Landing> FactorSyncer::OnHeader(
    const FrameHeader& header) const {
  if (header.kind != FrameKind::kFactors) return Syncer::OnHeader(header);
  if (header.chunk > kInputMatrix) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header), ": there are two factors, 0 and 1"));
  }
  if (header.round < 0 || header.round > round_ + 1) {
    return absl::InvalidArgumentError(absl::StrCat(DescribeFrame(header),
                                                   ": rounds ", round_, " and ",
                                                   round_ + 1, " are open"));
  }
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame,
                          FrameIndex(header, MatrixElements(header.chunk)));
  const Stack& stack = StackOf(header.round);
  const int worker = header.sender.rank;
  if (header.round < round_ ||
      stack.arrived[Position(worker, header.chunk, frame)]) {
    return Landing::Discard();
  }
  const Buffer place = Place(stack, worker, header.chunk);
  return Landing::At(
      place.Slice(int64_t{header.offset} * 4, header.payload_bytes));
}

void FactorSyncer::OnFrame(const FrameHeader& header, Outbox& out) {
  if (header.kind != FrameKind::kFactors) {
    Syncer::OnFrame(header, out);
    return;
  }
  Stack& stack = StackOf(header.round);
  const int64_t frame = header.offset / kFrameElementsMax;
  stack.arrived[Position(header.sender.rank, header.chunk, frame)] = true;
  --stack.missing;
  if (header.round == round_) FinishIfComplete(out);
}

void FactorSyncer::FinishIfComplete(Outbox& out) {
  Stack& stack = StackOf(round_);
  if (!stack.own || stack.missing > 0) return;
  Buffer gradient = std::exchange(gradient_, Buffer());
  if (gradient.bytes() == 0) {
    if (product_.bytes() == 0) {
      product_ = AllocateLike(parameters_, spec().parameters);
    }
    gradient = product_;
  }
  out.Add(MultiplyFactors{job_->workers * spec().rows, spec().m, spec().n,
                          has_bias(), job_->mean_scale(),
                          stack.matrices[kOutputGradientMatrix],
                          stack.matrices[kInputMatrix], gradient});
  if (updates_here()) {
    out.Add(UpdateParameters{job_->options.optimizer, round_,
                             /*gradient_scale=*/1.0f, std::move(gradient),
                             parameters_, state_, parameters_});
  }
  Reset(stack);
  Done(round_++, out);
}

std::string FactorSyncer::Missing() const {
  if (results_.open()) return Syncer::Missing();
  const Stack& stack = StackOf(round_);
  std::vector<std::string> peers;
  for (int worker = 0; worker < job_->workers; ++worker) {
    for (int64_t frame = 0; frame < frames_per_worker_; ++frame) {
      if (stack.arrived[worker * frames_per_worker_ + frame]) continue;
      peers.push_back(PeerName(PeerId::Worker(worker)));
      break;
    }
  }
  return absl::StrJoin(peers, ", ");
}

}  // namespace nereus
