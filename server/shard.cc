#include "server/shard.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"

namespace nereus {
namespace {

absl::Status Refuse(const FrameHeader& header, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(DescribeFrame(header), ": ", why));
}

Buffer ZeroedLike(const Buffer& model, int64_t bytes) {
  return model.data() == nullptr ? Buffer::SizeOnly(bytes)
                                 : Buffer::AllocateZeroed(bytes);
}

}  // namespace

Shard::Shard(JobPtr job, int index)
    : job_(std::move(job)), self_(PeerId::Shard(index)) {
  const auto chunks = job_->placement.chunks();
  slot_of_chunk_.assign(chunks.size(), -1);
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].shard != index) continue;
    slot_of_chunk_[i] = static_cast<int>(slots_.size());
    slots_.push_back(Slot{
        chunks[i],
        kInitialRound,
        AggregationRound(/*contributors=*/1, chunks[i].length, sum_order()),
        Buffer(),
        Buffer(),
        std::vector<bool>(job_->workers, false),
        {}});
  }
}

bool Shard::updates_here(const Slot& slot) const {
  return job_->options.optimizer_place == OptimizerPlace::kServer &&
         job_->routes[slot.chunk.layer].scheme != Scheme::kFactor;
}

SumOrder Shard::sum_order() const {
  return job_->options.deterministic ? SumOrder::kRank : SumOrder::kArrival;
}

absl::StatusOr<int> Shard::FindSlot(const FrameHeader& header) const {
  NEREUS_ASSIGN_OR_RETURN(const Chunk chunk, FindChunk(*job_, header));
  if (chunk.shard != self_.rank) {
    return Refuse(header, absl::StrCat("the chunk is shard ", chunk.shard,
                                       "'s, this is ", PeerName(self_)));
  }
  const auto all = job_->placement.chunks();
  const auto first = job_->placement.layer_chunks(chunk.layer).data();
  const int64_t position = first - all.data() + chunk.index;
  return slot_of_chunk_[position];
}

absl::Status Shard::CheckContribution(const Slot& slot,
                                      const FrameHeader& header) const {
  if (header.round < kInitialRound || header.round > slot.round) {
    return Refuse(header, absl::StrCat("round ", slot.round, " is open"));
  }
  if (header.round == kInitialRound && header.sender.rank != 0) {
    return Refuse(header, "the initial parameters are worker 0's");
  }
  if (header.round != kInitialRound &&
      job_->routes[header.layer].scheme == Scheme::kFactor) {
    return Refuse(header,
                  absl::StrCat("layer ", job_->layers[header.layer].name,
                               " goes by factors between the workers"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Landing> Shard::OnHeader(PeerId from,
                                        const FrameHeader& header) const {
  NEREUS_RETURN_IF_ERROR(CheckFrame(*job_, from, header));
  if (from.role != Role::kWorker) return Refuse(header, "must be a worker's");
  NEREUS_ASSIGN_OR_RETURN(const int index, FindSlot(header));
  const Slot& slot = slots_[index];
  if (header.kind == FrameKind::kPull) {
    if (header.payload_bytes == 0 && header.offset == 0 &&
        header.round == kInitialRound) {
      // Once: a worker that only asked would fill the queue of what it is owed.
      return slot.pulled[from.rank] ? Landing::Discard() : Landing::Scratch();
    }
    return Refuse(header, "a pull has no payload, no offset and round -1");
  }
  if (header.kind != FrameKind::kContribution) {
    return Refuse(header, "shards take contributions and pulls");
  }
  NEREUS_RETURN_IF_ERROR(CheckContribution(slot, header));
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame,
                          FrameIndex(header, slot.chunk.length));
  if (header.round < slot.round ||
      slot.aggregation.Has(header.sender.rank, frame)) {
    return Landing::Discard();
  }
  return Landing::Scratch();
}

void Shard::OnFrame(PeerId from, const Frame& frame, Outbox& out) {
  const auto found = FindSlot(frame.header);
  NEREUS_CHECK(found.ok()) << found.status();
  Slot& slot = slots_[*found];
  if (frame.header.kind == FrameKind::kPull) {
    slot.pulled[from.rank] = true;
    Pull(slot, from.rank, out);
    return;
  }
  slot.aggregation.Add(from.rank, frame.header.offset / kFrameElementsMax,
                       frame.payload, out);
  if (slot.aggregation.complete()) Close(slot, out);
}

FrameHeader Shard::ResultHeader(const Slot& slot, int64_t round) const {
  return MakeHeader(*job_, self_, FrameKind::kResult, slot.chunk.layer,
                    slot.chunk.index, round);
}

void Shard::Pull(Slot& slot, int worker, Outbox& out) {
  if (slot.round == kInitialRound) {
    slot.waiting_pulls.push_back(worker);
    return;
  }
  const int64_t held = updates_here(slot) ? slot.round - 1 : kInitialRound;
  CutIntoFrames(ResultHeader(slot, held), slot.parameters, [&](Frame frame) {
    out.Add(SendFrame{PeerId::Worker(worker), std::move(frame)});
  });
}

void Shard::Close(Slot& slot, Outbox& out) {
  if (slot.round == kInitialRound) {
    CloseInitial(slot, out);
    return;
  }
  Buffer result;
  if (job_->options.optimizer_place == OptimizerPlace::kServer) {
    Update(slot, out);
    result = slot.parameters;
  } else {
    result = slot.aggregation.sum();
    out.Add(ScaleValues{result, job_->mean_scale()});
  }
  CutIntoFrames(ResultHeader(slot, slot.round), result, [&](Frame frame) {
    out.Add(BroadcastFrame{std::move(frame)});
  });
  ++slot.round;
  slot.aggregation.Reopen();
}

void Shard::CloseInitial(Slot& slot, Outbox& out) {
  slot.parameters = slot.aggregation.sum();
  if (updates_here(slot)) {
    const int64_t floats =
        slot.chunk.length * OptimizerStateCount(job_->options.optimizer.rule);
    slot.state = ZeroedLike(slot.parameters,
                            floats * static_cast<int64_t>(sizeof(float)));
  }
  slot.aggregation =
      AggregationRound(job_->workers, slot.chunk.length, sum_order());
  slot.round = 0;
  for (int worker : std::exchange(slot.waiting_pulls, {})) {
    Pull(slot, worker, out);
  }
}

void Shard::Update(Slot& slot, Outbox& out) {
  // Frames of the last result may still be on their way to a slow worker: they
  // keep those bytes, and the new parameters get memory of their own.
  Buffer updated = slot.parameters.unique() || slot.parameters.data() == nullptr
                       ? slot.parameters
                       : Buffer::Allocate(slot.parameters.bytes());
  out.Add(UpdateParameters{job_->options.optimizer, slot.round,
                           job_->mean_scale(), slot.aggregation.sum(),
                           slot.parameters, slot.state, updated});
  slot.parameters = std::move(updated);
}

int64_t Shard::stored_bytes() const {
  int64_t bytes = 0;
  for (const Slot& slot : slots_) {
    bytes += slot.parameters.bytes() + slot.state.bytes();
  }
  return bytes;
}

std::optional<Shard::OpenRound> Shard::oldest_open_round() const {
  const Slot* oldest = nullptr;
  for (const Slot& slot : slots_) {
    const bool takes_rounds =
        slot.round == kInitialRound ||
        job_->routes[slot.chunk.layer].scheme != Scheme::kFactor;
    if (takes_rounds && (oldest == nullptr || slot.round < oldest->round)) {
      oldest = &slot;
    }
  }
  if (oldest == nullptr) return std::nullopt;
  return OpenRound{oldest->chunk.layer, oldest->round,
                   oldest->aggregation.MissingContributors()};
}

const Buffer& Shard::parameters(int layer, int chunk) const {
  FrameHeader header;
  header.layer = static_cast<uint32_t>(layer);
  header.chunk = static_cast<uint32_t>(chunk);
  const auto found = FindSlot(header);
  NEREUS_CHECK(found.ok()) << found.status();
  return slots_[*found].parameters;
}

}  // namespace nereus
