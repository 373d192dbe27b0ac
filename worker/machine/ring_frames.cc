#include "worker/machine/ring_frames.h"

#include "common/base/status.h"

namespace nereus {

RingFrames::RingFrames(const WorkerLayer& layer, int hosts)
    : layer_(layer),
      hosts_(hosts),
      segments_(layer.spec().parameters, hosts),
      frames_per_segment_(FrameCount(segments_.full_length())) {}

int64_t RingFrames::count() const {
  if (is_sparse()) return layer_.sparse->grid().Count() + 1;
  // At most one segment after the full ones is not empty.
  const int64_t full = segments_.full_count();
  return full * frames_per_segment_ + GridOf(full).Count();
}

int RingFrames::SegmentOf(int64_t index) const {
  return static_cast<int>(is_sparse() ? layer_.sparse->BlockOf(index) % hosts_
                                      : index / frames_per_segment_);
}

int64_t RingFrames::OffsetOf(int64_t index) const {
  if (is_sparse()) {
    return index + 1 == count() ? 0 : layer_.sparse->grid().Offset(index);
  }
  const int64_t segment = index / frames_per_segment_;
  return segments_.Offset(segment) +
         GridOf(segment).Offset(index % frames_per_segment_);
}

int64_t RingFrames::LengthOf(int64_t index) const {
  if (is_sparse()) {
    return index + 1 == count() ? 0 : layer_.sparse->grid().Length(index);
  }
  return GridOf(index / frames_per_segment_)
      .Length(index % frames_per_segment_);
}

// The offset of a dense frame counts from the start of its segment.
FrameHeader RingFrames::Cut(FrameHeader header, int64_t index) const {
  const Job& job = *layer_.job;
  header.chunk = static_cast<uint32_t>(SegmentOf(index));
  if (!is_sparse()) {
    return CutHeader(job, header, GridOf(header.chunk),
                     index % frames_per_segment_);
  }
  if (index + 1 < count()) {
    return CutHeader(job, header, layer_.sparse->grid(), index);
  }
  header.wire = job.WireOf(header);
  return header;
}

absl::StatusOr<int64_t> RingFrames::Find(const FrameHeader& header) const {
  if (header.part != kValuesPart) {
    return RefuseFrame(header, "the part must be 0");
  }
  if (header.chunk >= static_cast<uint32_t>(hosts_)) {
    return RefuseFrame(header, "the ring has ", hosts_, " segments");
  }
  if (!is_sparse()) {
    const int64_t frame = NEREUS_TRY(FrameIndex(header, GridOf(header.chunk)));
    return header.chunk * frames_per_segment_ + frame;
  }
  int64_t index = count() - 1;
  if (header.payload_bytes > 0 || header.offset > 0) {
    index = NEREUS_TRY(FrameIndex(header, layer_.sparse->grid()));
  }
  const int segment = SegmentOf(index);
  if (segment == static_cast<int>(header.chunk)) return index;
  return RefuseFrame(header, "that block's segment is ", segment);
}

}  // namespace nereus
