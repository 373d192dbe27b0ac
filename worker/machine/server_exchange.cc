// Exchange through the servers: the parameter-server scheme (Li et al.,
// "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014,
// section 3).
//
// The layer is cut into chunks, and each chunk belongs to a shard. Contribute
// sends each shard its part of the gradient. A shard adds the contributions of
// all workers to a chunk, updates the chunk with their mean, and sends the
// result to every worker. The result lands in its final place, frame by frame,
// in any order (ResultAssembly). The frame that arrives last completes the
// round. If the caller runs the optimizer, the result is the mean gradient
// itself.
//
// Each chunk has a carrier among the workers of a host (LocalHalf). The other
// workers send the carrier their part. The carrier sends the sum to the shard,
// gets the result, and hands the result on to its mates. For the shard the sum
// counts as one contribution. A worker that is alone on its host carries every
// chunk.
//
// In a sparse job a contribution has only the blocks that the round's choice
// names (GradientFlow, section 3.3). The shards know the same choice and wait
// for these blocks only.
//
// Read Contribute, AddToSum and OnResult first: a chunk passes through them in
// this order.

#include "worker/machine/server_exchange.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "worker/machine/float_bytes.h"

namespace nereus {

ServerExchange::ServerExchange(const WorkerLayer& layer,
                               const RoundLedger& ledger,
                               ResultAssembly& results)
    : layer_(layer),
      ledger_(ledger),
      results_(results),
      frames_(*layer.job, layer.index),
      local_(layer, ledger, [this](const Lineup&) { return frames_.count(); }) {
}

// The contribution of this worker.

void ServerExchange::Contribute(Outbox& out) {
  ExpectResult();
  const bool asks = AskForClosed(out);
  for (const Chunk& chunk : chunks()) {
    if (!results_.Complete(chunk)) ContributeChunk(chunk, asks, out);
  }
}

bool ServerExchange::Travels(const Chunk& chunk, int64_t index) const {
  const int64_t count = frames_.GridOf(chunk).Count();
  if (!layer_.sparse.has_value()) return index < count;
  const int64_t first = layer_.sparse->FrameAt(chunk.offset);
  if (index < count) return layer_.sparse->travels(first + index);
  // A sparse chunk has one frame more than blocks. This frame has no values. It
  // travels if no block of the chunk does.
  for (int64_t frame = 0; frame < count; ++frame) {
    if (layer_.sparse->travels(first + frame)) return false;
  }
  return true;
}

FrameHeader ServerExchange::HeaderOf(FrameKind kind, const Chunk& chunk,
                                     int64_t index) const {
  const Job& job = *layer_.job;
  const FrameGrid& grid = frames_.GridOf(chunk);
  FrameHeader header = layer_.Header(kind, chunk.index, ledger_.next_round());
  if (!layer_.sparse.has_value()) return CutHeader(job, header, grid, index);
  if (index == grid.Count()) {
    header.wire = job.WireOf(header);
    return header;
  }
  // Each header says how many frames of the chunk the shard must wait for.
  const int64_t first = layer_.sparse->FrameAt(chunk.offset);
  for (int64_t frame = 0; frame < grid.Count(); ++frame) {
    header.frames += layer_.sparse->travels(first + frame) ? 1 : 0;
  }
  if (layer_.sparse->resumes(first + index)) header.part = kResumedPart;
  return CutHeader(job, header, grid, index);
}

Buffer ServerExchange::ValuesOf(const Chunk& chunk, int64_t index) const {
  const FrameGrid& grid = frames_.GridOf(chunk);
  if (index == grid.Count()) return Buffer();
  const int64_t offset = chunk.offset + grid.Offset(index);
  if (layer_.sparse.has_value()) {
    return layer_.sparse->Contribution(offset, grid.Length(index));
  }
  return layer_.gradient.Slice(FloatBytes(offset),
                               FloatBytes(grid.Length(index)));
}

// If this worker has asked for results (`asks`), a result can overwrite the
// gradient in the caller's memory while parts of the gradient still wait to be
// sent. The checksum of such a part could then be wrong, and the carrier would
// refuse the frame. So this function sends copies of these parts.
void ServerExchange::ContributeChunk(const Chunk& chunk, bool asks,
                                     Outbox& out) {
  const int64_t round = ledger_.next_round();
  const int32_t carrier = local_.CarrierOf(round, chunk.index);
  const bool is_carrier = carrier == layer_.rank;
  const bool is_summed_here = is_carrier && !local_.IsAlone(round);
  const FrameKind kind =
      is_carrier ? FrameKind::kContribution : FrameKind::kLocal;
  const PeerId to =
      is_carrier ? layer_.job->ServerOf(chunk) : PeerId::Worker(carrier);
  for (int64_t index = 0; index < frames_.CountOf(chunk); ++index) {
    if (!Travels(chunk, index)) continue;
    Buffer values = ValuesOf(chunk, index);
    if (is_summed_here) {
      Addend own(std::move(values));
      own.stays = true;
      AddToSum(layer_.rank, round, chunk, index, std::move(own), out);
      continue;
    }
    if (asks && !is_carrier && layer_.caller_updates()) {
      const Buffer copy = Buffer::AllocateLike(values, values.bytes());
      out.Add(CopyValues{copy, std::exchange(values, copy)});
    }
    out.Add(SendFrame{to, {HeaderOf(kind, chunk, index), std::move(values)}});
  }
}

// The host's sum.

void ServerExchange::AddToSum(int rank, int64_t round, const Chunk& chunk,
                              int64_t index, Addend addend, Outbox& out) {
  const FrameGrid& grid = frames_.GridOf(chunk);
  const int64_t frame = frames_.FirstOf(chunk) + index;
  const Buffer place =
      local_.SumOf(round, frame, FloatBytes(grid.Length(index)));
  const bool is_complete =
      local_.Add(rank, round, frame, chunk.offset + grid.Offset(index), place,
                 std::move(addend), /*factor=*/1.0f, out);
  if (!is_complete) return;
  // A complete sum has the part of this worker. So `round` is the open round,
  // which HeaderOf puts into the header.
  out.Add(SendFrame{layer_.job->ServerOf(chunk),
                    {HeaderOf(FrameKind::kContribution, chunk, index), place}});
}

// Results.

// If a new epoch begins the round again, its result lands in the same memory as
// before: parts of the result may be there already.
void ServerExchange::ExpectResult() {
  const int64_t round = ledger_.next_round();
  if (std::exchange(result_round_, round) != round) {
    is_apart_ = false;
    if (!layer_.caller_updates()) {
      result_ = layer_.memory.parameters;
    } else if (local_.IsAlone(round)) {
      result_ = layer_.gradient;
    } else {
      if (mean_.bytes() == 0) {
        mean_ = layer_.Allocate(FloatBytes(layer_.spec().parameters));
      }
      result_ = mean_;
      is_apart_ = true;
    }
  }
  results_.Expect(round, result_, Buffer(), std::nullopt,
                  layer_.sparse.has_value() ? &*layer_.sparse : nullptr);
}

// The shards may have closed chunks of the open round in an earlier epoch, and
// this worker may have missed the results. So it asks for all chunks that it
// lacks. The shards answer for closed chunks, and discard the question for the
// others, which wait for this contribution. Later rounds of the epoch cannot
// close without this worker, so it asks once in an epoch.
bool ServerExchange::AskForClosed(Outbox& out) {
  const Job& job = *layer_.job;
  const bool is_first = std::exchange(asked_in_, job.epoch) != job.epoch;
  if (!is_first || job.epoch == kFirstEpoch || job.partial()) return false;
  for (const Chunk& chunk : chunks()) {
    if (results_.Complete(chunk)) continue;
    out.Add(SendFrame{
        job.ServerOf(chunk),
        {layer_.Header(FrameKind::kPull, chunk.index, ledger_.next_round()),
         {}}});
  }
  return true;
}

// Hands a result on to the mates only if all mates have sent their parts in
// this epoch. Without these parts, the result is the answer to AskForClosed,
// and mates that lack it ask the shards themselves.
void ServerExchange::OnResult(const FrameHeader& header, Outbox& out) {
  const int64_t round = ledger_.next_round();
  if (header.round != round || !ledger_.is_sent()) return;
  const Chunk& chunk = chunks()[header.chunk];
  const int64_t frame = frames_.FirstOf(chunk) + *frames_.Find(chunk, header);
  if (header.kind == FrameKind::kResult && !local_.IsAlone(round) &&
      Carries(chunk) && local_.IsSummed(round, frame)) {
    local_.HandOn(header,
                  result_.Slice(FloatBytes(chunk.offset + header.offset),
                                FloatBytes(header)),
                  out);
  }
  // In a sparse layer, the device gets all blocks together when the round is
  // done.
  const bool is_told = layer_.memory.device != nullptr &&
                       !layer_.sparse.has_value() && !is_apart_;
  if (is_told && results_.Complete(chunk)) {
    out.Add(PartDone{layer_.index, round, chunk.offset, chunk.length});
  }
}

std::optional<RoundResult> ServerExchange::Finish(Outbox& out) {
  const int64_t round = ledger_.next_round();
  if (!ledger_.is_sent() || results_.open() || results_.round() != round) {
    return std::nullopt;
  }
  local_.Close(round);
  RoundResult result{layer_.job->ContributorsOf(round)};
  if (is_apart_) {
    result.mean = mean_;
    if (layer_.memory.means_in_place) {
      out.Add(
          CopyValues{layer_.gradient, std::exchange(result.mean, Buffer())});
    }
  }
  result_ = Buffer();  // The caller's memory is the caller's again.
  return result;
}

// Frames of mates.

absl::StatusOr<Landing> ServerExchange::OnHeader(
    const FrameHeader& header) const {
  if (header.kind == FrameKind::kOutcome) {
    NEREUS_TRY(CheckOutcome(header));
    return results_.Place(header);
  }
  if (header.kind != FrameKind::kLocal) return RefuseScheme(layer_, header);
  const Chunk chunk = NEREUS_TRY(FindChunk(*layer_.job, header));
  const int64_t index = NEREUS_TRY(frames_.Find(chunk, header));
  const int64_t frame = frames_.FirstOf(chunk) + index;
  const Landing landing =
      NEREUS_TRY(local_.OnLocalHeader(header, chunk.index, frame));
  // Before its contribution, this worker may not know which blocks travel.
  const bool is_known =
      header.round == ledger_.next_round() && ledger_.is_sent();
  if (layer_.sparse.has_value() ? is_known && !Travels(chunk, index)
                                : header.part != kValuesPart) {
    return RefuseFrame(header, "this worker contributes other frames");
  }
  return landing;
}

absl::Status ServerExchange::CheckOutcome(const FrameHeader& header) const {
  const Chunk chunk = NEREUS_TRY(FindChunk(*layer_.job, header));
  if (layer_.position() < 0 || header.round < 0 ||
      header.round > ledger_.next_round()) {
    return RefuseFrame(header, "this worker is at round ",
                       ledger_.next_round());
  }
  if (header.round < layer_.job->workers[layer_.position()].first_step ||
      local_.IsAlone(header.round) ||
      header.sender.rank != local_.CarrierOf(header.round, chunk.index)) {
    return RefuseFrame(header,
                       "the sender does not carry that chunk on this host");
  }
  return absl::OkStatus();
}

void ServerExchange::OnFrame(const Frame& frame, Outbox& out) {
  const FrameHeader& header = frame.header;
  const Chunk& chunk = chunks()[header.chunk];
  AddToSum(header.sender.rank, header.round, chunk,
           *frames_.Find(chunk, header), Addend(frame), out);
}

// Names the first cause that it finds: mates whose parts are missing, else
// shards whose results are missing, else carriers that have not handed a result
// on.
std::string ServerExchange::Missing() const {
  const int64_t round = ledger_.next_round();
  if (!results_.open() || local_.IsAlone(round)) return results_.Missing();
  std::set<int32_t> parts;
  std::set<int32_t> carriers;
  for (const Chunk& chunk : chunks()) {
    if (results_.Complete(chunk)) continue;
    if (!Carries(chunk)) {
      carriers.insert(local_.CarrierOf(round, chunk.index));
      continue;
    }
    for (int64_t index = 0; index < frames_.CountOf(chunk); ++index) {
      if (!Travels(chunk, index)) continue;
      for (const int32_t rank :
           local_.MissingOf(round, frames_.FirstOf(chunk) + index)) {
        parts.insert(rank);
      }
    }
  }
  const std::string shards =
      results_.MissingOf([this](const Chunk& chunk) { return Carries(chunk); });
  if (parts.empty() && !shards.empty()) return shards;
  return absl::StrJoin(parts.empty() ? carriers : parts, ", ",
                       [&](std::string* text, int32_t rank) {
                         absl::StrAppend(
                             text, layer_.job->NameOf(PeerId::Worker(rank)));
                       });
}

}  // namespace nereus
