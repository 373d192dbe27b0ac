// Read in this order: a header of a worker is checked (OnWorkerHeader), its
// frame counts (OnWorkerFrame), a complete round closes (CompleteIfDecided,
// CloseUnlessAwaited, Close, OpenNext), and workers get answers (Answer). The
// parts for the backup, for partial rounds and for new epochs follow.
//
// The state diagram is in the header. Every transition of `phase_` is in
// CompleteIfDecided, CloseUnlessAwaited, OpenNext or Reopen.

#include "server/shard/chunk_rounds.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/compute/blocks.h"

namespace nereus {

ChunkRounds::ChunkRounds(const ShardEpoch* epoch, RoundSaver* saver,
                         CopyChecksums* checksums, int index,
                         const Chunk& chunk)
    : epoch_(*epoch),
      saver_(*saver),
      checksums_(*checksums),
      index_(index),
      full_(/*contributors=*/1, epoch->job->GridOf(chunk),
            epoch->job->options.deterministic ? SumOrder::kRank
                                              : SumOrder::kArrival),
      partial_(chunk.length),
      replica_(epoch, &held_) {
  held_.chunk = chunk;
  Reopen();
}

// Headers of workers.

absl::StatusOr<Landing> ChunkRounds::OnWorkerHeader(const FrameHeader& header,
                                                    int position) const {
  if (header.kind == FrameKind::kPull) return OnPullHeader(header, position);
  if (header.kind == FrameKind::kOwned) {
    return saver_.OnOwnedHeader(index_, held_, header, position);
  }
  if (header.kind != FrameKind::kContribution) {
    return RefuseFrame(header,
                       "shards take contributions, pulls and owned layers");
  }
  if (epoch_.IsPartial(header.round)) {
    return partial_.OnHeader(*epoch_.job, header, position,
                             requests_.repeated[position]);
  }
  const int contributor = NEREUS_TRY(FindContributor(header, position));
  const int64_t frame = NEREUS_TRY(full_.Find(header));
  if (header.round < round_ || phase_ != Phase::kCollecting) {
    return Landing::Discard();
  }
  NEREUS_TRY(full_.Check(contributor, frame, header));
  return full_.Has(contributor, frame) ? Landing::Discard()
                                       : Landing::Scratch();
}

// A contribution to a closed round is no error: in a new epoch a worker
// contributes again, because it does not know which rounds have closed.
absl::StatusOr<int> ChunkRounds::FindContributor(const FrameHeader& header,
                                                 int position) const {
  const Job& job = *epoch_.job;
  const bool initial = header.round == kInitialRound;
  const int32_t rank = job.workers[position].rank;
  const Lineup& lineup = job.LineupOf(header.round);
  const int host = initial ? 0 : lineup.HostOf(rank);
  std::string why;
  if (header.round > round_) {
    why = absl::StrCat("round ", round_, " is open");
  } else if (initial && position != 0) {
    why = absl::StrCat("worker ", job.workers.front().rank,
                       " alone sends the initial parameters");
  } else if (!initial && !uses_servers()) {
    why = absl::StrCat("layer ", job.layers[header.layer].name,
                       " is exchanged by workers without the servers");
  } else if (!initial && host < 0) {
    why = absl::StrCat("this worker takes part from round ",
                       job.workers[position].first_step, " on");
  } else if (!initial &&
             epoch_.CarrierOf(held_.chunk, header.round, host) != rank) {
    why = absl::StrCat(job.NameOf(PeerId::Worker(
                           epoch_.CarrierOf(held_.chunk, header.round, host))),
                       " sends the sum of that host");
  }
  if (!why.empty()) return RefuseFrame(header, why);
  return host;
}

absl::StatusOr<Landing> ChunkRounds::OnPullHeader(const FrameHeader& header,
                                                  int position) const {
  const Job& job = *epoch_.job;
  if (header.payload_bytes != 0 || header.offset != 0 ||
      header.part != kValuesPart) {
    return RefuseFrame(header,
                       "a pull must have no payload, offset 0 and part 0");
  }
  if (header.round <= requests_.pulled[position]) return Landing::Discard();
  const EpochWorker& asker = job.workers[position];
  if (uses_servers() && header.round >= asker.first_step) {
    if (!job.partial() && header.round <= round_) {
      // In a new epoch a worker asks for a result that it may have lost. If no
      // answer is due (WasComplete), the request is discarded. A round before
      // the last closed one is no error: the sender contributes through the
      // carrier of its host, whose frames may overtake this request.
      return WasComplete(header.round) ? Landing::Scratch()
                                       : Landing::Discard();
    }
  }
  if (header.round != asker.first_step - 1) {
    return RefuseFrame(header, "this worker takes part from round ",
                       asker.first_step, " on, and round ", round_, " is open");
  }
  if (epoch_.Updates(layer()) || header.round == job.history.base_round) {
    return Landing::Scratch();
  }
  return RefuseFrame(header, "this server has the values of round ",
                     job.history.base_round);
}

// If a round was complete when the epoch began, the server sends its result
// only to workers that ask. A worker asks together with its first contribution
// of an epoch. The server sends the results of all other rounds to all carriers
// unasked.
bool ChunkRounds::WasComplete(int64_t round) const {
  const uint64_t epoch = epoch_.job->epoch;
  const bool closed = round == round_ - 1 && held_.closed_in < epoch;
  const bool closing =
      round == round_ && phase_ != Phase::kCollecting && completed_in_ < epoch;
  return closed || closing;
}

// Frames of workers.

void ChunkRounds::OnWorkerFrame(const Frame& frame, int position, Outbox& out) {
  const Job& job = *epoch_.job;
  const FrameHeader& header = frame.header;
  const int rank = job.workers[position].rank;
  if (header.kind == FrameKind::kPull) {
    requests_.pulled[position] = header.round;
    return Answer({rank, header.round}, out);
  }
  if (header.kind == FrameKind::kOwned) {
    return saver_.OnOwnedFrame(index_, frame, out);
  }
  if (epoch_.IsPartial(header.round))
    return OnPartialFrame(frame, position, out);
  full_.Add(*FindContributor(header, position), header, AddendOf(frame, rank),
            out);
  CompleteIfDecided(out);
}

// A carrier with mates has checked the parts of its sum for NaNs itself. The
// server checks the contributions of all other workers.
Addend ChunkRounds::AddendOf(const Frame& frame, int rank) const {
  const FrameHeader& header = frame.header;
  const Job& job = *epoch_.job;
  Addend addend(frame);
  if (job.checks_contributions() && header.round != kInitialRound &&
      !is_block_layer() &&
      (job.partial() || job.LineupOf(header.round).IsAlone(rank))) {
    addend.check = ValueCheck{layer(), header.round, rank,
                              held_.chunk.offset + header.offset};
  }
  return addend;
}

// Closing.

void ChunkRounds::CompleteIfDecided(Outbox& out) {
  if (phase_ != Phase::kCollecting || !full_.complete()) return;
  const Job& job = *epoch_.job;
  const bool update = epoch_.serves() && round_ != kInitialRound;
  if (update && job.votes()) {
    const std::optional<bool> skipped = epoch_.verdicts.Skipped(round_);
    if (!skipped.has_value()) return;
    skipped_ =
        *skipped && job.options.optimizer_place == OptimizerPlace::kServer;
  }
  phase_ = Phase::kClosing;
  completed_in_ = job.epoch;
  scale_ = update ? job.MeanScale(round_) : 1.0f;
  if (epoch_.has_backup() && scale_ != 1.0f) {
    // Scales the sum before it is sent. So the backup need not know how many
    // workers have contributed.
    full_.Scale(scale_, out);
    scale_ = 1.0f;
  }
  CloseUnlessAwaited(out);
}

// Sends the backup the mean once in an epoch, and waits for its kHave.
void ChunkRounds::CloseUnlessAwaited(Outbox& out) {
  if (phase_ == Phase::kCollecting) return;
  if (!replica_.DelaysClosing()) return Close(out);
  if (replica_.state() != ChunkReplica::State::kCurrent ||
      phase_ == Phase::kOffered) {
    return;
  }
  phase_ = Phase::kOffered;
  replica_.SendMean(round_, full_, skipped_, out);
}

// The initial round has no result to send: workers pull the parameters.
void ChunkRounds::Close(Outbox& out) {
  const Job& job = *epoch_.job;
  if (round_ == kInitialRound) {
    held_.Begin(full_.ExchangeSum(Buffer()),
                epoch_.Updates(layer())
                    ? OptimizerStateCount(job.options.optimizer.rule)
                    : 0);
    return OpenNext(out);
  }
  Buffer result;
  held_.closed_frames = full_.chosen_frames();
  if (job.options.optimizer_place == OptimizerPlace::kServer) {
    if (!skipped_) held_.UpdateFrom(job, round_, full_, scale_, out);
    result = held_.parameters;
  } else {
    result = full_.ExchangeSum(std::move(held_.mean));
    held_.mean = result;
    if (scale_ != 1.0f) out.Add(ScaleValues{result, scale_});
  }
  // The contributors wait for the result, so it is sent unasked. If the round
  // was complete in an earlier epoch, workers ask for the result instead.
  if (epoch_.serves() && completed_in_ == job.epoch) {
    held_.Broadcast(epoch_, round_, epoch_.CarriersOf(held_.chunk, round_),
                    result, out);
  }
  if (epoch_.serves() && epoch_.Updates(layer())) {
    saver_.Collect(index_, round_, held_, out);
  }
  Compare(round_, out);
  OpenNext(out);
}

// The backup closes rounds only while it follows the primary.
void ChunkRounds::Compare(int64_t round, Outbox& out) {
  if (epoch_.serves() && replica_.state() != ChunkReplica::State::kCurrent) {
    return;
  }
  checksums_.Compute(index_, round, held_, out);
}

void ChunkRounds::CompareLast(int64_t round, Outbox& out) {
  if (round_ == round + 1) Compare(round, out);
}

void ChunkRounds::OpenNext(Outbox& out) {
  held_.closed_in = completed_in_;
  phase_ = Phase::kCollecting;
  skipped_ = false;
  ++round_;
  ReopenRound();
  AnswerWaiting(out);
}

// Answers.

void ChunkRounds::Answer(PullRequest request, Outbox& out) {
  const Job& job = *epoch_.job;
  const RoundOptions& options = job.options.rounds;
  const int64_t steps_ahead =
      options.quorum == Quorum::kEach ? options.staleness : 0;
  const bool is_closed =
      round_ > kInitialRound && request.round - steps_ahead < round_;
  // In partial rounds a worker gets no answer before its own contribution has
  // counted: the answer ends the step for the worker, which would then not send
  // the rest of its contribution.
  const int position = job.PositionOf(request.rank);
  const bool counts = !job.partial() ||
                      request.round < job.workers[position].first_step ||
                      partial_.counted(request.rank) >= request.round;
  // If the open round was complete in an earlier epoch, it closes soon. All
  // requests wait until it has closed: no worker needs the values from before
  // it, and so all workers that join get equal values.
  const bool closes_soon =
      phase_ != Phase::kCollecting && completed_in_ < job.epoch;
  if (is_closed && counts && !closes_soon && replica_.AllowsShowing()) {
    held_.SendValues(epoch_, request, out);
  } else {
    requests_.waiting.push_back(request);
  }
}

void ChunkRounds::AnswerWaiting(Outbox& out) {
  for (const PullRequest& request : std::exchange(requests_.waiting, {})) {
    Answer(request, out);
  }
}

// The other server.

absl::StatusOr<Landing> ChunkRounds::OnServerHeader(
    const FrameHeader& header) const {
  if (!epoch_.serves()) return replica_.OnPrimaryHeader(header, round_, full_);
  const bool offered = phase_ == Phase::kOffered;
  const bool may_close = phase_ != Phase::kCollecting &&
                         (offered || completed_in_ < epoch_.job->epoch);
  return replica_.OnHaveHeader(header, round_, may_close, offered);
}

void ChunkRounds::OnServerFrame(const Frame& frame, Outbox& out) {
  const FrameHeader& header = frame.header;
  if (header.kind == FrameKind::kHave) return OnHave(header.round, out);
  if (header.kind == FrameKind::kVerdict) {
    skipped_ = true;
    completed_in_ = epoch_.job->epoch;
    Close(out);
  } else if (header.kind == FrameKind::kAggregate) {
    full_.Add(0, header, Addend(frame), out);
    if (!full_.complete()) return;
    // The primary need not wait for the update here: with the mean, this server
    // has the round.
    replica_.SayHave(round_ + 1, out);
    return CompleteIfDecided(out);
  } else {
    const std::optional<ChunkCopy> copy = replica_.OnCopyFrame(frame, out);
    if (!copy.has_value()) return;
    held_.parameters = copy->parameters();
    held_.state = copy->state();
    held_.mean = copy->average();
    round_ = copy->round() + 1;
    held_.closed_in = epoch_.job->epoch;
    ReopenRound();
  }
  replica_.SayHave(round_, out);
}

void ChunkRounds::OnHave(int64_t round, Outbox& out) {
  replica_.OnHave(round, round_);
  if (replica_.state() != ChunkReplica::State::kCurrent) return;
  const bool closed = round > round_;
  // Answers requests that have waited for the backup to become current.
  // Requests for the open round keep waiting; Close answers them.
  AnswerWaiting(out);
  if (closed) {
    Close(out);
  } else {
    CloseUnlessAwaited(out);
  }
}

void ChunkRounds::SendToBackup(Outbox& out) { replica_.SendChunk(round_, out); }

// Partial rounds.

void ChunkRounds::OnPartialFrame(const Frame& frame, int position,
                                 Outbox& out) {
  const int rank = epoch_.job->workers[position].rank;
  const int64_t step = frame.header.round;
  if (step > partial_.counted(rank)) {
    const bool whole =
        partial_.Add(rank, step, frame.header.offset / kFrameElementsMax,
                     AddendOf(frame, rank), out);
    if (!whole) return;
    AdvancePartial(out);
  }
  requests_.repeated[position] = step;
  Answer({rank, step}, out);
}

// With Quorum::kEach each contribution updates the parameters by itself;
// otherwise a round makes one update.
void ChunkRounds::AdvancePartial(Outbox& out) {
  if (round_ == kInitialRound || epoch_.frozen) return;
  const Job& job = *epoch_.job;
  const bool each = job.options.rounds.quorum == Quorum::kEach;
  const auto update = [&] {
    partial_.Settle(out);
    held_.Update(job, round_, partial_updates_++, partial_.sum(),
                 each ? 1.0f / static_cast<float>(job.worker_count())
                      : job.MeanScale(round_),
                 out);
    partial_.Clear();
  };
  const auto advance = [&] {
    saver_.Collect(index_, round_, held_, out);
    ++round_;
  };
  if (each && partial_.whole()) update();
  // Passes over rounds in which no worker takes part any more: the workers that
  // took part in them are gone.
  while (round_ < job.workers.front().first_step) advance();
  while (partial_.Awaited(job, round_).empty()) {
    if (!each) update();
    advance();
  }
  AnswerWaiting(out);
}

// Epochs.

// Checkpoints lack the block layer: it begins with all blocks chosen.
bool ChunkRounds::Restore() {
  const Job& job = *epoch_.job;
  held_.Allocate(job.state_arrays);
  round_ = job.history.base_round + 1;
  partial_updates_ = round_;
  Reopen();
  if (!is_block_layer()) return true;
  std::fill_n(held_.parameters.floats(), held_.chunk.length, kFirstChoice);
  std::fill_n(held_.state.floats(), held_.state.float_count(), 0.0f);
  return false;
}

// A layer that workers owned gets the values that they have handed over. A
// layer that they own from now on keeps its values as of the switch round.
void ChunkRounds::Reroute(const Job& before) {
  const bool moves = epoch_.job->history.base_round == before.switch_round;
  const bool used = UsesServers(before.routes[layer()].scheme);
  const bool uses = uses_servers();
  const auto& handed_over = saver_.handed_over();
  if (moves && !used && handed_over.has_value()) {
    held_.parameters = handed_over->values[index_].parameters;
    held_.state = handed_over->values[index_].state;
  }
  // Opens the round after the switch round. The backup's kHave names an earlier
  // round, so the primary sends the backup these values.
  if (!used && (moves || uses)) round_ = before.switch_round + 1;
  if (used == uses) return;
  // If nothing moves, the workers run the optimizer. A layer that comes to the
  // servers then needs a mean of the last round, which only the workers have:
  // zeros stand for it here.
  held_.mean = !uses || moves ? Buffer()
                              : Buffer::AllocateLike(held_.parameters,
                                                     held_.parameters.bytes());
}

void ChunkRounds::Reopen() {
  const Job& job = *epoch_.job;
  // On a server that has become the backup, the open round begins again: the
  // primary may send it another mean.
  const bool stays = phase_ != Phase::kCollecting && epoch_.serves();
  phase_ = stays ? Phase::kClosing : Phase::kCollecting;
  if (!stays) {
    skipped_ = false;
    // If all workers that took part in the open round of the block layer are
    // gone, the round is passed over, and the last choice of blocks stays.
    if (epoch_.serves() && is_block_layer() && round_ != kInitialRound &&
        !job.workers.empty()) {
      round_ = std::max(round_, job.workers.front().first_step);
    }
    ReopenRound();
  }
  replica_.Reset();
  const std::vector<int64_t> none(job.workers.size(), kInitialRound - 1);
  requests_ = {none, none, {}};
  if (job.partial()) partial_.SetWorkers(job.workers);
}

void ChunkRounds::Enter(Outbox& out) {
  if (!epoch_.serves()) replica_.SayHave(round_, out);
  CloseUnlessAwaited(out);
  if (epoch_.job->partial()) AdvancePartial(out);
}

void ChunkRounds::ReopenRound() {
  const Job& job = *epoch_.job;
  // full_ has one contributor in the initial round (the first worker) and on a
  // backup (the primary). A job with partial rounds, and a layer that workers
  // exchange without the servers, use full_ in the initial round only. In later
  // rounds it has one contributor that never sends: the line-up of `round_` may
  // be empty, because `round_` may be before the first step of every worker.
  const bool one = round_ == kInitialRound || job.partial() ||
                   !uses_servers() || !epoch_.serves();
  full_.Reopen(one ? 1 : job.LineupOf(round_).hosts(),
               round_ != kInitialRound && job.IsSparse(layer()));
}

void ChunkRounds::SaveLast(int64_t round, Outbox& out) {
  const Job& job = *epoch_.job;
  // True if this chunk has the values: the shards have all layers as of the
  // base round, and layers that they update as of the last closed round. With a
  // partial quorum, the job's last round may stay open because it waits for a
  // worker that has left: then the current values are the last ones.
  const bool is_here =
      round == job.history.base_round ||
      (epoch_.Updates(layer()) && (job.partial() || round_ == round + 1));
  if (is_here) {
    saver_.Collect(index_, round, held_, out);
  } else if (!is_block_layer()) {
    saver_.CollectHandedOver(index_, round, out);
  }
}

// Descriptions.

std::vector<int> ChunkRounds::MissingWorkers() const {
  const Job& job = *epoch_.job;
  if (epoch_.IsPartial(round_)) return partial_.Awaited(job, round_);
  std::vector<int> missing = full_.MissingContributors();
  if (round_ == kInitialRound || !epoch_.serves()) return missing;
  for (int& each : missing)
    each = job.PositionOf(epoch_.CarrierOf(held_.chunk, round_, each));
  return missing;
}

int64_t ChunkRounds::held_bytes() const {
  return held_.stored_bytes() + held_.mean.bytes() + full_.held_bytes() +
         partial_.held_bytes() + replica_.held_bytes();
}

}  // namespace nereus
