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

void SimulatedNetwork::Send(ProcessId from, ProcessId to, const Frame& frame) {
  const Direction direction = {from, to};
  if (broken_.contains(direction)) return;
  Schedule(direction, frame);
  if (random_.Chance(options_.repeat_probability)) Schedule(direction, frame);
}

void SimulatedNetwork::Schedule(Direction direction, const Frame& frame) {
  const absl::Duration spread = options_.delay_max - options_.delay_min;
  const absl::Time drawn =
      events_->now() + options_.delay_min + random_.Uniform() * spread;
  Lane& lane = lanes_[direction];
  lane.last_arrival = std::max(lane.last_arrival, drawn);
  events_->At(lane.last_arrival,
              [this, direction, frame, connection = lane.connection] {
                if (lanes_[direction].connection != connection) return;
                Arrive(direction, frame);
              });
}

void SimulatedNetwork::Arrive(Direction direction, const Frame& frame) {
  Lane& lane = lanes_[direction];
  if (!lane.waiting.empty() || !Offer(direction, frame)) {
    lanes_[direction].waiting.push_back(frame);
  }
}

bool SimulatedNetwork::Offer(Direction direction, const Frame& frame) {
  if (!deliver_(direction.first, direction.second, frame)) return false;
  ++frames_delivered_;
  Digest(direction, frame);
  return true;
}

void SimulatedNetwork::OfferAgain(ProcessId to) {
  for (auto& [direction, lane] : lanes_) {
    if (direction.second != to) continue;
    const int64_t connection = lane.connection;
    while (!lane.waiting.empty()) {
      const Frame frame = lane.waiting.front();
      if (!Offer(direction, frame)) break;
      if (lane.connection != connection) break;  // The receiver broke it.
      lane.waiting.pop_front();
    }
  }
}

void SimulatedNetwork::Break(ProcessId a, ProcessId b) {
  for (const Direction& direction : {Direction{a, b}, Direction{b, a}}) {
    Lane& lane = lanes_[direction];
    ++lane.connection;
    lane.waiting.clear();
    broken_.insert(direction);
  }
}

void SimulatedNetwork::Digest(Direction direction, const Frame& frame) {
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
  crc = ExtendCrc32c(crc, &direction.second, sizeof(direction.second));
  digest_ = (digest_ ^ crc) * 0x100000001b3;  // FNV-1a, a frame at a time.
}

}  // namespace nereus
