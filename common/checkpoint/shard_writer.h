#pragma once

#include <string>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/storage.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/chunk_values.h"

namespace nereus {

// Writes one shard's file of a checkpoint, and returns the manifest's entry for
// this file. Neighbouring chunks of a layer become one tensor (tensor_name.h).
// A tensor has the shape of the layer's matrix if it is the whole layer and the
// layer has no values beside the matrix; any other tensor has one dimension. No
// value is copied. Until the manifest is written, a second call replaces the
// file. Reads the file back, from the disk if possible, and compares its
// checksum: a disk that stores other bytes would otherwise be found out only
// when the job needs the checkpoint. Blocks for as long as the storage takes.
//
//   layers   layers of the whole model, as they will be in the manifest.
//   states   names of the arrays of state: StateNames (tensor_name.h).
//   chunks   values to write, sorted by layer and then by offset, without
//            overlap; may be empty. Their bytes must not change during the
//            call, because the checksum is computed before they are written.
//
// Errors: those of Storage; kInvalidArgument, the model or the number of shards
// is impossible, or a chunk does not fit its layer, its buffers or the chunk
// before it, with both values; kDataLoss, the file that was read back has other
// bytes; kAlreadyExists, the checkpoint is complete: to
// write it again, call RemoveCheckpoint first.
absl::StatusOr<ManifestFile> WriteShard(Storage& storage, const ShardFile& file,
                                        absl::Span<const LayerSpec> layers,
                                        absl::Span<const std::string> states,
                                        absl::Span<const ChunkValues> chunks);

}  // namespace nereus
