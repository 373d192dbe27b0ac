#include "server/shard/checkpoint_collector.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"

namespace nereus {
namespace {

// Number of incomplete rounds: a chunk may be one round ahead of another one.
constexpr size_t kOpenMax = 2;

}  // namespace

CheckpointCollector::CheckpointCollector(std::vector<Chunk> chunks,
                                         int state_arrays)
    : chunks_(std::move(chunks)), state_arrays_(state_arrays) {}

int64_t CheckpointCollector::FramesOf(int slot) const {
  return FrameCount(chunks_[slot].length);
}

const CheckpointCollector::Collection* CheckpointCollector::Find(
    int64_t round) const {
  for (const Collection& collection : open_) {
    if (collection.round == round) return &collection;
  }
  return nullptr;
}

// Rounds are kept in ascending order, so that the front is the oldest one. It
// is given up when one round too many is open: the worker that owed its frames
// is gone.
CheckpointCollector::Collection* CheckpointCollector::Open(int64_t round) {
  if (round <= last_round_) return nullptr;
  if (const Collection* found = Find(round)) {
    return const_cast<Collection*>(found);
  }
  Collection made;
  made.round = round;
  made.values.resize(chunks_.size());
  made.arrived.resize(chunks_.size());
  for (size_t slot = 0; slot < chunks_.size(); ++slot) {
    made.missing.push_back(FramesOf(static_cast<int>(slot)) * parts());
  }
  made.slots_missing = static_cast<int64_t>(chunks_.size());
  const auto place = std::find_if(
      open_.begin(), open_.end(),
      [&](const Collection& other) { return other.round > round; });
  open_.insert(place, std::move(made));
  if (open_.size() > kOpenMax) {
    last_round_ = open_.front().round;
    open_.pop_front();
  }
  return const_cast<Collection*>(Find(round));
}

std::optional<CheckpointCollector::Collected> CheckpointCollector::Add(
    int slot, int64_t round, Buffer parameters, Buffer state) {
  Collection* collection = Open(round);
  if (collection == nullptr || collection->missing[slot] == 0) return {};
  const Chunk& chunk = chunks_[slot];
  collection->values[slot] = {chunk.layer, chunk.offset, chunk.length,
                              std::move(parameters), std::move(state)};
  collection->missing[slot] = 0;
  --collection->slots_missing;
  return TakeIfComplete(*collection);
}

// A round that is over counts as present, so that its frames are discarded.
bool CheckpointCollector::Has(int slot, int64_t round, int part,
                              int64_t frame) const {
  if (round <= last_round_) return true;
  const Collection* collection = Find(round);
  if (collection == nullptr) return false;
  if (collection->missing[slot] == 0) return true;
  const std::vector<bool>& arrived = collection->arrived[slot];
  return !arrived.empty() && arrived[part * FramesOf(slot) + frame];
}

// The slot gets memory with its first frame, for all of its parts.
std::optional<CheckpointCollector::Collected> CheckpointCollector::AddFrame(
    int slot, int64_t round, int part, int64_t frame, const Buffer& payload,
    Outbox& out) {
  Collection* collection = Open(round);
  if (collection == nullptr) return {};
  const Chunk& chunk = chunks_[slot];
  const int64_t bytes = chunk.length * static_cast<int64_t>(sizeof(float));
  ChunkValues& values = collection->values[slot];
  std::vector<bool>& arrived = collection->arrived[slot];
  if (arrived.empty()) {
    arrived.assign(FramesOf(slot) * parts(), false);
    values = {chunk.layer, chunk.offset, chunk.length,
              Buffer::AllocateLike(payload, bytes),
              Buffer::AllocateLike(payload, bytes * state_arrays_)};
  }
  const int64_t start = frame * kFramePayloadBytesMax;
  out.Add(CopyValues{part == 0 ? values.parameters.Slice(start, payload.bytes())
                               : values.state.Slice((part - 1) * bytes + start,
                                                    payload.bytes()),
                     payload});
  arrived[part * FramesOf(slot) + frame] = true;
  if (--collection->missing[slot] > 0) return {};
  --collection->slots_missing;
  return TakeIfComplete(*collection);
}

int64_t CheckpointCollector::held_bytes() const {
  int64_t bytes = 0;
  for (const Collection& collection : open_) {
    for (const ChunkValues& values : collection.values) {
      bytes += values.parameters.bytes() + values.state.bytes();
    }
  }
  return bytes;
}

std::optional<CheckpointCollector::Collected>
CheckpointCollector::TakeIfComplete(Collection& collection) {
  if (collection.slots_missing > 0) return {};
  last_round_ = collection.round;
  Collected collected{collection.round, std::move(collection.values)};
  std::erase_if(
      open_, [&](const Collection& each) { return each.round <= last_round_; });
  return collected;
}

}  // namespace nereus
