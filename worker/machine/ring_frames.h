#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/plan/ring_segments.h"
#include "common/protocol/frame.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Numbers the frames in which one layer's values travel on a ring of hosts. A
// dense layer is cut into segments, one for each host, and each segment into
// frames. In a sparse layer each block is a frame, and the segments get the
// blocks in turn. A sparse layer has one extra frame, its last one, which has
// no values. A worker sends it to say that no block travels.
//
// Constant. All workers must take the number of hosts from the round's line-up:
// with another number, a worker would add a frame to the wrong values.
class RingFrames {
 public:
  // `layer`: not owned; must outlive this. REQUIRES: hosts >= 1.
  RingFrames(const WorkerLayer& layer, int hosts);

  // Number of frames of the layer.
  int64_t count() const;
  // Number of the segment of frame `index`.
  int SegmentOf(int64_t index) const;
  // Index of the frame's first value in the layer.
  int64_t OffsetOf(int64_t index) const;
  // Number of the frame's values.
  int64_t LengthOf(int64_t index) const;

  // Returns `header` with the segment, wire type, offset and length of the
  // frame.
  FrameHeader Cut(FrameHeader header, int64_t index) const;
  // Returns the index of the frame that `header` announces. Errors:
  // kInvalidArgument, the layer has no such frame.
  absl::StatusOr<int64_t> Find(const FrameHeader& header) const;

  // Calls `each` with the index of every frame of a segment, ascending.
  template <typename Each>
  void ForSegment(int segment, Each each) const {
    if (is_sparse()) {
      const int64_t first =
          (segment - layer_.sparse->BlockOf(0) % hosts_ + hosts_) % hosts_;
      for (int64_t index = first; index < count(); index += hosts_) each(index);
      return;
    }
    const int64_t first = segment * frames_per_segment_;
    const int64_t frames = GridOf(segment).Count();
    for (int64_t index = first; index < first + frames; ++index) each(index);
  }

 private:
  bool is_sparse() const { return layer_.sparse.has_value(); }
  // Frames of a segment of a dense layer.
  FrameGrid GridOf(int64_t segment) const {
    return FrameGrid(segments_.Length(segment));
  }

  const WorkerLayer& layer_;          // The layer; not owned.
  const int hosts_;                   // Number of segments.
  const RingSegments segments_;       // Segments of a dense layer.
  const int64_t frames_per_segment_;  // Number of frames of a full segment.
};

}  // namespace nereus
