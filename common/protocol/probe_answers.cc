#include "common/protocol/probe_answers.h"

#include "common/protocol/connections.h"

namespace nereus {
namespace {

// Largest number of answers to one worker in an epoch. A worker sends one train
// a second at most, once it has its first results.
constexpr int64_t kAnswersMax = 65536;

// True if `worker` may probe `target`: a server, or a worker of its host.
bool MayProbe(const Job& job, PeerId worker, PeerId target) {
  return worker.role == Role::kWorker &&
         (target.role == Role::kShard || AreMates(job, worker, target));
}

bool IsOfNoLayer(const FrameHeader& header) {
  return header.layer == 0 && header.chunk == 0 && header.offset == 0;
}

}  // namespace

absl::StatusOr<Landing> ProbeAnswers::OnHeader(
    const Job& job, PeerId self, PeerId from, const FrameHeader& header) const {
  if (job.options.measure && MayProbe(job, from, self) && IsOfNoLayer(header) &&
      header.part <= kLastOfTrain) {
    const int64_t bytes = header.payload_bytes;
    if (self.role == Role::kShard || bytes == 0) return Landing::Scratch();
    if (memory_.bytes() == 0) {
      memory_ = Buffer::AllocateZeroed(kProbeMemoryBytes);
    }
    return Landing::At(memory_.Slice(
        frames_ % kProbeMemoryFrames * kFramePayloadBytesMax, bytes));
  }
  return RefuseFrame(header,
                     "a probe must come from a worker of a job that measures, "
                     "to a server or to a worker of its host, with layer, "
                     "chunk and offset 0 and part 0 or 1");
}

void ProbeAnswers::OnFrame(const Job& job, PeerId self, PeerId from,
                           const FrameHeader& header, Outbox& out) {
  ++frames_;
  const bool answers =
      header.part == kLastOfTrain && ++answers_[from.rank] <= kAnswersMax;
  if (!answers) return;
  FrameHeader answer = MakeHeader(job, self, FrameKind::kProbe, /*layer=*/0,
                                  /*chunk=*/0, header.round);
  answer.part = kTrainAnswer;
  answer.wire = job.WireOf(answer);
  out.Add(SendFrame{from, {answer, {}}});
}

absl::StatusOr<Landing> PlaceProbeAnswer(const Job& job, PeerId self,
                                         PeerId from,
                                         const FrameHeader& header) {
  if (job.options.measure && MayProbe(job, self, from) && IsOfNoLayer(header) &&
      header.part == kTrainAnswer && header.payload_bytes == 0) {
    return Landing::Scratch();
  }
  return RefuseFrame(header,
                     "the answer to probes must come from a server or from a "
                     "worker of this host, without payload");
}

}  // namespace nereus
