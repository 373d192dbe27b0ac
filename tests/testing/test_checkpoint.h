#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/storage.h"
#include "common/checkpoint/tensor_name.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/chunk_values.h"

namespace nereus {

// What a test's checkpoint is like. Its values follow from the round, layer,
// array and element: any 32 bits, NaNs among them.
struct TestCheckpoint {
  int64_t round = 0;
  int shards = 1;
  int64_t chunk_elements = 8;  // Chunks are dealt to the shards in turn.
  UpdateRule rule = UpdateRule::kSgd;
  bool with_state = true;
  std::vector<LayerSpec> layers;
  // Arrays of the callers' own optimizer; none: it is the rule's.
  std::optional<int> callers_arrays = std::nullopt;

  OptimizerPlace place() const {
    return callers_arrays.has_value() ? OptimizerPlace::kWorker
                                      : OptimizerPlace::kServer;
  }
  int state_arrays() const {
    return callers_arrays.value_or(OptimizerStateCount(rule));
  }
  std::vector<std::string> state_names() const {
    return StateNames(place(), rule, state_arrays());
  }
};

// Layers of 1 element, of one chunk of 8, one less and one more, and of names
// that JSON or tensor names must escape.
std::vector<LayerSpec> AwkwardLayers();

// Elements [offset, offset + length) of a layer.
ChunkValues TestValues(const TestCheckpoint& checkpoint, int layer,
                       int64_t offset, int64_t length);

// The chunks of one shard, by layer, then offset.
std::vector<ChunkValues> TestShardValues(const TestCheckpoint& checkpoint,
                                         int shard);

// Writes all shards' files and, last, the manifest.
absl::StatusOr<Manifest> WriteTestCheckpoint(Storage& storage,
                                             const TestCheckpoint& checkpoint);

// Reads all values in chunks of `checkpoint`, which need not be those that were
// written. OK if the bits are the same. Errors: kInternal, other bits; else
// those of reading.
absl::Status CheckTestCheckpoint(Storage& storage, const Manifest& manifest,
                                 const TestCheckpoint& checkpoint);

}  // namespace nereus
