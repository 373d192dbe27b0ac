#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/storage.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/chunk_values.h"

namespace nereus {

// Description of a checkpoint for tests. Its values are random bits, NaNs among
// them, that follow from the round, layer, array and element.
struct TestCheckpoint {
  int64_t round = 0;
  int shards = 1;              // Number of shards. They get chunks in turn.
  int64_t chunk_elements = 8;  // Number of elements of a chunk.
  UpdateRule rule = UpdateRule::kSgd;
  bool with_state = true;  // True if the chunks have optimizer state.
  std::vector<LayerSpec> layers;
  // Number of state arrays of the callers' own optimizer. If absent, the job
  // runs the optimizer, with the state arrays of `rule`.
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

// Returns layers of 1, 3, 7, 8, 9, 17 and 25 elements: shorter than a chunk of
// 8 elements, as long, and longer. Some have names that JSON or tensor names
// must escape.
std::vector<LayerSpec> AwkwardLayers();

// Returns elements [offset, offset + length) of a layer.
ChunkValues TestValues(const TestCheckpoint& checkpoint, int layer,
                       int64_t offset, int64_t length);

// Returns the chunks of a shard, by layer, then offset.
std::vector<ChunkValues> TestShardValues(const TestCheckpoint& checkpoint,
                                         int shard);

// Writes all shards' files and, last, the manifest.
absl::StatusOr<Manifest> WriteTestCheckpoint(Storage& storage,
                                             const TestCheckpoint& checkpoint);

// Reads all values and compares their bits with those of `checkpoint`. Reads in
// chunks of `checkpoint`, which may differ from the chunks that were written.
// Errors: kInternal, other bits; those of reading.
absl::Status CheckTestCheckpoint(Storage& storage, const Manifest& manifest,
                                 const TestCheckpoint& checkpoint);

}  // namespace nereus
