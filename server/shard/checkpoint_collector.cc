#include "server/shard/checkpoint_collector.h"

#include <algorithm>
#include <utility>

namespace nereus {
namespace {

// Number of incomplete rounds: a chunk may be one round ahead of another one.
constexpr size_t kOpenMax = 2;

}  // namespace

CheckpointCollector::CheckpointCollector(std::vector<Chunk> chunks,
                                         int state_arrays)
    : chunks_(std::move(chunks)), state_arrays_(state_arrays) {}

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
  Collection made{round, {}, static_cast<int64_t>(chunks_.size())};
  for (const Chunk& chunk : chunks_) {
    made.slots.emplace_back(round, chunk.length, state_arrays_,
                            /*has_average=*/false);
  }
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
  if (collection == nullptr || collection->slots[slot].complete()) return {};
  collection->slots[slot].Take(std::move(parameters), std::move(state));
  return FinishSlot(*collection);
}

// A round that is over counts as present, so that its frames are discarded.
bool CheckpointCollector::Has(int slot, int64_t round, int part,
                              int64_t frame) const {
  if (round <= last_round_) return true;
  const Collection* collection = Find(round);
  return collection != nullptr && collection->slots[slot].Has(part, frame);
}

std::optional<CheckpointCollector::Collected> CheckpointCollector::AddFrame(
    int slot, int64_t round, int part, int64_t frame, const Buffer& payload,
    Outbox& out) {
  Collection* collection = Open(round);
  if (collection == nullptr) return {};
  ChunkCopy& copy = collection->slots[slot];
  copy.Add(part, frame, payload, out);
  if (!copy.complete()) return {};
  return FinishSlot(*collection);
}

int64_t CheckpointCollector::held_bytes() const {
  int64_t bytes = 0;
  for (const Collection& collection : open_) {
    for (const ChunkCopy& slot : collection.slots) bytes += slot.held_bytes();
  }
  return bytes;
}

std::optional<CheckpointCollector::Collected> CheckpointCollector::FinishSlot(
    Collection& collection) {
  if (--collection.slots_missing > 0) return {};
  last_round_ = collection.round;
  Collected collected{last_round_, {}};
  for (size_t slot = 0; slot < chunks_.size(); ++slot) {
    const Chunk& chunk = chunks_[slot];
    const ChunkCopy& copy = collection.slots[slot];
    collected.values.push_back({chunk.layer, chunk.offset, chunk.length,
                                copy.parameters(), copy.state()});
  }
  std::erase_if(
      open_, [&](const Collection& each) { return each.round <= last_round_; });
  return collected;
}

}  // namespace nereus
