#include "worker/machine/local_half.h"

#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "worker/machine/float_bytes.h"

namespace nereus {
namespace {

SumOrder OrderOf(const Job& job) {
  return job.options.deterministic ? SumOrder::kRank : SumOrder::kArrival;
}

}  // namespace

LocalHalf::LocalHalf(const WorkerLayer& layer, const RoundLedger& ledger,
                     std::function<int64_t(const Lineup&)> frames_of)
    : layer_(layer),
      ledger_(ledger),
      frames_of_(std::move(frames_of)),
      rounds_{Round{kInitialRound - 1, FrameSums(OrderOf(*layer.job)), {}},
              Round{kInitialRound - 1, FrameSums(OrderOf(*layer.job)), {}}} {}

absl::Span<const int32_t> LocalHalf::Local(int64_t round) const {
  const Lineup& lineup = layer_.job->LineupOf(round);
  return lineup.at(lineup.HostOf(layer_.rank));
}

// A worker that has left takes part in no round.
bool LocalHalf::IsAlone(int64_t round) const {
  if (layer_.job->partial()) return true;
  const Lineup& lineup = layer_.job->LineupOf(round);
  return lineup.HostOf(layer_.rank) < 0 || lineup.IsAlone(layer_.rank);
}

int32_t LocalHalf::CarrierOf(int64_t round, int64_t unit) const {
  if (IsAlone(round)) return layer_.rank;
  const Job& job = *layer_.job;
  return job.CarrierOf(layer_.index, unit, round,
                       job.LineupOf(round).HostOf(layer_.rank));
}

RankList LocalHalf::MatesIn(int64_t round) const {
  auto mates = std::make_shared<std::vector<int32_t>>();
  absl::c_copy_if(Local(round), std::back_inserter(*mates),
                  [&](int32_t rank) { return rank != layer_.rank; });
  return mates;
}

absl::StatusOr<Landing> LocalHalf::OnLocalHeader(const FrameHeader& header,
                                                 int64_t unit,
                                                 int64_t frame) const {
  if (layer_.position() < 0) {
    return RefuseFrame(header, "this worker has left the job");
  }
  const int64_t next = ledger_.next_round();
  if (header.round < 0 || header.round > next + 1) {
    return RefuseFrame(header, "rounds ", next, " and ", next + 1, " are open");
  }
  if (header.round < next) return Landing::Discard();
  const Lineup& lineup = layer_.job->LineupOf(header.round);
  const int host = lineup.HostOf(layer_.rank);
  if (IsAlone(header.round) || lineup.HostOf(header.sender.rank) != host) {
    return RefuseFrame(header, "the sender is not on the host of this worker");
  }
  const int32_t carrier = CarrierOf(header.round, unit);
  if (carrier != layer_.rank) {
    return RefuseFrame(header, layer_.job->NameOf(PeerId::Worker(carrier)),
                       " carries that part of the layer on this host");
  }
  return Has(header.sender.rank, header.round, frame) ? Landing::Discard()
                                                      : Landing::Scratch();
}

const FrameSums* LocalHalf::Find(int64_t round) const {
  const Round& found = rounds_[round % 2];
  return found.round == round ? &found.sums : nullptr;
}

LocalHalf::Round& LocalHalf::Open(int64_t round) {
  Round& opened = rounds_[round % 2];
  if (std::exchange(opened.round, round) == round) return opened;
  const int64_t frames = frames_of_(layer_.job->LineupOf(round));
  opened.sums.Reopen(static_cast<int>(Local(round).size()), frames);
  opened.memory.resize(frames);
  for (Buffer& memory : opened.memory) {
    // Frames under way that still refer to the memory keep it; the sum gets new
    // memory.
    if (!memory.unique()) memory = Buffer();
  }
  return opened;
}

Buffer LocalHalf::SumOf(int64_t round, int64_t frame, int64_t bytes) {
  Buffer& memory = Open(round).memory[frame];
  if (memory.bytes() < bytes) {
    memory = Buffer::AllocateLike(layer_.memory.parameters, bytes);
  }
  return memory.Slice(0, bytes);
}

bool LocalHalf::Add(int rank, int64_t round, int64_t frame, int64_t offset,
                    const Buffer& place, Addend addend, float factor,
                    Outbox& out) {
  if (layer_.job->checks_contributions() &&
      layer_.index != layer_.job->pool.layer) {
    addend.check = CheckOf(rank, round, offset);
  }
  FrameSums& sums = Open(round).sums;
  sums.Add(layer_.job->LineupOf(round).LocalOf(rank), frame, place,
           std::move(addend), factor, out);
  return sums.IsComplete(frame);
}

bool LocalHalf::Has(int rank, int64_t round, int64_t frame) const {
  const FrameSums* const sums = Find(round);
  return sums != nullptr &&
         sums->Has(layer_.job->LineupOf(round).LocalOf(rank), frame);
}

bool LocalHalf::IsSummed(int64_t round, int64_t frame) const {
  const FrameSums* const sums = Find(round);
  return sums != nullptr && sums->IsComplete(frame);
}

std::vector<int32_t> LocalHalf::MissingOf(int64_t round, int64_t frame) const {
  std::vector<int32_t> missing;
  absl::c_copy_if(Local(round), std::back_inserter(missing),
                  [&](int32_t rank) { return !Has(rank, round, frame); });
  return missing;
}

void LocalHalf::HandOn(FrameHeader header, Buffer values, Outbox& out) const {
  header.kind = FrameKind::kOutcome;
  header.sender = PeerId::Worker(layer_.rank);
  header.wire = layer_.job->WireOf(header);
  header.exponent = 0;
  header.payload_bytes = static_cast<uint32_t>(values.bytes());
  header.payload_crc = 0;  // The transport computes it.
  out.Add(BroadcastFrame{MatesIn(header.round), {header, std::move(values)}});
}

void LocalHalf::Close(int64_t round) {
  Round& closed = rounds_[round % 2];
  if (closed.round == round) closed.sums.DropStaying();
}

void LocalHalf::OnEpoch() {
  for (Round& round : rounds_) {
    round.round = kInitialRound - 1;
    round.sums = FrameSums(OrderOf(*layer_.job));
  }
}

ValueCheck LocalHalf::CheckOf(int rank, int64_t round, int64_t offset) const {
  return {layer_.index, round, rank, offset};
}

int64_t LocalHalf::held_bytes() const {
  int64_t bytes = 0;
  for (const Round& round : rounds_) bytes += round.sums.held_bytes();
  return bytes;
}

}  // namespace nereus
