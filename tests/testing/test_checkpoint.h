#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/storage.h"
#include "common/checkpoint/tensor_name.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/chunk_values.h"

namespace nereus {

// A checkpoint for tests. Its values follow from the round, layer, array and
// element, and may be any 32 bits, NaNs included.
struct TestCheckpoint {
  int64_t round = 0;
  int shards = 1;
  int64_t chunk_elements = 8;  // Chunks are dealt to the shards in turn.
  UpdateRule rule = UpdateRule::kSgd;
  bool with_state = true;
  std::vector<LayerSpec> layers;
  // Number of arrays of the callers' own optimizer. If absent, the servers run
  // the optimizer, with the arrays of `rule`.
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

// Returns layers of 1 element, of a chunk of 8, one less and one more, and of
// several chunks. Some have names that JSON or tensor names must escape.
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

// Reads all values in the chunks of `checkpoint`, which may differ from those
// that were written. OK if the bits are equal. Errors: kInternal, other bits;
// those of reading.
absl::Status CheckTestCheckpoint(Storage& storage, const Manifest& manifest,
                                 const TestCheckpoint& checkpoint);

}  // namespace nereus
