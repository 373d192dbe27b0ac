#include "worker/machine/peer_syncer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/protocol/block_update.h"

namespace nereus {
namespace {

int64_t BytesOf(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float));
}

}  // namespace

PeerSyncer::PeerSyncer(JobPtr job, int layer, int rank, LayerMemory memory)
    : Syncer(std::move(job), layer, rank, std::move(memory)) {
  if (!updates_here()) return;
  const int count = OptimizerStateCount(job_->options.optimizer.rule);
  state_ = Buffer::AllocateLike(memory_.parameters,
                                BytesOf(count * spec().parameters));
}

void PeerSyncer::OpenFirstRounds() {
  for (int64_t ahead = 0; ahead < 2; ++ahead) {
    const int64_t round = next_round() + ahead;
    Reserve(RoundAt(round), job_->worker_count());
    Open(RoundAt(round), round);
  }
}

Buffer PeerSyncer::state() const {
  return updates_here() ? state_ : memory_.state;
}

absl::Status PeerSyncer::Refuse(const FrameHeader& header,
                                absl::string_view why) const {
  return absl::InvalidArgumentError(
      absl::StrCat(DescribeFrame(header), ": ", why));
}

void PeerSyncer::Reserve(Round& round, int contributors) const {
  const std::vector<int64_t> elements = MemoryElements(contributors);
  round.memory.resize(elements.size());
  for (size_t i = 0; i < elements.size(); ++i) {
    Buffer& values = round.memory[i];
    // Memory that somebody reads yet is left to him.
    if (values.bytes() >= BytesOf(elements[i]) && values.unique()) continue;
    values = Buffer::AllocateLike(memory_.parameters, BytesOf(elements[i]));
  }
}

void PeerSyncer::Open(Round& round, int64_t number) {
  round.round = number;
  round.sent = false;
  round.contributors = job_->ContributorsOf(number);
  round.missing = MemoryFrames(round.contributors);
  round.arrived.assign(round.missing, false);
  Begin(round);
}

void PeerSyncer::EnterEpoch(Outbox& out) {
  source_.reset();
  served_.assign(job_->workers.size(), false);
  KeepFinished();
  if (position() < 0) return;
  OpenFirstRounds();
  if (fetching()) return;
  for (const FinishedRound& finished : job_->finished_rounds) {
    if (finished.layer != layer_ || finished.round != next_round()) continue;
    Recover(finished, out);
    return;
  }
  if (pushed()) PlaceOwn(out);
}

void PeerSyncer::KeepFinished() {
  if (fetching() || contributors() == 0) return;
  // Another epoch without progress: the memory has been opened for a later
  // round since.
  if (finished_.contributors > 0 && finished_.round == done_round()) return;
  finished_ = RoundAt(done_round());
  finished_.round = done_round();
  finished_.contributors = contributors();
}

void PeerSyncer::Recover(const FinishedRound& finished, Outbox& out) {
  source_ = PeerId::Worker(finished.source);
  Round& round = RoundAt(finished.round);
  Reserve(round, finished.contributors);
  round.contributors = finished.contributors;
  round.missing = MemoryFrames(finished.contributors);
  round.arrived.assign(round.missing, false);
  LeaveOut(round);
  out.Add(SendFrame{*source_,
                    {Header(FrameKind::kPullRound, 0, finished.round), {}}});
}

void PeerSyncer::Contribute(Outbox& out) {
  if (recovers()) return;  // What this worker contributed is in already.
  Round& round = RoundAt(next_round());
  round.sent = true;
  LeaveOut(round);
  SendOwn(out);
  FinishIfComplete(out);
}

void PeerSyncer::BeginGather(Outbox& out) {
  if (RoundAt(next_round()).sent) GatherOwn(out);
  FinishIfComplete(out);
}

absl::StatusOr<Landing> PeerSyncer::OnHeader(const FrameHeader& header) const {
  if (header.kind == FrameKind::kPullRound) return OnPullRoundHeader(header);
  return Carries(header.kind) ? OnRoundHeader(header)
                              : Syncer::OnHeader(header);
}

absl::StatusOr<Landing> PeerSyncer::OnRoundHeader(
    const FrameHeader& header) const {
  if (position() < 0) return Refuse(header, "this worker has left");
  const int64_t next = next_round();
  if (header.round < 0 || header.round > next + 1) {
    return Refuse(
        header, absl::StrCat("rounds ", next, " and ", next + 1, " are open"));
  }
  if (header.round < next) return Landing::Discard();
  if (!recovers() || header.round > next) return PlaceFrame(header);
  if (header.sender != *source_ || header.kind != memory_kind()) {
    return Refuse(header, absl::StrCat("the round comes whole from ",
                                       PeerName(*source_)));
  }
  const Round& round = RoundAt(next);
  NEREUS_ASSIGN_OR_RETURN(const Place place, FindPlace(header, round));
  return round.arrived[place.index] ? Landing::Discard()
                                    : Landing::At(place.values);
}

bool PeerSyncer::Holds(int64_t round) const {
  return std::any_of(job_->finished_rounds.begin(), job_->finished_rounds.end(),
                     [&](const FinishedRound& finished) {
                       return finished.layer == layer_ &&
                              finished.round == round &&
                              finished.source == rank_;
                     });
}

absl::StatusOr<Landing> PeerSyncer::OnPullRoundHeader(
    const FrameHeader& header) const {
  const int asking = job_->PositionOf(header.sender.rank);
  if (asking < 0 || header.payload_bytes != 0 || header.offset != 0 ||
      header.round != finished_.round || !Holds(header.round)) {
    return Refuse(header, "this worker does not hold that round for others");
  }
  return served_[asking] ? Landing::Discard() : Landing::Scratch();
}

void PeerSyncer::OnFrame(const FrameHeader& header, Outbox& out) {
  if (header.kind == FrameKind::kPullRound) {
    served_[job_->PositionOf(header.sender.rank)] = true;
    SendMemory(finished_, header.sender, out);
    return;
  }
  if (!Carries(header.kind)) return Syncer::OnFrame(header, out);
  const bool open = header.round == next_round();
  if (recovers() && open) {
    Round& round = RoundAt(header.round);
    Mark(round, FindPlace(header, round)->index);
  } else {
    TakeFrame(header, out);
  }
  if (!fetching() && open) FinishIfComplete(out);
}

void PeerSyncer::FinishIfComplete(Outbox& out) {
  Round& round = RoundAt(next_round());
  // What is held others need, too.
  if (!pushed() || held() || !gathers() || round.missing > 0) return;
  const std::optional<bool> skipped = Skipped(round.round);
  if (!skipped.has_value()) return;
  Buffer mean = *skipped ? Buffer() : TakeMean(round, out);
  if (updates_here() && !*skipped) Update(round, std::exchange(mean, {}), out);
  const int contributors = round.contributors;
  source_.reset();
  // Its memory stays as it is until frames of the round after the next come.
  Open(round, round.round + 2);
  Done(contributors, out, std::move(mean));
}

void PeerSyncer::Update(const Round& round, const Buffer& mean, Outbox& out) {
  if (sparse() == nullptr) {
    out.Add(UpdateParameters{job_->options.optimizer, round.round,
                             /*gradient_scale=*/1.0f, mean, memory_.parameters,
                             state_, memory_.parameters});
    return;
  }
  const FrameGrid& grid = sparse_->grid();
  for (int64_t index = 0; index < grid.Count(); ++index) {
    if (!round.chosen[index]) continue;
    const auto part = [&](const Buffer& values) {
      return values.Slice(BytesOf(grid.Offset(index)),
                          BytesOf(grid.Length(index)));
    };
    AddBlockUpdate(*job_, round.round, sparse_->resumes(index), /*scale=*/1.0f,
                   part(mean), part(memory_.parameters), part(state_), out);
  }
}

void PeerSyncer::LeaveOut(Round& round) {
  if (sparse() == nullptr) return;
  round.chosen.clear();
  bool any = false;
  for (int64_t index = 0; index < sparse_->grid().Count(); ++index) {
    round.chosen.push_back(sparse_->travels(index));
    any = any || round.chosen.back();
  }
  round.chosen.push_back(!any);
  for (size_t index = 0; index < round.chosen.size(); ++index) {
    if (!round.chosen[index]) Mark(round, static_cast<int64_t>(index));
  }
}

std::string PeerSyncer::Missing() const {
  if (results_.open()) return Syncer::Missing();
  if (recovers()) return job_->NameOf(*source_);
  if (position() < 0) return "";  // It has left.
  return absl::StrJoin(MissingPeers(RoundAt(next_round())), ", ");
}

}  // namespace nereus
