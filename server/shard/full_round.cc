#include "server/shard/full_round.h"

#include <string>
#include <utility>

#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {
namespace {

int64_t BytesOf(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float));
}

// Returns memory for a sum. If the payload has no values, as in simulations
// that model sizes only, the memory has none either.
Buffer AllocateLike(const Buffer& payload, int64_t bytes) {
  return payload.data() == nullptr ? Buffer::SizeOnly(bytes)
                                   : Buffer::Allocate(bytes);
}

}  // namespace

FullRound::FullRound(int contributors, FrameGrid grid, SumOrder order)
    : grid_(grid), sums_(order) {
  Reopen(contributors, /*sparse=*/false);
}

// Clears the vectors but keeps their memory, because this runs in every round.
void FullRound::Reopen(int contributors, bool sparse) {
  NEREUS_CHECK(contributors >= 1 && grid_.elements() >= 1)
      << contributors << " contributors, " << grid_.elements() << " elements";
  contributors_ = contributors;
  sparse_ = sparse;
  const int64_t frames = grid_.Count();
  sums_.Reopen(contributors_, frames);
  chosen_.assign(sparse ? frames : 0, false);
  resumed_.assign(sparse ? frames : 0, false);
  chosen_count_ = 0;
  frames_ = sparse ? kUnknown : frames;
  left_.assign(contributors_, frames_);
  incomplete_ = contributors_;
  started_ = false;
}

int64_t FullRound::held_bytes() const {
  return sum_.bytes() + sums_.held_bytes();
}

Buffer FullRound::ExchangeSum(Buffer memory) {
  return std::exchange(sum_, std::move(memory));
}

// In a sparse round, a frame without payload says that its contributor sends no
// frame of the chunk.
absl::StatusOr<int64_t> FullRound::Find(const FrameHeader& header) const {
  const bool none = sparse_ && header.payload_bytes == 0 && header.offset == 0;
  return none ? kNoFrame : FrameIndex(header, grid_);
}

// The first frame of a sparse round tells how many frames each contributor
// sends; later frames must tell the same number. The contributors have chosen
// the same blocks, so a frame of another block, or with another part, is an
// error of its sender.
absl::Status FullRound::Check(int contributor, int64_t frame,
                              const FrameHeader& header) const {
  const bool none = frame == kNoFrame;
  const bool counted = sparse_ && (none || Has(contributor, frame));
  std::string why;
  if (!sparse_ && header.part != kValuesPart) {
    why = "the part must be 0";
  } else if (!sparse_ && header.frames != 0) {
    why = absl::StrCat("the frame count is ", header.frames,
                       ", must be 0 without --sparsity");
  } else if (sparse_ &&
             (none != (header.frames == 0) || header.frames > grid_.Count() ||
              header.part > kResumedPart)) {
    why = absl::StrCat("the frame count is ", header.frames,
                       ", must be from 1 to ", grid_.Count(),
                       ", or 0 without payload; the part must be 0 or 1");
  } else if (sparse_ && frames_ != kUnknown && header.frames != frames_) {
    why = absl::StrCat("the frame count is ", header.frames,
                       ", in earlier frames of the round it was ", frames_);
  } else if (!sparse_ || counted) {
    return absl::OkStatus();
  } else if (left_[contributor] == 0) {
    why = absl::StrCat("all ", frames_,
                       " frames of this contributor have arrived");
  } else if (!chosen_[frame] && chosen_count_ >= header.frames) {
    why = absl::StrCat("the round already has ", frames_,
                       " frames of other blocks");
  } else if (chosen_[frame] &&
             resumed_[frame] != (header.part == kResumedPart)) {
    why = absl::StrCat("the part is ", header.part,
                       ", another contributor sent this frame with part ",
                       resumed_[frame] ? kResumedPart : kValuesPart);
  }
  return why.empty() ? absl::OkStatus() : RefuseFrame(header, why);
}

bool FullRound::Has(int contributor, int64_t frame) const {
  if (frame == kNoFrame) return left_[contributor] == 0;
  return sums_.Has(contributor, frame);
}

// Counts the frame first, then appends the action that adds it to the sum.
void FullRound::Add(int contributor, const FrameHeader& header, Addend addend,
                    Outbox& out) {
  int64_t& left = left_[contributor];
  if (left == kUnknown) left = header.frames;
  frames_ = sparse_ ? header.frames : frames_;
  if (sparse_ && header.payload_bytes == 0) {
    --incomplete_;
    return;
  }
  const int64_t frame = grid_.IndexOf(header.offset);
  if (sparse_ && !chosen_[frame]) {
    chosen_[frame] = true;
    resumed_[frame] = header.part == kResumedPart;
    ++chosen_count_;
  }
  if (--left == 0) --incomplete_;
  if (!started_ && !sum_.unique()) {
    sum_ = AllocateLike(addend.payload, BytesOf(grid_.elements()));
  }
  started_ = true;
  sums_.Add(
      contributor, frame,
      sum_.Slice(BytesOf(grid_.Offset(frame)), BytesOf(grid_.Length(frame))),
      std::move(addend), /*factor=*/1.0f, out);
}

void FullRound::Scale(float factor, Outbox& out) const {
  if (!sparse_) {
    out.Add(ScaleValues{sum_, factor});
    return;
  }
  for (int64_t index = 0; index < grid_.Count(); ++index) {
    if (!has(index)) continue;
    const Buffer block =
        sum_.Slice(BytesOf(grid_.Offset(index)), BytesOf(grid_.Length(index)));
    out.Add(ScaleValues{block, factor});
  }
}

std::vector<int> FullRound::MissingContributors() const {
  std::vector<int> missing;
  for (int contributor = 0; contributor < contributors_; ++contributor) {
    if (left_[contributor] != 0) missing.push_back(contributor);
  }
  return missing;
}

}  // namespace nereus
