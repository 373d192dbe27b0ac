#include "server/shard/shard.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/compute/blocks.h"

namespace nereus {
namespace {

absl::Status Refuse(const FrameHeader& header, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(DescribeFrame(header), ": ", why));
}

// The first of the shard's chunks: all but that of the block layer.
std::vector<Chunk> SavedChunksOf(const Job& job, int shard) {
  std::vector<Chunk> chunks;
  for (const Chunk& chunk : job.placement.chunks()) {
    if (chunk.shard == shard && chunk.layer != job.block_layer) {
      chunks.push_back(chunk);
    }
  }
  return chunks;
}

}  // namespace

Shard::Shard(JobPtr job, int index, PeerId self)
    : self_(self),
      index_(index),
      job_(std::move(job)),
      collector_(SavedChunksOf(*job_, index), job_->state_arrays) {
  verdicts_.Add(job_->verdicts);
  const auto chunks = job_->placement.chunks();
  slot_of_chunk_.assign(chunks.size(), -1);
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].shard != index) continue;
    slot_of_chunk_[i] = static_cast<int>(slots_.size());
    AggregationRound aggregation(/*contributors=*/1, job_->GridOf(chunks[i]),
                                 sum_order());
    Slot slot(std::move(aggregation), chunks[i].length);
    slot.chunk = chunks[i];
    Reopen(slot);
    slots_.push_back(std::move(slot));
  }
}

void Shard::Start(Outbox& out) {
  // A copy that is not whole yet is sent everything.
  const bool has_base = serves() || servers().backup_is_current;
  if (has_base && job_->base_round != kInitialRound) Load(out);
  Enter(out);
}

void Shard::Load(Outbox& out) {
  LoadCheckpoint load;
  load.round = job_->base_round;
  for (Slot& slot : slots_) {
    const int64_t bytes =
        slot.chunk.length * static_cast<int64_t>(sizeof(float));
    slot.parameters = Buffer::Allocate(bytes);
    slot.state = Buffer::Allocate(bytes * job_->state_arrays);
    slot.round = job_->base_round + 1;
    slot.updates = slot.round;
    Reopen(slot);
    if (slot.chunk.layer == job_->block_layer) {
      std::fill_n(slot.parameters.floats(), slot.chunk.length, kFirstChoice);
      std::fill_n(slot.state.floats(), slot.state.float_count(), 0.0f);
      continue;
    }
    load.values.push_back({slot.chunk.layer, slot.chunk.offset,
                           slot.chunk.length, slot.parameters, slot.state});
  }
  if (!load.values.empty()) out.Add(std::move(load));
}

std::optional<int64_t> Shard::closed_round() const {
  std::optional<int64_t> closed;
  for (const Slot& slot : slots_) {
    // Workers are done with a step before all have said what is to travel next.
    const bool counts = slot.chunk.layer != job_->block_layer &&
                        UsesServers(job_->routes[slot.chunk.layer].scheme);
    if (!counts) continue;
    const int64_t last = std::max(slot.round - 1, kInitialRound);
    closed = std::min(closed.value_or(last), last);
  }
  return closed;
}

bool Shard::drained() const {
  if (!job_->switches()) return false;
  bool all_owned_here = true;
  for (const Slot& slot : slots_) {
    const bool rounds = UsesServers(job_->routes[slot.chunk.layer].scheme);
    if (rounds && slot.round <= job_->switch_round) return false;
    all_owned_here = all_owned_here && updates_here(slot);
  }
  return all_owned_here || !job_->hands_over() || handed_over_.has_value();
}

MachineReport Shard::Report() const {
  MachineReport report;
  const std::optional<int64_t> closed = closed_round();
  if (closed.has_value()) report.closed_rounds[index_] = *closed;
  return report;
}

void Shard::Enter(Outbox& out) {
  for (Slot& slot : slots_) {
    if (!serves()) SayWhatIsHere(slot, out);
    CloseUnlessAwaited(slot, out);
    if (job_->partial()) AdvancePartial(slot, out);
  }
}

void Shard::OnEpoch(JobPtr job, Outbox& out) {
  const bool served = serves();
  const JobPtr before = std::exchange(job_, std::move(job));
  last_sender_ = -1;
  frozen_ = false;
  verdicts_.Add(job_->verdicts);
  if (serves() != served) collector_.Clear();
  if (served && job_->routes != before->routes) Reroute(*before);
  handed_over_.reset();
  behind_ = 0;
  copying_ = false;
  for (Slot& slot : slots_) Reopen(slot);
  Enter(out);
}

void Shard::SaveLast(int64_t round, int32_t sender, Outbox& out) {
  if (!serves()) return;
  last_sender_ = sender;
  if (saved_round_ == round) return;  // As a checkpoint that was due.
  if (!job_->IsCheckpoint(round)) {
    auto job = std::make_shared<Job>(*job_);
    job->checkpoint_round = round;
    job_ = std::move(job);
  }
  collector_.Reopen(round);
  for (size_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    if (slot.chunk.layer == job_->block_layer) continue;
    if (IsHereAsOf(round, slot)) {
      OnCollected(collector_.Add(static_cast<int>(index), round,
                                 slot.parameters, slot.state),
                  out);
    } else if (handed_over_.has_value() && handed_over_->round == round) {
      // It does not come twice.
      const ChunkValues& owned = handed_over_->values[index];
      OnCollected(collector_.Add(static_cast<int>(index), round,
                                 owned.parameters, owned.state),
                  out);
    }
  }
}

bool Shard::IsHereAsOf(int64_t round, const Slot& slot) const {
  // The shards have all layers as of the base round.
  if (round == job_->base_round) return true;
  // With a partial quorum the last round may stay open for a worker that has
  // left; then what is here is what the job has come to.
  return updates_here(slot) && (job_->partial() || slot.round == round + 1);
}

void Shard::Reroute(const Job& before) {
  const bool moves = job_->base_round == before.switch_round;
  for (size_t index = 0; index < slots_.size(); ++index) {
    Slot& slot = slots_[index];
    const int layer = slot.chunk.layer;
    const bool passed = !UsesServers(before.routes[layer].scheme);
    const bool passes = !UsesServers(job_->routes[layer].scheme);
    if (moves && passed && handed_over_.has_value()) {
      slot.parameters = std::move(handed_over_->values[index].parameters);
      slot.state = std::move(handed_over_->values[index].state);
    }
    // A copy is sent what changes so.
    if (passed && (moves || !passes)) slot.round = before.switch_round + 1;
    if (passed == passes) continue;
    // All have the last one.
    slot.average =
        passes || moves
            ? Buffer()
            : Buffer::AllocateLike(slot.parameters, slot.parameters.bytes());
  }
}

void Shard::Reopen(Slot& slot) const {
  // A server that has become the copy may be told other contributions.
  slot.closing = slot.closing && serves();
  if (!slot.closing) {
    LeaveChoice(slot);
    ReopenRound(slot);
  }
  slot.copy = CopyState::kUnknown;
  slot.offered = false;
  slot.incoming = ChunkCopy();
  slot.pulled.assign(job_->workers.size(), kInitialRound - 1);
  slot.repeated.assign(job_->workers.size(), kInitialRound - 1);
  slot.early_pulls.clear();
  if (job_->partial()) slot.partial.SetWorkers(job_->workers);
}

void Shard::ReopenRound(Slot& slot) const {
  slot.aggregation.Reopen(
      ContributorsOf(slot),
      slot.round != kInitialRound && job_->IsSparse(slot.chunk.layer));
}

int Shard::ContributorsOf(const Slot& slot) const {
  // The initial parameters come from one worker. Layers between workers have
  // no other round here, and may outlive all who took part in it; so has a
  // partial quorum, whose sum is elsewhere.
  const bool initial = slot.round == kInitialRound || job_->partial() ||
                       !UsesServers(job_->routes[slot.chunk.layer].scheme);
  return initial || !serves() ? 1 : job_->ContributorsOf(slot.round);
}

SumOrder Shard::sum_order() const {
  return job_->options.deterministic ? SumOrder::kRank : SumOrder::kArrival;
}

absl::StatusOr<int> Shard::FindSlot(const FrameHeader& header) const {
  NEREUS_ASSIGN_OR_RETURN(const Chunk chunk, FindChunk(*job_, header));
  if (chunk.shard != index_) {
    return Refuse(header, absl::StrCat("the chunk is shard ", chunk.shard,
                                       "'s, this is shard ", index_));
  }
  const auto all = job_->placement.chunks();
  const auto first = job_->placement.layer_chunks(chunk.layer).data();
  const int64_t position = first - all.data() + chunk.index;
  return slot_of_chunk_[position];
}

absl::StatusOr<Landing> Shard::OnOwnedHeader(const Slot& slot,
                                             const FrameHeader& header,
                                             int position) const {
  // The coordinator may tell the sender of the last round before this shard;
  // and another one, if the first is gone.
  const bool is_early = last_sender_ == -1 && job_->options.has_checkpoints &&
                        header.round > job_->base_round &&
                        (position != 0 || !job_->IsSaved(header.round));
  if (is_early && !updates_here(slot)) return Landing::Wait();
  const bool is_senders = position == 0 || last_sender_ != -1;
  if (updates_here(slot) || !is_senders || !job_->IsSaved(header.round) ||
      header.part >= collector_.parts()) {
    return Refuse(header,
                  "the first worker sends layers that workers own, as of the "
                  "rounds that checkpoints are made of, or a plan's last");
  }
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame,
                          FrameIndex(header, slot.chunk.length));
  const auto index = static_cast<int>(&slot - slots_.data());
  return collector_.Has(index, header.round, header.part, frame)
             ? Landing::Discard()
             : Landing::Scratch();
}

absl::Status Shard::CheckContribution(const Slot& slot,
                                      const FrameHeader& header,
                                      int position) const {
  if (header.round > slot.round) {
    return Refuse(header, absl::StrCat("round ", slot.round, " is open"));
  }
  if (header.round == kInitialRound) {
    if (position == 0) return absl::OkStatus();
    return Refuse(header, absl::StrCat("the initial parameters are worker ",
                                       job_->workers.front().rank, "'s"));
  }
  if (!UsesServers(job_->routes[header.layer].scheme)) {
    return Refuse(header,
                  absl::StrCat("layer ", job_->layers[header.layer].name,
                               " goes between the workers"));
  }
  if (position >= job_->ContributorsOf(header.round)) {
    return Refuse(header,
                  absl::StrCat("this worker takes part from round ",
                               job_->workers[position].first_step, " on"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Landing> Shard::OnPullHeader(const Slot& slot,
                                            const FrameHeader& header,
                                            int position) const {
  if (header.payload_bytes != 0 || header.offset != 0 ||
      header.part != kValuesPart) {
    return Refuse(header, "a pull has no payload, no offset and part 0");
  }
  // Once: a worker that only asked would fill the queue of what it is owed.
  if (header.round <= slot.pulled[position]) return Landing::Discard();
  if (MayGather(slot, header, position)) return Landing::Scratch();
  if (header.round != job_->workers[position].first_step - 1) {
    return Refuse(header, absl::StrCat("this worker takes part from round ",
                                       job_->workers[position].first_step,
                                       " on, round ", slot.round, " is open"));
  }
  if (updates_here(slot) || header.round == job_->base_round) {
    return Landing::Scratch();
  }
  return Refuse(header, absl::StrCat("the values held here are of round ",
                                     job_->base_round));
}

bool Shard::MayGather(const Slot& slot, const FrameHeader& header,
                      int position) const {
  const bool takes_part = job_->decoupled() &&
                          UsesServers(job_->routes[slot.chunk.layer].scheme) &&
                          header.round >= job_->workers[position].first_step;
  if (job_->partial()) {
    // It may ask before all of its contribution is here.
    return takes_part && header.round <= CountedOf(slot, position) + 1;
  }
  return takes_part && header.round >= slot.round - 1 &&
         header.round <= slot.round;
}

absl::StatusOr<Landing> Shard::OnHeader(PeerId from,
                                        const FrameHeader& header) const {
  NEREUS_RETURN_IF_ERROR(CheckFrame(*job_, from, header));
  NEREUS_ASSIGN_OR_RETURN(const int index, FindSlot(header));
  const Slot& slot = slots_[index];
  absl::StatusOr<Landing> landing = FindLanding(from, slot, header);
  if (landing.ok() && Ignores(header.kind)) return Landing::Discard();
  return landing;
}

absl::StatusOr<Landing> Shard::FindLanding(PeerId from, const Slot& slot,
                                           const FrameHeader& header) const {
  if (from.role == Role::kShard && servers().backup != -1) {
    return OnServerHeader(from, slot, header);
  }
  const int position =
      from.role == Role::kWorker ? job_->PositionOf(from.rank) : -1;
  if (position < 0) return Refuse(header, "must be a worker's");
  if (!serves()) return Refuse(header, "this is the shard's copy");
  return OnWorkerHeader(slot, header, position);
}

absl::StatusOr<Landing> Shard::OnWorkerHeader(const Slot& slot,
                                              const FrameHeader& header,
                                              int position) const {
  if (header.kind == FrameKind::kPull) {
    return OnPullHeader(slot, header, position);
  }
  if (header.kind == FrameKind::kOwned) {
    return OnOwnedHeader(slot, header, position);
  }
  if (header.kind != FrameKind::kContribution) {
    return Refuse(header, "shards take contributions, pulls and owned layers");
  }
  if (job_->partial() && header.round != kInitialRound) {
    return OnPartialHeader(slot, header, position);
  }
  NEREUS_RETURN_IF_ERROR(CheckContribution(slot, header, position));
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame, slot.aggregation.Find(header));
  if (AsksAgain(slot, header, position)) return Landing::Scratch();
  if (header.round < slot.round || slot.closing) return Landing::Discard();
  NEREUS_RETURN_IF_ERROR(slot.aggregation.Check(position, frame, header));
  return slot.aggregation.Has(position, frame) ? Landing::Discard()
                                               : Landing::Scratch();
}

bool Shard::AsksAgain(const Slot& slot, const FrameHeader& header,
                      int position) const {
  const bool before =
      header.round == slot.round - 1 && slot.closed_in < job_->epoch;
  const bool closing = header.round == slot.round && slot.closing &&
                       slot.completed_in < job_->epoch;
  // Once, by its first frame, which of a sparse layer is any.
  const bool first = header.offset == 0 || job_->IsSparse(slot.chunk.layer);
  return !job_->decoupled() && (before || closing) && first &&
         header.round > slot.repeated[position];
}

void Shard::OnFrame(PeerId from, const Frame& frame, Outbox& out) {
  const auto found = FindSlot(frame.header);
  NEREUS_CHECK(found.ok()) << found.status();
  if (Ignores(frame.header.kind)) return;
  Slot& slot = slots_[*found];
  if (from.role == Role::kShard) return OnServerFrame(slot, frame, out);
  const int position = job_->PositionOf(from.rank);
  if (frame.header.kind == FrameKind::kPull) {
    slot.pulled[position] = frame.header.round;
    Pull(slot, {from.rank, frame.header.round}, out);
    return;
  }
  if (frame.header.kind == FrameKind::kOwned) {
    OnCollected(
        collector_.AddFrame(*found, frame.header.round, frame.header.part,
                            frame.header.offset / kFrameElementsMax,
                            frame.payload, out),
        out);
    return;
  }
  if (job_->checks_contributions() && frame.header.round != kInitialRound &&
      slot.chunk.layer != job_->block_layer) {
    out.Add(CheckValues{frame.payload, slot.chunk.layer, frame.header.round,
                        from.rank, slot.chunk.offset + frame.header.offset});
  }
  if (job_->partial() && frame.header.round != kInitialRound) {
    return OnPartialFrame(slot, frame, position, out);
  }
  if (frame.header.round < slot.round || slot.closing) {
    slot.repeated[position] = frame.header.round;
    Pull(slot, {from.rank, frame.header.round}, out);
    return;
  }
  slot.aggregation.Add(position, frame.header, frame.payload, out);
  CompleteIfSettled(slot, out);
}

FrameHeader Shard::ResultHeader(const Slot& slot, int64_t round) const {
  return MakeHeader(*job_, self_, FrameKind::kResult, slot.chunk.layer,
                    slot.chunk.index, round);
}

void Shard::Pull(Slot& slot, EarlyPull pull, Outbox& out) {
  // A round that has all its contributions from an earlier epoch is closed
  // soon. Then nobody needs what was before it, and all that begin have the
  // same.
  const bool closes = slot.closing && slot.completed_in < job_->epoch;
  if (closes || !MayHave(slot, pull) || !MayShow(slot)) {
    slot.early_pulls.push_back(pull);
  } else {
    SendValues(slot, pull.rank, pull.round, out);
  }
}

void Shard::ServeEarlyPulls(Slot& slot, Outbox& out) {
  for (const EarlyPull& pull : std::exchange(slot.early_pulls, {})) {
    Pull(slot, pull, out);
  }
}

void Shard::SendValues(const Slot& slot, int rank, int64_t round,
                       Outbox& out) const {
  const bool averages =
      job_->options.optimizer_place == OptimizerPlace::kWorker &&
      round > job_->base_round;
  const auto send = [&](Frame frame) {
    out.Add(SendFrame{PeerId::Worker(rank), std::move(frame)});
  };
  FrameHeader header = ResultHeader(slot, round);
  const int position = job_->PositionOf(rank);
  if (position >= 0 && round >= job_->workers[position].first_step) {
    SendResult(slot, slot.closed_in != job_->epoch, header,
               averages ? slot.average : slot.parameters, send);
  } else {
    CutIntoFrames(*job_, header, job_->GridOf(slot.chunk),
                  averages ? slot.average : slot.parameters, send);
  }
  // What workers own, and have restored, has a state.
  if (averages || updates_here(slot)) return;
  const int64_t bytes = slot.parameters.bytes();
  for (int64_t start = 0; start < slot.state.bytes(); start += bytes) {
    ++header.part;
    CutIntoFrames(*job_, header, job_->GridOf(slot.chunk),
                  slot.state.Slice(start, bytes), send);
  }
}

void Shard::OnVerdict(const StepVerdict& verdict, Outbox& out) {
  verdicts_.Add({&verdict, 1});
  for (Slot& slot : slots_) CompleteIfSettled(slot, out);
}

void Shard::CompleteIfSettled(Slot& slot, Outbox& out) {
  if (slot.closing || !slot.aggregation.complete()) return;
  const bool update = serves() && slot.round != kInitialRound;
  if (update && job_->votes()) {
    const std::optional<bool> skipped = verdicts_.Skipped(slot.round);
    if (!skipped.has_value()) return;
    slot.skipped =
        *skipped && job_->options.optimizer_place == OptimizerPlace::kServer;
  }
  slot.closing = true;
  slot.completed_in = job_->epoch;
  slot.scale = update ? job_->MeanScale(slot.round) : 1.0f;
  if (has_copy() && slot.scale != 1.0f) {
    // The copy need not know how many there were.
    ScaleSum(slot, out);
    slot.scale = 1.0f;
  }
  CloseUnlessAwaited(slot, out);
}

void Shard::CloseUnlessAwaited(Slot& slot, Outbox& out) {
  if (!slot.closing) return;
  if (!AwaitsCopy(slot)) return Close(slot, out);
  if (slot.copy != CopyState::kWhole || slot.offered) return;
  slot.offered = true;
  OfferMean(slot, out);
}

void Shard::Close(Slot& slot, Outbox& out) {
  slot.closing = false;
  slot.offered = false;
  if (slot.round == kInitialRound) {
    CloseInitial(slot, out);
    return;
  }
  Buffer result;
  NoteFrames(slot);
  if (job_->options.optimizer_place == OptimizerPlace::kServer) {
    if (!slot.skipped) {
      UpdateFromRound(slot, out);
    }
    result = slot.parameters;
  } else {
    result = slot.aggregation.ExchangeSum(std::move(slot.average));
    slot.average = result;
    if (slot.scale != 1.0f) out.Add(ScaleValues{result, slot.scale});
  }
  // Its contributors wait for it, unless they are those of an earlier epoch: in
  // this one, workers ask.
  if (serves() && slot.completed_in == job_->epoch && !job_->decoupled()) {
    SendResult(slot, /*whole=*/false, ResultHeader(slot, slot.round), result,
               [&](Frame frame) { out.Add(BroadcastFrame{std::move(frame)}); });
    // One that joins wants it whole.
    if (!slot.aggregation.sparse()) slot.early_pulls.clear();
  }
  if (serves() && updates_here(slot)) Collect(slot, slot.round, out);
  slot.skipped = false;
  slot.closed_in = slot.completed_in;
  ++slot.round;
  ReopenRound(slot);
  ServeEarlyPulls(slot, out);
}

void Shard::CloseInitial(Slot& slot, Outbox& out) {
  slot.parameters = slot.aggregation.ExchangeSum(Buffer());
  if (updates_here(slot)) {
    const int64_t floats =
        slot.chunk.length * OptimizerStateCount(job_->options.optimizer.rule);
    slot.state = Buffer::AllocateLike(
        slot.parameters, floats * static_cast<int64_t>(sizeof(float)));
  }
  slot.closed_in = slot.completed_in;
  slot.round = 0;
  ReopenRound(slot);
  ServeEarlyPulls(slot, out);
}

void Shard::Update(Slot& slot, int64_t step, const Buffer& sum, float scale,
                   Outbox& out) {
  Buffer updated = RoomForUpdate(slot, out);
  out.Add(UpdateParameters{job_->options.optimizer, step, scale, sum,
                           slot.parameters, slot.state, updated});
  slot.parameters = std::move(updated);
}

Buffer Shard::RoomForUpdate(Slot& slot, Outbox& out) const {
  // A checkpoint may still be written of the state.
  if (!slot.state.unique() && slot.state.data() != nullptr) {
    const Buffer saved =
        std::exchange(slot.state, Buffer::Allocate(slot.state.bytes()));
    out.Add(CopyValues{slot.state, saved});
  }
  // Frames of the last result may still be on their way to a slow worker: they
  // keep those bytes, and the new parameters get memory of their own.
  return slot.parameters.unique() || slot.parameters.data() == nullptr
             ? slot.parameters
             : Buffer::Allocate(slot.parameters.bytes());
}

void Shard::Collect(const Slot& slot, int64_t round, Outbox& out) {
  const bool saved = slot.chunk.layer != job_->block_layer;
  if (!saved || !job_->IsSaved(round)) return;
  OnCollected(collector_.Add(static_cast<int>(&slot - slots_.data()), round,
                             slot.parameters, slot.state),
              out);
}

void Shard::OnCollected(std::optional<CheckpointCollector::Collected> collected,
                        Outbox& out) {
  if (!collected.has_value()) return;
  if (job_->IsCheckpoint(collected->round) || last_sender_ != -1) {
    saved_round_ = collected->round;
    out.Add(SaveCheckpoint{index_, collected->round, collected->values});
  }
  if (!job_->hands_over() || collected->round != job_->switch_round) return;
  // The other ones are here.
  for (size_t index = 0; index < collected->values.size(); ++index) {
    if (updates_here(slots_[index])) collected->values[index] = {};
  }
  handed_over_ = std::move(collected);
}

int64_t Shard::stored_bytes() const {
  int64_t bytes = 0;
  for (const Slot& slot : slots_) {
    bytes += slot.parameters.bytes() + slot.state.bytes();
  }
  return bytes;
}

int64_t Shard::held_bytes() const {
  int64_t bytes = stored_bytes() + collector_.held_bytes();
  if (handed_over_.has_value()) {
    for (const ChunkValues& values : handed_over_->values) {
      bytes += values.parameters.bytes() + values.state.bytes();
    }
  }
  for (const Slot& slot : slots_) {
    bytes += slot.average.bytes() + slot.aggregation.held_bytes() +
             slot.partial.held_bytes() + slot.incoming.held_bytes();
  }
  return bytes;
}

std::optional<Shard::OpenRound> Shard::oldest_open_round() const {
  const Slot* oldest = nullptr;
  for (const Slot& slot : slots_) {
    const bool takes_rounds =
        slot.round == kInitialRound ||
        UsesServers(job_->routes[slot.chunk.layer].scheme);
    if (takes_rounds && (oldest == nullptr || slot.round < oldest->round)) {
      oldest = &slot;
    }
  }
  if (oldest == nullptr) return std::nullopt;
  OpenRound open{oldest->chunk.layer, oldest->round, {}};
  if (oldest->closing) open.missing_copy = servers().backup;
  const bool partial = job_->partial() && oldest->round != kInitialRound;
  for (const int position : partial
                                ? AwaitedFor(*oldest)
                                : oldest->aggregation.MissingContributors()) {
    open.missing_workers.push_back(job_->workers[position].rank);
  }
  return open;
}

const Shard::Slot& Shard::SlotOf(int layer, int chunk) const {
  FrameHeader header;
  header.layer = static_cast<uint32_t>(layer);
  header.chunk = static_cast<uint32_t>(chunk);
  const auto found = FindSlot(header);
  NEREUS_CHECK(found.ok()) << found.status();
  return slots_[*found];
}

}  // namespace nereus
