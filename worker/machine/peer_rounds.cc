// Rounds between workers. Read in this order: Open and Reserve prepare a
// round's memory; PrepareToSend, Check and Finish are the life of a round in an
// epoch without failures; OnEpoch, KeepFinished, Recover and OnRecoveryFrame
// are what a change of the epoch does to a round.
//
//   empty --frames arrive, PrepareToSend--> whole --Finish--> empty (round + 2)
//     ^                                       ^
//     | OnEpoch                               | all frames from the source
//     '-- any state --OnEpoch, the round is finished elsewhere--> recovering

#include "worker/machine/peer_rounds.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/protocol/outbox.h"
#include "worker/machine/float_bytes.h"

namespace nereus {

PeerRounds::PeerRounds(const WorkerLayer& layer, const RoundLedger& ledger,
                       std::function<Shape(const Lineup&)> shape_of)
    : layer_(layer), ledger_(ledger), shape_of_(std::move(shape_of)) {
  if (layer_.position() >= 0) OpenFirst();
}

void PeerRounds::OpenFirst() {
  for (int64_t ahead = 0; ahead < 2; ++ahead) {
    const int64_t round = ledger_.next_round() + ahead;
    // kStepMax gives the line-up with all workers of the epoch: the memory is
    // then enough for all later rounds of the epoch, too.
    Reserve(At(round), shape_of_(layer_.job->LineupOf(kStepMax)));
    Open(At(round), round);
  }
}

void PeerRounds::Open(Round& round, int64_t number) {
  round.round = number;
  round.sent = false;
  round.lineup = layer_.job->LineupOf(number);
  round.host = round.lineup.HostOf(layer_.rank);
  round.contributors = round.lineup.workers();
  const Shape shape = shape_of_(round.lineup);
  ExpectAll(round, shape.frames);
  round.sums.assign(shape.sums, false);
  round.dense.clear();
  round.missing_parts = shape.parts;
  for (int64_t own = 0; own < shape.own_count; ++own) {
    round.frames.Mark(shape.own_begin + own);
  }
}

void PeerRounds::ExpectAll(Round& round, int64_t frames) {
  round.frames = FrameSet(frames);
  round.missing_parts = 0;
}

void PeerRounds::Reserve(Round& round, const Shape& shape) const {
  if (round.memory.size() < shape.elements.size()) {
    round.memory.resize(shape.elements.size());
  }
  // Frames under way that still refer to the memory keep it; the round gets new
  // memory.
  const auto reserve = [&](Buffer& values, int64_t elements) {
    const int64_t bytes = FloatBytes(elements);
    if (values.bytes() >= bytes && values.unique()) return;
    values = layer_.Allocate(bytes);
  };
  for (size_t i = 0; i < shape.elements.size(); ++i) {
    reserve(round.memory[i], shape.elements[i]);
  }
  if (shape.sum_elements > 0) reserve(round.sum_memory, shape.sum_elements);
}

const PeerRounds::DenseGradient* PeerRounds::FindDense(const Round& round,
                                                       int seat) {
  const auto found = absl::c_find_if(
      round.dense,
      [seat](const DenseGradient& dense) { return dense.seat == seat; });
  return found == round.dense.end() ? nullptr : &*found;
}

const PeerRounds::DenseGradient& PeerRounds::AddDense(Round& round,
                                                      int seat) const {
  const int64_t elements = layer_.spec().parameters;
  const int64_t begin = round.frames.count();
  round.frames.Extend(FrameCount(elements));
  const auto place = absl::c_find_if(
      round.dense,
      [seat](const DenseGradient& dense) { return dense.seat > seat; });
  return *round.dense.insert(
      place, {seat, layer_.Allocate(FloatBytes(elements)), begin});
}

// The memory of a worker's own dense gradient may belong to frames under way.
// So a sum of several gradients has memory of its own.
void PeerRounds::SumDense(Round& round, Outbox& out) const {
  if (round.dense.empty()) return;
  if (round.dense.size() == 1) {
    round.dense_sum = round.dense.front().values;
    return;
  }
  round.dense_sum = layer_.Allocate(FloatBytes(layer_.spec().parameters));
  for (const DenseGradient& dense : round.dense) {
    const bool is_first = &dense == &round.dense.front();
    out.Add(Accumulate{round.dense_sum, Addend(dense.values), is_first});
  }
}

PeerRounds::Round* PeerRounds::PrepareToSend() {
  if (Recovers(ledger_.next_round())) return nullptr;
  Round& round = At(ledger_.next_round());
  round.sent = true;
  LeaveOut(round);
  return &round;
}

void PeerRounds::LeaveOut(Round& round) {
  if (!layer_.sparse.has_value()) return;
  round.chosen.clear();
  bool any = false;
  for (int64_t index = 0; index < layer_.sparse->grid().Count(); ++index) {
    round.chosen.push_back(layer_.sparse->travels(index));
    any = any || round.chosen.back();
  }
  round.chosen.push_back(!any);
  for (size_t index = 0; index < round.chosen.size(); ++index) {
    if (!round.chosen[index]) round.frames.Mark(static_cast<int64_t>(index));
  }
}

absl::Status PeerRounds::Check(const FrameHeader& header) const {
  if (layer_.position() < 0) {
    return RefuseFrame(header, "this worker has left the job");
  }
  const int64_t next = ledger_.next_round();
  if (header.round < 0 || header.round > next + 1) {
    return RefuseFrame(header, "rounds ", next, " and ", next + 1, " are open");
  }
  if (Recovers(header.round)) {
    return RefuseFrame(header, "this round comes whole from ",
                       PeerName(PeerId::Worker(recovery_->source)));
  }
  return absl::OkStatus();
}

bool PeerRounds::IsComplete() const {
  // A round is not done before this worker has sent its contribution, even if
  // no frame is missing: the other workers need the contribution.
  return ledger_.is_sent() && At(ledger_.next_round()).frames.missing() == 0 &&
         ledger_.Skipped(ledger_.next_round()).has_value();
}

RoundResult PeerRounds::Finish(Buffer mean, Outbox& out) {
  Round& round = At(ledger_.next_round());
  if (!layer_.caller_updates() && mean.bytes() > 0) {
    Update(round, std::exchange(mean, Buffer()), out);
  }
  RoundResult result{round.contributors, std::move(mean)};
  if (round.dense.empty() || IsSkipped()) round.dense_sum = Buffer();
  // Open leaves the memory as it is: it has the values of the finished round
  // until frames of the new round land there.
  Open(round, round.round + 2);
  has_finished_ = true;
  return result;
}

void PeerRounds::Update(const Round& round, const Buffer& mean,
                        Outbox& out) const {
  const Job& job = *layer_.job;
  const Buffer& parameters = layer_.memory.parameters;
  if (!layer_.sparse.has_value()) {
    out.Add(UpdateParameters{
        layer_.index, job.OptimizerOf(round.round), round.round,
        /*gradient_scale=*/1.0f, mean, parameters, layer_.state, parameters,
        ResultCheck(job, layer_.index, round.round, 0)});
    return;
  }
  const FrameGrid& grid = layer_.sparse->grid();
  for (int64_t index = 0; index < grid.Count(); ++index) {
    if (!round.chosen[index]) continue;
    const auto part = [&](const Buffer& values) {
      return values.Slice(FloatBytes(grid.Offset(index)),
                          FloatBytes(grid.Length(index)));
    };
    AddBlockUpdate(job, layer_.index, round.round,
                   layer_.sparse->resumes(index), grid.Offset(index),
                   /*scale=*/1.0f, part(mean), part(parameters),
                   part(layer_.state), out);
  }
}

void PeerRounds::OnEpoch(Outbox& out) {
  recovery_.reset();
  recovers_dense_.reset();
  served_.assign(layer_.job->workers.size(), false);
  KeepFinished();
  if (layer_.position() < 0) return;
  OpenFirst();
  if (ledger_.fetching()) return;
  for (const FinishedRound& finished : layer_.job->history.finished_rounds) {
    if (finished.layer != layer_.index ||
        finished.round != ledger_.next_round()) {
      continue;
    }
    return Recover(finished, out);
  }
}

void PeerRounds::KeepFinished() {
  const int64_t round = ledger_.done_round();
  if (!has_finished_ || ledger_.fetching() || ledger_.contributors() == 0) {
    return;
  }
  // finished_ has this round already if the last epoch has finished no round.
  // The memory in At(round) then belongs to a later round.
  if (finished_.contributors > 0 && finished_.round == round) return;
  finished_ = At(round);
  finished_.round = round;
  finished_.contributors = ledger_.contributors();
  finished_.dense.clear();  // These belong to a later round.
  finished_.sum_memory = Buffer();
}

void PeerRounds::Recover(const FinishedRound& finished, Outbox& out) {
  recovery_ = finished;
  Round& round = At(finished.round);
  Reserve(round, shape_of_(Lineup::Singles(finished.contributors)));
  round.contributors = finished.contributors;
  int64_t frames = layer_.sparse.has_value() ? 1 : 0;
  for (const FrameGrid& grid : GridsOf(finished.contributors)) {
    frames += grid.Count();
  }
  ExpectAll(round, frames);
  LeaveOut(round);
  out.Add(
      SendFrame{PeerId::Worker(finished.source),
                {layer_.Header(FrameKind::kPullRound, 0, finished.round), {}}});
}

bool PeerRounds::IsSourceOf(int64_t round) const {
  const std::vector<FinishedRound>& rounds =
      layer_.job->history.finished_rounds;
  return absl::c_any_of(rounds, [&](const FinishedRound& finished) {
    return finished.layer == layer_.index && finished.round == round &&
           finished.source == layer_.rank;
  });
}

// The length of a buffer depends on the number of workers alone, so any line-up
// with this number will do.
std::vector<FrameGrid> PeerRounds::GridsOf(int contributors) const {
  if (layer_.sparse.has_value()) return {layer_.sparse->grid()};
  std::vector<FrameGrid> grids;
  for (const int64_t length :
       shape_of_(Lineup::Singles(contributors)).elements) {
    grids.emplace_back(length);
  }
  return grids;
}

absl::Status PeerRounds::CheckRequest(const FrameHeader& header) const {
  const int asking = layer_.job->PositionOf(header.sender.rank);
  // The coordinator names a source that has said that it has the round. If it
  // names another worker, that has no memory of the round.
  const bool has_round =
      header.round == finished_.round && finished_.contributors > 0 &&
      finished_.memory.size() >= GridsOf(finished_.contributors).size();
  if (asking < 0 || header.payload_bytes != 0 || header.offset != 0 ||
      !has_round || !IsSourceOf(header.round)) {
    return RefuseFrame(header,
                       "this worker does not send that round to other workers");
  }
  return absl::OkStatus();
}

absl::StatusOr<Landing> PeerRounds::OnRecoveryHeader(
    const FrameHeader& header) const {
  if (header.kind == FrameKind::kPullRound) {
    NEREUS_TRY(CheckRequest(header));
    return served_[layer_.job->PositionOf(header.sender.rank)]
               ? Landing::Discard()
               : Landing::Scratch();
  }
  if (layer_.position() < 0 || !recovery_.has_value() ||
      header.round != recovery_->round ||
      header.sender != PeerId::Worker(recovery_->source)) {
    return RefuseFrame(header, "this worker did not ask for that round");
  }
  const Place place = NEREUS_TRY(FindInMemory(header));
  // The transport may announce the last frame again after it has ended the
  // round.
  const FrameSet& frames = At(header.round).frames;
  const bool is_repeated = IsPast(header) || (place.index < frames.count() &&
                                              frames.Has(place.index));
  if (is_repeated) return Landing::Discard();
  return IsOfDenseSum(header) ? Landing::Scratch() : Landing::At(place.values);
}

void PeerRounds::OnRecoveryFrame(const Frame& frame, Outbox& out) {
  const FrameHeader& header = frame.header;
  if (header.kind == FrameKind::kPullRound) {
    served_[layer_.job->PositionOf(header.sender.rank)] = true;
    return SendFinished(header.sender, out);
  }
  Round& round = At(header.round);
  if (!recovers_dense_.has_value()) {
    recovers_dense_ = header.frames > 0;
    if (*recovers_dense_) AddDense(round, /*seat=*/0);
  }
  const Place place = *FindInMemory(header);
  round.frames.Mark(place.index);
  if (!IsOfDenseSum(header)) return;
  out.Add(Accumulate{place.values, Addend(frame), /*replaces=*/true});
}

bool PeerRounds::IsOfDenseSum(const FrameHeader& header) const {
  return header.frames > 0 &&
         header.chunk == GridsOf(recovery_->contributors).size();
}

absl::StatusOr<PeerRounds::Place> PeerRounds::FindInMemory(
    const FrameHeader& header) const {
  const Round& round = At(header.round);
  std::vector<FrameGrid> grids = GridsOf(recovery_->contributors);
  const bool may_have_dense = layer_.route().scheme == Scheme::kFactor;
  if (header.frames > (may_have_dense ? 1 : 0) ||
      header.frames != recovers_dense_.value_or(header.frames)) {
    return RefuseFrame(header, "it tells of ", header.frames,
                       " sums of dense gradients");
  }
  std::vector<Buffer> memory = round.memory;
  if (header.frames > 0) {
    memory.resize(grids.size());
    memory.push_back(round.dense.empty() ? Buffer()
                                         : round.dense.front().values);
    grids.emplace_back(layer_.spec().parameters);
  }
  if (header.chunk >= grids.size() || header.part != kValuesPart) {
    return RefuseFrame(header, "the round has ", grids.size(),
                       " buffers, and the part must be 0");
  }
  const Buffer& values = memory[header.chunk];
  const bool says_none = layer_.sparse.has_value() &&
                         header.payload_bytes == 0 && header.offset == 0;
  if (says_none) return Place{grids[0].Count(), values.Slice(0, 0)};
  int64_t index = NEREUS_TRY(FrameIndex(header, grids[header.chunk]));
  for (uint32_t before = 0; before < header.chunk; ++before) {
    index += grids[before].Count();
  }
  // The first frame of the round makes the memory of the sum.
  if (values.bytes() == 0) return Place{index, Buffer()};
  return Place{index,
               values.Slice(FloatBytes(header.offset), FloatBytes(header))};
}

// In a sparse round `chosen` has one more entry than the grid has frames. The
// entry is for the frame without values, which travels if no block does.
void PeerRounds::SendFinished(PeerId to, Outbox& out) const {
  const Job& job = *layer_.job;
  FrameHeader header = layer_.Header(FrameKind::kFinished, 0, finished_.round);
  std::vector<FrameGrid> grids = GridsOf(finished_.contributors);
  std::vector<Buffer> memory = finished_.memory;
  if (finished_.dense_sum.bytes() > 0) {
    header.frames = 1;
    memory.resize(grids.size());
    memory.push_back(finished_.dense_sum);
    grids.emplace_back(layer_.spec().parameters);
  }
  for (const FrameGrid& grid : grids) {
    const Buffer& values = memory[header.chunk];
    for (int64_t index = 0; index < grid.Count(); ++index) {
      if (!finished_.chosen.empty() && !finished_.chosen[index]) continue;
      out.Add(SendFrame{to, CutFrame(job, header, grid, index, values)});
    }
    ++header.chunk;
  }
  if (finished_.chosen.empty() || !finished_.chosen.back()) return;
  header.chunk = 0;
  header.wire = job.WireOf(header);
  out.Add(SendFrame{to, Frame{header, Buffer()}});
}

std::string PeerRounds::Missing(
    const std::function<std::vector<int32_t>(const Round&)>& missing) const {
  const Job& job = *layer_.job;
  if (layer_.position() < 0) return "";  // This worker has left.
  if (Recovers(ledger_.next_round())) {
    return job.NameOf(PeerId::Worker(recovery_->source));
  }
  return absl::StrJoin(missing(At(ledger_.next_round())), ", ",
                       [&](std::string* text, int32_t rank) {
                         absl::StrAppend(text,
                                         job.NameOf(PeerId::Worker(rank)));
                       });
}

}  // namespace nereus
