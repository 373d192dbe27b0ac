#pragma once

#include <string>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_layout.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/storage.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/chunk_values.h"

namespace nereus {

// Writes one shard's values and returns the manifest's entry for the file.
// Neighbouring chunks of a layer become one tensor (tensor_name.h). A tensor
// that is the whole layer has the matrix's shape, if the layer is nothing but a
// matrix; any other tensor is flat. No value is copied. May be repeated until
// the manifest is written. Blocks for as long as the storage takes.
//
//   layers   the whole model, as it will be in the manifest.
//   states   names of the arrays of state: StateNames (tensor_name.h).
//   chunks   by layer, then offset, without overlap; may be empty.
//            Their bytes must not change before this returns: the checksum
//            is computed before they are written.
//
// Errors: those of Storage; kInvalidArgument, an impossible model or number of
// shards, or a chunk that does not fit its layer, its buffers or its place in
// the order, with both values; kAlreadyExists, the checkpoint is complete:
// RemoveCheckpoint first, to write it again.
absl::StatusOr<ManifestFile> WriteShard(Storage& storage, const ShardFile& file,
                                        absl::Span<const LayerSpec> layers,
                                        absl::Span<const std::string> states,
                                        absl::Span<const ChunkValues> chunks);

}  // namespace nereus
