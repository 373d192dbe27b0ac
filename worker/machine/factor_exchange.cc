// Exchange by factors: sufficient-factor broadcasting (Zhang et al., "Poseidon:
// An Efficient Communication Architecture for Distributed Deep Learning on GPU
// Clusters", ATC 2017, section 3.2; Xie et al., "Distributed Machine
// Learning via Sufficient Factor Broadcasting", 2015).
//
// The gradient of a fully connected layer over a batch of K examples is a
// product: output_gradient (K x M) transposed, times input (K x N). For small K
// the two factors have far fewer values than the M x N gradient. Instead of the
// gradient each worker sends its two factors to all other workers:
//
//   1. Begin copies this worker's factors into its rows of two stacks. It
//      rounds them to the wire type, so that this worker computes with the same
//      values that the others receive.
//   2. Contribute sends these rows to the mates, and to one carrier on each
//      other host.
//   3. The factors of the other workers land in their rows, in any order. A
//      carrier hands the factors that it carries on to its mates.
//   4. Finish multiplies the stacks, which adds up the workers' gradients, and
//      divides by the number of workers. Where the workers of a host share the
//      product, each worker multiplies its part (MakePart), and the parts of
//      its mates land beside it.
//
// A dense gradient takes the place of a worker's factors in 1 to 3, and is
// added to the product in 4.
//
// The rows are ordered by seat, so every worker sums in the same order and
// gets the same bits. The biases, if the layer has some, are the column sums of
// output_gradient, and come out of the same product.

#include "worker/machine/factor_exchange.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/plan/cost_model.h"
#include "common/protocol/frame.h"
#include "common/protocol/lineup.h"
#include "worker/machine/float_bytes.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Parts of the product of a layer's factors, one for each worker of a host.
// Each worker computes its part and hands it to its mates, so that a host
// computes the product once. A part is a run of whole rows of the gradient's
// matrix; the last part has the bias too. Hosts may cut the product in
// different ways, because the cut changes no bit (FactorGradientRows).
//
//   gradient:  | rows of local worker 0 | rows of local worker 1 | bias |
//              '------- part 0 ---------'-------- part 1 ----------------'
//
// Immutable value.
class ProductParts {
 public:
  // Part of one worker.
  struct Part {
    int64_t begin = 0;     // First row of the matrix.
    int64_t end = 0;       // Row after the last one.
    int64_t offset = 0;    // Index of the part's first value in the gradient.
    int64_t elements = 0;  // Number of values of the part.
  };

  // Makes the parts of a product that workers do not share: there are none.
  ProductParts() = default;
  // Makes the parts for a round with this line-up. There are no parts if this
  // worker makes the whole product by itself: because it is alone on its host,
  // it multiplies on a device, or the product is too small to share
  // (SharesProduct in common/plan/cost_model.h).
  ProductParts(const WorkerLayer& layer, const Lineup& lineup);

  // True if the workers of this host share the product.
  bool are_shared() const { return count_ > 0; }
  // Number of parts: one for each worker of this host; 0 if there are none.
  int count() const { return count_; }

  // Returns the part of the host's worker with this local index. REQUIRES: 0 <=
  // local < count().
  Part at(int local) const;
  // Returns the number of frames of the parts 0 to `local` - 1. So
  // FramesBefore(count()) is the number of frames of all parts.
  int64_t FramesBefore(int local) const;

 private:
  int count_ = 0;     // Number of parts.
  int64_t m_ = 0;     // Rows of the gradient's matrix.
  int64_t n_ = 0;     // Columns of the gradient's matrix.
  int64_t bias_ = 0;  // Number of values of the bias.
};

namespace {

constexpr uint8_t kMatrices[] = {kOutputGradientMatrix, kInputMatrix};
// Index of the gradient's buffer in a round's memory, if workers share the
// product.
constexpr int kProduct = 2;

// Number of values of one worker's factor.
int64_t MatrixElements(const LayerSpec& spec, uint8_t matrix) {
  return spec.rows * (matrix == kOutputGradientMatrix ? spec.m : spec.n);
}

// Number of frames that carry both factors of one worker.
int64_t FramesPerWorker(const LayerSpec& spec) {
  int64_t frames = 0;
  for (const uint8_t matrix : kMatrices) {
    frames += FrameCount(MatrixElements(spec, matrix));
  }
  return frames;
}

PeerRounds::Shape ShapeOf(const WorkerLayer& layer, const Lineup& lineup) {
  PeerRounds::Shape shape;
  for (const uint8_t matrix : kMatrices) {
    shape.elements.push_back(lineup.workers() *
                             MatrixElements(layer.spec(), matrix));
  }
  shape.own_count = FramesPerWorker(layer.spec());
  shape.own_begin = lineup.SeatOf(layer.rank) * shape.own_count;
  shape.frames = lineup.workers() * shape.own_count;
  const ProductParts parts(layer, lineup);
  if (!parts.are_shared()) return shape;
  shape.elements.push_back(layer.spec().parameters);
  shape.parts = parts.FramesBefore(parts.count());
  shape.frames += shape.parts;
  return shape;
}

}  // namespace

FactorExchange::FactorExchange(WorkerLayer& layer, const RoundLedger& ledger)
    : layer_(layer),
      ledger_(ledger),
      frames_per_worker_(FramesPerWorker(layer.spec())),
      rounds_(
          layer, ledger,
          [&layer](const Lineup& lineup) { return ShapeOf(layer, lineup); }),
      local_(layer, ledger, [](const Lineup&) { return 0; }) {}

Buffer FactorExchange::Rows(const Round& round, int seat,
                            uint8_t matrix) const {
  const int64_t bytes = FloatBytes(MatrixElements(layer_.spec(), matrix));
  return round.memory[matrix].Slice(seat * bytes, bytes);
}

void FactorExchange::PlaceOwn(Outbox& out) {
  Round& round = rounds_.At(ledger_.next_round());
  if (layer_.gradient.bytes() > 0) {
    const int seat = round.lineup.SeatOf(layer_.rank);
    const DenseGradient& dense = DenseOf(round, seat, out);
    for (int64_t i = 0; i < FrameCount(layer_.spec().parameters); ++i) {
      round.frames.Mark(dense.begin + i);
    }
    out.Add(CopyValues{dense.values, layer_.gradient});
    out.Add(RoundValues{dense.values, layer_.route().wire});
    return;
  }
  const FactorBuffers& own = layer_.factors;
  const Buffer* const given[] = {&own.output_gradient, &own.input};
  for (const uint8_t matrix : kMatrices) {
    const Buffer rows = Rows(round, round.lineup.SeatOf(layer_.rank), matrix);
    out.Add(CopyValues{rows, *given[matrix]});
    if (matrix == kOutputGradientMatrix && own.scale != 1.0f) {
      out.Add(ScaleValues{rows, own.scale});
    }
    out.Add(RoundValues{rows, layer_.route().wire});
  }
}

const FactorExchange::DenseGradient& FactorExchange::DenseOf(Round& round,
                                                             int seat,
                                                             Outbox& out) {
  const DenseGradient* const dense = PeerRounds::FindDense(round, seat);
  if (dense != nullptr) return *dense;
  const int64_t first = seat * frames_per_worker_;
  for (int64_t i = first; i < first + frames_per_worker_; ++i) {
    if (!round.frames.Has(i)) round.frames.Mark(i);
  }
  for (const uint8_t matrix : kMatrices) {
    const Buffer rows = Rows(round, seat, matrix);
    out.Add(CopyValues{rows, Buffer::AllocateLike(rows, rows.bytes())});
  }
  return rounds_.AddDense(round, seat);
}

void FactorExchange::Contribute(Outbox& out) {
  const Round* round = rounds_.PrepareToSend();
  if (round == nullptr) return;
  const RankList receivers = ReceiversIn(*round);
  const int seat = round->lineup.SeatOf(layer_.rank);
  const auto send = [&](uint8_t part, const Buffer& values) {
    FrameHeader header = layer_.Header(FrameKind::kFactors, seat, round->round);
    header.part = part;
    CutIntoFrames(*layer_.job, header, values, [&](Frame frame) {
      out.Add(BroadcastFrame{receivers, std::move(frame)});
    });
  };
  const DenseGradient* const dense = PeerRounds::FindDense(*round, seat);
  if (dense != nullptr) return send(kDensePart, dense->values);
  for (const uint8_t matrix : kMatrices) {
    send(matrix, Rows(*round, seat, matrix));
  }
}

// All mates, and the carrier on each other host.
RankList FactorExchange::ReceiversIn(const Round& round) const {
  auto ranks = std::make_shared<std::vector<int32_t>>();
  const int64_t seat = round.lineup.SeatOf(layer_.rank);
  for (int host = 0; host < round.lineup.hosts(); ++host) {
    if (host != round.host) {
      ranks->push_back(
          layer_.job->CarrierOf(layer_.index, seat, round.round, host));
      continue;
    }
    for (const int32_t rank : round.lineup.at(host)) {
      if (rank != layer_.rank) ranks->push_back(rank);
    }
  }
  return ranks;
}

absl::StatusOr<FactorExchange::Place> FactorExchange::FindPlace(
    const FrameHeader& header, const Round& round) const {
  if (header.kind == FrameKind::kOutcome && header.part == kProductPart) {
    return FindPart(header, round);
  }
  if (header.part > kInputMatrix && header.part != kDensePart) {
    return RefuseFrame(header,
                       "the part must be 0 or 1, the number of a factor, or 3, "
                       "a dense gradient");
  }
  if (header.chunk >= static_cast<uint32_t>(round.contributors)) {
    return RefuseFrame(header, "the round has ", round.contributors,
                       " contributors");
  }
  const LayerSpec& spec = layer_.spec();
  const auto seat = static_cast<int>(header.chunk);
  if (header.part == kDensePart) {
    const int64_t frame = NEREUS_TRY(FrameIndex(header, spec.parameters));
    const DenseGradient* const dense = PeerRounds::FindDense(round, seat);
    if (dense == nullptr) return Place{round.frames.count() + frame, {}};
    return Place{
        dense->begin + frame,
        dense->values.Slice(FloatBytes(header.offset), FloatBytes(header))};
  }
  const int64_t frame =
      NEREUS_TRY(FrameIndex(header, MatrixElements(spec, header.part)));
  const int64_t frames_before =
      header.part == kInputMatrix
          ? FrameCount(MatrixElements(spec, kOutputGradientMatrix))
          : 0;
  return Place{seat * frames_per_worker_ + frames_before + frame,
               Rows(round, seat, header.part)
                   .Slice(FloatBytes(header.offset), FloatBytes(header))};
}

absl::StatusOr<FactorExchange::Place> FactorExchange::FindPart(
    const FrameHeader& header, const Round& round) const {
  const int32_t sender = header.sender.rank;
  const ProductParts parts(layer_, round.lineup);
  if (!parts.are_shared() || round.lineup.HostOf(sender) != round.host ||
      round.lineup.SeatOf(sender) != static_cast<int>(header.chunk)) {
    return RefuseFrame(header,
                       "a worker hands only its own part of a product to the "
                       "workers of its host that share it");
  }
  const int local = round.lineup.LocalOf(sender);
  const ProductParts::Part part = parts.at(local);
  const int64_t frame = NEREUS_TRY(FrameIndex(header, part.elements));
  return Place{
      FactorFrames(round) + parts.FramesBefore(local) + frame,
      round.memory[kProduct].Slice(FloatBytes(part.offset + header.offset),
                                   FloatBytes(header))};
}

absl::StatusOr<Landing> FactorExchange::OnHeader(
    const FrameHeader& header) const {
  if (PeerRounds::IsRecovery(header.kind)) {
    return rounds_.OnRecoveryHeader(header);
  }
  if (header.kind != FrameKind::kFactors &&
      header.kind != FrameKind::kOutcome) {
    return RefuseScheme(layer_, header);
  }
  NEREUS_TRY(rounds_.Check(header));
  if (rounds_.IsPast(header)) return Landing::Discard();
  const Round& round = rounds_.At(header.round);
  const Place place = NEREUS_TRY(FindPlace(header, round));
  NEREUS_TRY(CheckSender(header, round));
  const bool is_first = place.index >= round.frames.count();
  if (is_first) NEREUS_TRY(CheckSentNoFactors(header, round));
  if (!is_first && round.frames.Has(place.index)) return Landing::Discard();
  // OnFrame makes the memory of a dense gradient.
  return header.part == kDensePart ? Landing::Scratch()
                                   : Landing::At(place.values);
}

absl::Status FactorExchange::CheckSentNoFactors(const FrameHeader& header,
                                                const Round& round) const {
  const int64_t first = static_cast<int64_t>(header.chunk) * frames_per_worker_;
  bool any = false;
  for (int64_t i = 0; i < frames_per_worker_; ++i) {
    any = any || round.frames.Has(first + i);
  }
  if (!any) return absl::OkStatus();
  return RefuseFrame(header,
                     "the worker has sent factors in this round already");
}

absl::Status FactorExchange::CheckSender(const FrameHeader& header,
                                         const Round& round) const {
  // FindPart has checked the sender of a part.
  if (header.part == kProductPart) return absl::OkStatus();
  const int32_t sender = header.sender.rank;
  const int seat = static_cast<int>(header.chunk);
  const int32_t carrier =
      layer_.job->CarrierOf(layer_.index, seat, round.round, round.host);
  if (header.kind == FrameKind::kOutcome) {
    // A mate sends its contribution itself. If it also came from the carrier,
    // it could count twice.
    const absl::Span<const int32_t> local = round.lineup.at(round.host);
    const int first = round.lineup.SeatOf(local.front());
    const bool is_of_mate = seat >= first && seat < first + std::ssize(local);
    if (sender == carrier && round.lineup.HostOf(sender) == round.host &&
        carrier != layer_.rank && !is_of_mate) {
      return absl::OkStatus();
    }
    return RefuseFrame(header, "worker ", carrier,
                       " carries this contribution on this host");
  }
  if (round.lineup.SeatOf(sender) != seat) {
    return RefuseFrame(
        header,
        "a worker sends only its own contribution, with its seat as chunk");
  }
  if (round.lineup.HostOf(sender) != round.host && carrier != layer_.rank) {
    return RefuseFrame(header, "worker ", carrier,
                       " carries this contribution on this host");
  }
  return absl::OkStatus();
}

void FactorExchange::OnFrame(const Frame& frame, Outbox& out) {
  const FrameHeader& header = frame.header;
  if (PeerRounds::IsRecovery(header.kind)) {
    return rounds_.OnRecoveryFrame(frame, out);
  }
  Round& round = rounds_.At(header.round);
  if (header.part == kDensePart) {
    DenseOf(round, static_cast<int>(header.chunk), out);
  }
  const Place place = *FindPlace(header, round);
  round.frames.Mark(place.index);
  if (header.part == kDensePart) {
    out.Add(Accumulate{place.values, Addend(frame), /*replaces=*/true});
  }
  if (header.part == kProductPart) {
    --round.missing_parts;
    return;
  }
  const bool is_carried =
      header.kind == FrameKind::kFactors &&
      round.lineup.HostOf(header.sender.rank) != round.host &&
      !round.lineup.IsAlone(layer_.rank);
  if (is_carried) local_.HandOn(header, place.values, out);
}

std::optional<RoundResult> FactorExchange::Finish(Outbox& out) {
  MakePart(out);
  if (!rounds_.IsComplete()) return std::nullopt;
  Round& round = rounds_.At(ledger_.next_round());
  Buffer mean = rounds_.IsSkipped() ? Buffer() : TakeMean(round, out);
  return rounds_.Finish(std::move(mean), out);
}

// The verdict is the same on all workers, so either all make their parts or no
// worker does.
void FactorExchange::MakePart(Outbox& out) {
  Round& round = rounds_.At(ledger_.next_round());
  const bool has_factors = round.frames.missing() == round.missing_parts;
  const std::optional<bool> skipped = ledger_.Skipped(round.round);
  if (round.missing_parts == 0 || !has_factors || !ledger_.is_sent() ||
      !skipped.has_value()) {
    return;
  }
  const ProductParts parts(layer_, round.lineup);
  if (*skipped) {
    const int64_t first = FactorFrames(round);
    for (int64_t i = 0; i < parts.FramesBefore(parts.count()); ++i) {
      if (!round.frames.Has(first + i)) round.frames.Mark(first + i);
    }
    round.missing_parts = 0;
    return;
  }
  const int local = round.lineup.LocalOf(layer_.rank);
  const int64_t first = FactorFrames(round) + parts.FramesBefore(local);
  if (round.frames.Has(first)) return;
  const ProductParts::Part part = parts.at(local);
  const Buffer values = round.memory[kProduct].Slice(FloatBytes(part.offset),
                                                     FloatBytes(part.elements));
  Multiply(round, part.begin, part.end, values, out);
  for (int64_t i = 0; i < FrameCount(part.elements); ++i) {
    round.frames.Mark(first + i);
    --round.missing_parts;
  }
  FrameHeader header = layer_.Header(
      FrameKind::kOutcome, round.lineup.SeatOf(layer_.rank), round.round);
  header.part = kProductPart;
  const RankList mates = local_.MatesIn(round.round);
  CutIntoFrames(*layer_.job, header, values, [&](Frame frame) {
    out.Add(BroadcastFrame{mates, std::move(frame)});
  });
}

void FactorExchange::Multiply(Round& round, int64_t begin, int64_t end,
                              Buffer gradient, Outbox& out) const {
  rounds_.SumDense(round, out);
  const LayerSpec& spec = layer_.spec();
  const auto stack = [&](uint8_t matrix) {
    return round.memory[matrix].Slice(
        0, FloatBytes(round.contributors * MatrixElements(spec, matrix)));
  };
  Buffer addend;
  if (!round.dense.empty()) {
    addend =
        round.dense_sum.Slice(FloatBytes(begin * spec.n), gradient.bytes());
  }
  // An update of the job finds what is not finite without a second pass.
  std::optional<ValueCheck> check;
  if (layer_.caller_updates()) {
    check = ResultCheck(*layer_.job, layer_.index, round.round, begin * spec.n,
                        Checked::kMean);
  }
  out.Add(MultiplyFactors{
      round.contributors * spec.rows, spec.m, spec.n, layer_.has_bias(),
      1.0f / static_cast<float>(round.contributors),
      stack(kOutputGradientMatrix), stack(kInputMatrix), std::move(gradient),
      begin, end, std::move(addend), check});
}

// A round that came whole from a source has no parts.
Buffer FactorExchange::TakeMean(Round& round, Outbox& out) {
  const bool is_shared = ProductParts(layer_, round.lineup).are_shared() &&
                         !rounds_.Recovers(round.round);
  if (!is_shared) {
    Buffer gradient = layer_.PlaceForGradient(layer_.factors.gradient);
    Multiply(round, 0, layer_.spec().m, gradient, out);
    return layer_.caller_updates() ? Buffer() : gradient;
  }
  Buffer mean = round.memory[kProduct];
  if (!layer_.caller_updates() || !layer_.memory.means_in_place) return mean;
  out.Add(CopyValues{layer_.PlaceForGradient(layer_.factors.gradient),
                     std::move(mean)});
  return Buffer();
}

void FactorExchange::OnEpoch(Outbox& out) {
  rounds_.OnEpoch(out);
  const int64_t round = ledger_.done_round() + 1;
  if (layer_.position() < 0 || !ledger_.is_open() || rounds_.Recovers(round)) {
    return;
  }
  PlaceOwn(out);
}

std::string FactorExchange::Missing() const {
  return rounds_.Missing([this](const Round& round) {
    std::vector<int32_t> ranks;
    const auto add_if_missing = [&](int32_t rank, int64_t first,
                                    int64_t count) {
      if (round.frames.Lacks(first, count)) ranks.push_back(rank);
    };
    int64_t first = 0;
    for (int host = 0; host < round.lineup.hosts(); ++host) {
      for (const int32_t rank : round.lineup.at(host)) {
        const DenseGradient* const dense =
            PeerRounds::FindDense(round, round.lineup.SeatOf(rank));
        if (dense == nullptr) {
          add_if_missing(rank, first, frames_per_worker_);
        } else {
          add_if_missing(rank, dense->begin,
                         FrameCount(layer_.spec().parameters));
        }
        first += frames_per_worker_;
      }
    }
    const ProductParts parts(layer_, round.lineup);
    if (!ranks.empty() || !parts.are_shared()) return ranks;
    for (int local = 0; local < parts.count(); ++local) {
      add_if_missing(round.lineup.at(round.host)[local],
                     first + parts.FramesBefore(local),
                     FrameCount(parts.at(local).elements));
    }
    return ranks;
  });
}

ProductParts::ProductParts(const WorkerLayer& layer, const Lineup& lineup)
    : m_(layer.spec().m),
      n_(layer.spec().n),
      bias_(layer.has_bias() ? layer.spec().m : 0) {
  const int host = lineup.HostOf(layer.rank);
  if (host < 0 || !layer.memory.multiplies_on_host) return;
  const auto local = std::ssize(lineup.at(host));
  if (SharesProduct(layer.spec(), lineup.workers(), local)) {
    count_ = static_cast<int>(local);
  }
}

ProductParts::Part ProductParts::at(int local) const {
  Part part;
  part.begin = m_ * local / count_;
  part.end = m_ * (local + 1) / count_;
  part.offset = part.begin * n_;
  part.elements = (part.end - part.begin) * n_ + (part.end == m_ ? bias_ : 0);
  return part;
}

int64_t ProductParts::FramesBefore(int local) const {
  int64_t frames = 0;
  for (int i = 0; i < local; ++i) frames += FrameCount(at(i).elements);
  return frames;
}

}  // namespace nereus
