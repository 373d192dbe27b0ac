#include "common/simulation/simulated_network.h"

#include <algorithm>

#include "common/base/crc32c.h"

namespace nereus {

SimulatedNetwork::SimulatedNetwork(const NetworkOptions& options, uint64_t seed,
                                   EventQueue* events, Deliver deliver)
    : options_(options),
      events_(events),
      deliver_(std::move(deliver)),
      random_(seed) {}

void SimulatedNetwork::Send(PeerId from, PeerId to, const Frame& frame) {
  Schedule(from, to, frame);
  if (random_.Chance(options_.repeat_probability)) Schedule(from, to, frame);
}

void SimulatedNetwork::Schedule(PeerId from, PeerId to, const Frame& frame) {
  const absl::Duration spread = options_.delay_max - options_.delay_min;
  const absl::Time drawn =
      events_->now() + options_.delay_min + random_.Uniform() * spread;
  absl::Time& last = last_arrival_[{from, to}];
  last = std::max(last, drawn);
  events_->At(last, [this, from, to, frame] { Arrive(from, to, frame); });
}

void SimulatedNetwork::Arrive(PeerId from, PeerId to, const Frame& frame) {
  ++frames_delivered_;
  uint8_t header[kFrameHeaderBytes];
  EncodeFrameHeader(frame.header, header);
  // Without the header's own checksum: over that, every header's is the same.
  uint32_t crc = Crc32c(header, sizeof(header) - sizeof(uint32_t));
  if (frame.payload.data() != nullptr) {
    crc = ExtendCrc32c(crc, frame.payload.data(),
                       static_cast<size_t>(frame.payload.bytes()));
  }
  const int64_t time = absl::ToUnixNanos(events_->now());
  crc = ExtendCrc32c(crc, &time, sizeof(time));
  crc = ExtendCrc32c(crc, &to.role, sizeof(to.role));
  crc = ExtendCrc32c(crc, &to.rank, sizeof(to.rank));
  digest_ = (digest_ ^ crc) * 0x100000001b3;  // FNV-1a, a frame at a time.
  deliver_(from, to, frame);
}

}  // namespace nereus
