#include "worker/machine/factor_syncer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace nereus {
namespace {

constexpr uint8_t kMatrices[] = {kOutputGradientMatrix, kInputMatrix};

int64_t BytesOf(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float));
}

}  // namespace

FactorSyncer::FactorSyncer(JobPtr job, int layer, int rank, LayerMemory memory)
    : PeerSyncer(std::move(job), layer, rank, std::move(memory)) {
  for (const uint8_t matrix : kMatrices) {
    frames_per_worker_ += FrameCount(MatrixElements(matrix));
  }
  OpenFirstRounds();
}

int64_t FactorSyncer::MatrixElements(uint8_t matrix) const {
  return spec().rows * (matrix == kOutputGradientMatrix ? spec().m : spec().n);
}

std::vector<int64_t> FactorSyncer::MemoryElements(int contributors) const {
  std::vector<int64_t> elements;
  for (const uint8_t matrix : kMatrices) {
    elements.push_back(contributors * MatrixElements(matrix));
  }
  return elements;
}

Buffer FactorSyncer::Rows(const Round& round, int position,
                          uint8_t matrix) const {
  const int64_t bytes = BytesOf(MatrixElements(matrix));
  return round.memory[matrix].Slice(position * bytes, bytes);
}

void FactorSyncer::Begin(Round& round) {
  // Its own factors are copied there before they are sent.
  for (int64_t frame = 0; frame < frames_per_worker_; ++frame) {
    round.arrived[position() * frames_per_worker_ + frame] = true;
  }
  round.missing -= frames_per_worker_;
}

absl::Status FactorSyncer::Keep(Buffer) {
  return absl::FailedPreconditionError(absl::StrCat(
      "layer ", spec().name, " goes by factors: push them with PushFactors"));
}

void FactorSyncer::KeepFactors(FactorBuffers factors, Outbox& out) {
  own_ = std::move(factors);
  PlaceOwn(out);
}

void FactorSyncer::PlaceOwn(Outbox& out) {
  const Round& round = RoundAt(next_round());
  const Buffer* const given[] = {&own_.output_gradient, &own_.input};
  for (const uint8_t matrix : kMatrices) {
    const Buffer rows = Rows(round, position(), matrix);
    out.Add(CopyValues{rows, *given[matrix]});
    if (matrix == kOutputGradientMatrix && own_.scale != 1.0f) {
      out.Add(ScaleValues{rows, own_.scale});
    }
    out.Add(RoundValues{rows, wire()});  // As the others get them.
  }
}

template <typename Each>
void FactorSyncer::CutFactors(const Round& round, int position,
                              Each each) const {
  for (const uint8_t matrix : kMatrices) {
    FrameHeader header = Header(FrameKind::kFactors, position, round.round);
    header.part = matrix;
    CutIntoFrames(*job_, header, Rows(round, position, matrix), each);
  }
}

void FactorSyncer::SendOwn(Outbox& out) {
  CutFactors(RoundAt(next_round()), position(),
             [&](Frame frame) { out.Add(BroadcastFrame{std::move(frame)}); });
}

void FactorSyncer::SendMemory(const Round& round, PeerId to,
                              Outbox& out) const {
  for (int position = 0; position < round.contributors; ++position) {
    CutFactors(round, position, [&](Frame frame) {
      out.Add(SendFrame{to, std::move(frame)});
    });
  }
}

absl::StatusOr<PeerSyncer::Place> FactorSyncer::FindPlace(
    const FrameHeader& header, const Round& round) const {
  if (header.part > kInputMatrix) {
    return Refuse(header, "there are two factors, 0 and 1");
  }
  if (header.chunk >= static_cast<uint32_t>(round.contributors)) {
    return Refuse(header, absl::StrCat("the round has ", round.contributors,
                                       " contributors"));
  }
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame,
                          FrameIndex(header, MatrixElements(header.part)));
  const auto position = static_cast<int>(header.chunk);
  const int64_t before = header.part == kInputMatrix
                             ? FrameCount(MatrixElements(kOutputGradientMatrix))
                             : 0;
  return Place{position * frames_per_worker_ + before + frame,
               Rows(round, position, header.part)
                   .Slice(BytesOf(header.offset), FloatBytes(header))};
}

absl::StatusOr<Landing> FactorSyncer::PlaceFrame(
    const FrameHeader& header) const {
  const Round& round = RoundAt(header.round);
  NEREUS_ASSIGN_OR_RETURN(const Place place, FindPlace(header, round));
  if (job_->PositionOf(header.sender.rank) !=
      static_cast<int64_t>(header.chunk)) {
    return Refuse(header,
                  "each worker sends its own factors, in the place of its "
                  "position");
  }
  return round.arrived[place.index] ? Landing::Discard()
                                    : Landing::At(place.values);
}

void FactorSyncer::TakeFrame(const FrameHeader& header, Outbox&) {
  Round& round = RoundAt(header.round);
  Mark(round, FindPlace(header, round)->index);
}

Buffer FactorSyncer::TakeMean(const Round& round, Outbox& out) {
  Buffer gradient = own_.gradient;
  if (gradient.bytes() == 0) {
    if (product_.bytes() == 0) {
      product_ =
          Buffer::AllocateLike(memory_.parameters, BytesOf(spec().parameters));
    }
    gradient = product_;
  }
  const auto rows = [&](uint8_t matrix) {
    return round.memory[matrix].Slice(
        0, BytesOf(round.contributors * MatrixElements(matrix)));
  };
  out.Add(MultiplyFactors{
      round.contributors * spec().rows, spec().m, spec().n, has_bias(),
      1.0f / static_cast<float>(round.contributors),
      rows(kOutputGradientMatrix), rows(kInputMatrix), gradient});
  return updates_here() ? gradient : Buffer();
}

std::vector<std::string> FactorSyncer::MissingPeers(const Round& round) const {
  std::vector<std::string> peers;
  for (int position = 0; position < round.contributors; ++position) {
    const auto first = round.arrived.begin() + position * frames_per_worker_;
    if (std::count(first, first + frames_per_worker_, false) > 0) {
      peers.push_back(
          job_->NameOf(PeerId::Worker(job_->workers[position].rank)));
    }
  }
  return peers;
}

}  // namespace nereus
