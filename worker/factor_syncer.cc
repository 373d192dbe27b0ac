#include "worker/factor_syncer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace nereus {
namespace {

constexpr uint8_t kMatrices[] = {kOutputGradientMatrix, kInputMatrix};

int64_t BytesOf(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float));
}

absl::Status Refuse(const FrameHeader& header, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(DescribeFrame(header), ": ", why));
}

}  // namespace

FactorSyncer::FactorSyncer(JobPtr job, int layer, int rank, LayerMemory memory)
    : Syncer(std::move(job), layer, rank, std::move(memory)) {
  for (const uint8_t matrix : kMatrices) {
    frames_per_worker_ += FrameCount(MatrixElements(matrix));
  }
  for (int64_t ahead = 0; ahead < 2; ++ahead) {
    const int64_t round = next_round() + ahead;
    Reserve(StackOf(round), job_->worker_count());
    Open(StackOf(round), round);
  }
  if (updates_here()) {
    const int count = OptimizerStateCount(job_->options.optimizer.rule);
    state_ = Buffer::AllocateLike(memory_.parameters,
                                  BytesOf(count * spec().parameters));
  }
}

Buffer FactorSyncer::state() const {
  return updates_here() ? state_ : memory_.state;
}

void FactorSyncer::Reserve(Stack& stack, int workers) const {
  for (const uint8_t matrix : kMatrices) {
    const int64_t bytes = BytesOf(workers * MatrixElements(matrix));
    Buffer& values = stack.matrices[matrix];
    // Memory that somebody reads yet is left to him.
    if (values.bytes() >= bytes && values.unique()) continue;
    values = Buffer::AllocateLike(memory_.parameters, bytes);
  }
}

void FactorSyncer::Open(Stack& stack, int64_t round) const {
  stack.round = round;
  stack.contributors = job_->ContributorsOf(round);
  stack.arrived.assign(stack.contributors * frames_per_worker_, false);
  stack.missing = (stack.contributors - 1) * frames_per_worker_;
  for (int64_t frame = 0; frame < frames_per_worker_; ++frame) {
    stack.arrived[position() * frames_per_worker_ + frame] = true;
  }
}

void FactorSyncer::EnterEpoch(Outbox& out) {
  holder_.reset();
  served_.assign(job_->workers.size(), false);
  KeepFinished();
  if (position() < 0) return;
  for (int64_t ahead = 0; ahead < 2; ++ahead) {
    const int64_t round = next_round() + ahead;
    Reserve(StackOf(round), job_->worker_count());
    Open(StackOf(round), round);
  }
  if (fetching()) return;
  for (const FinishedRound& finished : job_->finished_rounds) {
    if (finished.layer != layer_ || finished.round != next_round()) continue;
    Recover(finished, out);
    return;
  }
  if (own_.has_value()) CopyOwn(out);
}

void FactorSyncer::KeepFinished() {
  if (fetching() || contributors() == 0) return;
  // Another epoch without progress: the stack has been opened for a later round
  // since.
  if (finished_.contributors > 0 && finished_.round == done_round()) return;
  finished_ = StackOf(done_round());
  finished_.round = done_round();
  finished_.contributors = contributors();
}

void FactorSyncer::Recover(const FinishedRound& finished, Outbox& out) {
  holder_ = PeerId::Worker(finished.holder);
  Stack& stack = StackOf(finished.round);
  Reserve(stack, finished.contributors);
  stack.contributors = finished.contributors;
  stack.missing = stack.contributors * frames_per_worker_;
  stack.arrived.assign(stack.missing, false);
  out.Add(SendFrame{*holder_,
                    {Header(FrameKind::kPullFactors, 0, finished.round), {}}});
}

int64_t FactorSyncer::MatrixElements(uint8_t matrix) const {
  return spec().rows * (matrix == kOutputGradientMatrix ? spec().m : spec().n);
}

Buffer FactorSyncer::Place(const Stack& stack, int position,
                           uint8_t matrix) const {
  const int64_t bytes = BytesOf(MatrixElements(matrix));
  return stack.matrices[matrix].Slice(position * bytes, bytes);
}

int64_t FactorSyncer::Index(int position, uint8_t matrix, int64_t frame) const {
  const int64_t before = matrix == kInputMatrix
                             ? FrameCount(MatrixElements(kOutputGradientMatrix))
                             : 0;
  return position * frames_per_worker_ + before + frame;
}

absl::Status FactorSyncer::Keep(Buffer) {
  return absl::FailedPreconditionError(absl::StrCat(
      "layer ", spec().name, " goes by factors: push them with PushFactors"));
}

void FactorSyncer::KeepFactors(FactorBuffers factors, Outbox& out) {
  own_ = std::move(factors);
  CopyOwn(out);
}

void FactorSyncer::CopyOwn(Outbox& out) {
  const Stack& stack = StackOf(next_round());
  const Buffer* const given[] = {&own_->output_gradient, &own_->input};
  for (const uint8_t matrix : kMatrices) {
    out.Add(CopyValues{Place(stack, position(), matrix), *given[matrix]});
  }
}

void FactorSyncer::Contribute(Outbox& out) {
  if (holder_.has_value()) return;  // This worker's factors are in already.
  const Stack& stack = StackOf(next_round());
  for (const uint8_t matrix : kMatrices) {
    FrameHeader header = Header(FrameKind::kFactors, position(), stack.round);
    header.part = matrix;
    CutIntoFrames(header, Place(stack, position(), matrix), [&](Frame frame) {
      out.Add(BroadcastFrame{std::move(frame)});
    });
  }
  FinishIfComplete(out);
}

absl::StatusOr<Landing> FactorSyncer::OnHeader(
    const FrameHeader& header) const {
  if (header.kind == FrameKind::kFactors) return OnFactorsHeader(header);
  if (header.kind == FrameKind::kPullFactors) {
    return OnPullFactorsHeader(header);
  }
  return Syncer::OnHeader(header);
}

absl::Status FactorSyncer::CheckContributor(const FrameHeader& header,
                                            const Stack& stack) const {
  const bool recovering = holder_.has_value() && header.round == next_round();
  const bool right = recovering ? header.sender == *holder_
                                : job_->PositionOf(header.sender.rank) ==
                                      static_cast<int64_t>(header.chunk);
  if (right && header.chunk < static_cast<uint32_t>(stack.contributors)) {
    return absl::OkStatus();
  }
  return Refuse(header, absl::StrCat("the round has ", stack.contributors,
                                     " contributors, and each sends its own "
                                     "factors, in the place of its position"));
}

absl::StatusOr<Landing> FactorSyncer::OnFactorsHeader(
    const FrameHeader& header) const {
  if (header.part > kInputMatrix) {
    return Refuse(header, "there are two factors, 0 and 1");
  }
  if (position() < 0) return Refuse(header, "this worker has left");
  const int64_t next = next_round();
  if (header.round < 0 || header.round > next + 1) {
    return Refuse(
        header, absl::StrCat("rounds ", next, " and ", next + 1, " are open"));
  }
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame,
                          FrameIndex(header, MatrixElements(header.part)));
  if (header.round < next) return Landing::Discard();
  const Stack& stack = StackOf(header.round);
  NEREUS_RETURN_IF_ERROR(CheckContributor(header, stack));
  const int position = static_cast<int>(header.chunk);
  if (stack.arrived[Index(position, header.part, frame)]) {
    return Landing::Discard();
  }
  const Buffer place = Place(stack, position, header.part);
  return Landing::At(place.Slice(BytesOf(header.offset), header.payload_bytes));
}

bool FactorSyncer::Holds(int64_t round) const {
  return std::any_of(job_->finished_rounds.begin(), job_->finished_rounds.end(),
                     [&](const FinishedRound& finished) {
                       return finished.layer == layer_ &&
                              finished.round == round &&
                              finished.holder == rank_;
                     });
}

absl::StatusOr<Landing> FactorSyncer::OnPullFactorsHeader(
    const FrameHeader& header) const {
  const int asking = job_->PositionOf(header.sender.rank);
  if (asking < 0 || header.payload_bytes != 0 || header.offset != 0 ||
      header.round != finished_.round || !Holds(header.round)) {
    return Refuse(header, "this worker does not hold that round for others");
  }
  return served_[asking] ? Landing::Discard() : Landing::Scratch();
}

void FactorSyncer::SendStack(PeerId to, Outbox& out) const {
  for (int position = 0; position < finished_.contributors; ++position) {
    for (const uint8_t matrix : kMatrices) {
      FrameHeader header =
          Header(FrameKind::kFactors, position, finished_.round);
      header.part = matrix;
      CutIntoFrames(header, Place(finished_, position, matrix),
                    [&](Frame frame) {
                      out.Add(SendFrame{to, std::move(frame)});
                    });
    }
  }
}

void FactorSyncer::OnFrame(const FrameHeader& header, Outbox& out) {
  if (header.kind == FrameKind::kPullFactors) {
    served_[job_->PositionOf(header.sender.rank)] = true;
    SendStack(header.sender, out);
    return;
  }
  if (header.kind != FrameKind::kFactors) {
    Syncer::OnFrame(header, out);
    return;
  }
  Stack& stack = StackOf(header.round);
  const int64_t frame = header.offset / kFrameElementsMax;
  stack.arrived[Index(static_cast<int>(header.chunk), header.part, frame)] =
      true;
  --stack.missing;
  if (!fetching() && header.round == next_round()) FinishIfComplete(out);
}

void FactorSyncer::FinishIfComplete(Outbox& out) {
  Stack& stack = StackOf(next_round());
  if (!own_.has_value() || stack.missing > 0) return;
  const std::optional<bool> skipped = Skipped(stack.round);
  if (!skipped.has_value()) return;
  if (!*skipped) Update(stack, out);
  const int contributors = stack.contributors;
  holder_.reset();
  // Its memory stays as it is until factors of the round after the next come.
  Open(stack, stack.round + 2);
  Done(contributors, out);
}

void FactorSyncer::Update(const Stack& stack, Outbox& out) {
  Buffer gradient = own_->gradient;
  if (gradient.bytes() == 0) {
    if (product_.bytes() == 0) {
      product_ =
          Buffer::AllocateLike(memory_.parameters, BytesOf(spec().parameters));
    }
    gradient = product_;
  }
  const auto rows = [&](uint8_t matrix) {
    return stack.matrices[matrix].Slice(
        0, BytesOf(stack.contributors * MatrixElements(matrix)));
  };
  out.Add(MultiplyFactors{
      stack.contributors * spec().rows, spec().m, spec().n, has_bias(),
      1.0f / static_cast<float>(stack.contributors),
      rows(kOutputGradientMatrix), rows(kInputMatrix), gradient});
  if (updates_here()) {
    out.Add(UpdateParameters{job_->options.optimizer, stack.round,
                             /*gradient_scale=*/1.0f, std::move(gradient),
                             memory_.parameters, state_, memory_.parameters});
  }
}

std::string FactorSyncer::Missing() const {
  if (results_.open()) return Syncer::Missing();
  if (holder_.has_value()) return PeerName(*holder_);
  if (position() < 0) return "";  // It has left.
  const Stack& stack = StackOf(next_round());
  std::vector<std::string> peers;
  for (int position = 0; position < stack.contributors; ++position) {
    const auto first = stack.arrived.begin() + position * frames_per_worker_;
    if (std::find(first, first + frames_per_worker_, false) !=
        first + frames_per_worker_) {
      peers.push_back(PeerName(PeerId::Worker(job_->workers[position].rank)));
    }
  }
  return absl::StrJoin(peers, ", ");
}

}  // namespace nereus
